"""A pipelined step: it is started before the engine waits for the step before it.

On a GPU the next step can read a generated token before the host knows it. So the host prepares a
step while the device runs the one before, and the device does not wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from monograph.runtime.pending import Pending
from monograph.session import Session


@dataclass(frozen=True)
class PipelinedStep:
    """A step that was started, and its arguments."""

    session: Session
    tokens: Any
    """The generated tokens that it was fed."""
    data: Mapping[str, Any]
    """The data of its sampler."""
    pending: Pending
    mark: Any
    """The mark after it on the device; None if it ended when it was started."""

    def follows(self, session: Session, tokens: Any, data: Mapping[str, Any]) -> bool:
        """Return True if the step that would be started now is this one."""
        return self.session is session and self.tokens is tokens and self.data is data

    def enqueued(self) -> dict[str, Any] | None:
        """The outputs by name, for the next step; None if they are not known yet."""
        made = self.pending.enqueued
        return None if made is None else self._named(made)

    def result(self) -> dict[str, Any]:
        """Return the outputs by name, once the step has ended."""
        return self._named(self.pending.result())

    def settle(self) -> None:
        """Wait for a step that is no longer needed, so that its memory may be freed.

        It wrote after the end of the sequences, where the next step writes again.
        """
        with suppress(Exception):  # a failed device fails the next step too
            self.pending.result()
            if self.mark is not None:
                self.mark.synchronize()

    def _named(self, made: list[Any]) -> dict[str, Any]:
        return dict(zip((p.name for p in self.session.outputs), made, strict=True))
