"""Retries of requests that lose their replica: within the deadline, and not without end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass

from monograph.serve.failures import Failure, RequestError
from monograph.serve.remote.messages import LostError

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds before a request is sent again; each loss doubles them."""


@dataclass
class Retries:
    """The losses of one request, and the time that it has left."""

    deadline: float
    """A time of `time.monotonic`."""
    most: int
    counts: Counter[str]
    """The retries of all requests by reason."""
    made: int = 0

    def left(self) -> float:
        """Return the seconds that are left; raise an error if there are none."""
        found = self.deadline - time.monotonic()
        if found <= 0:
            raise expired()
        return found

    async def pause(self, error: LostError | RequestError, reason: str = "lost") -> None:
        """Wait before the next attempt; raise an error if there shall be none.

        A request may be the reason why replicas end: the number of retries is limited.
        """
        if isinstance(error, RequestError) and error.kind is not Failure.UNAVAILABLE:
            raise error
        if self.made >= self.most:
            if isinstance(error, RequestError):
                raise error
            raise RequestError(
                Failure.UNAVAILABLE,
                f"the request was sent {self.made + 1} times, and each replica was lost: {error}",
            ) from error
        self.counts["unavailable" if isinstance(error, RequestError) else reason] += 1
        seconds = min(FIRST_PAUSE * 2**self.made, LONGEST_PAUSE) * random.uniform(0.5, 1)
        self.made += 1
        await asyncio.sleep(min(seconds, self.left()))


def expired() -> RequestError:
    return RequestError(Failure.EXPIRED, "the deadline of the request has passed")
