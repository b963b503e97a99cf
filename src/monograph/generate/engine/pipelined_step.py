"""A step that runs ahead: it was started before the one in front of it was waited for.

On a GPU the next step can take what a step chooses before the host knows it. So the host prepares
a step while the device works on the one before, and does not keep the device waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from monograph.runtime.pending import Pending
from monograph.session import Session


@dataclass(frozen=True)
class Ahead:
    """A step that was started, and what it goes by."""

    session: Session
    tokens: Any
    """What was chosen before it."""
    data: Mapping[str, Any]
    """What its sampler goes by."""
    pending: Pending
    mark: Any
    """Where it ends on the device; None where it has ended when it was started."""

    def follows(self, session: Session, tokens: Any, data: Mapping[str, Any]) -> bool:
        """Whether it is the step that would be made now: nothing was changed in between."""
        return self.session is session and self.tokens is tokens and self.data is data

    def enqueued(self) -> dict[str, Any] | None:
        """The outputs by name, for a step behind this one; None where they are not known yet."""
        made = self.pending.enqueued
        return None if made is None else self._named(made)

    def result(self) -> dict[str, Any]:
        """The outputs by name, once the step has ended."""
        return self._named(self.pending.result())

    def settle(self) -> None:
        """Waits for a step that nobody wants any more: what it reads and writes may go then.

        It wrote behind the end of the sequences, where the next step writes anew.
        """
        with suppress(Exception):  # a device that has failed fails the next step too
            self.pending.result()
            if self.mark is not None:
                self.mark.synchronize()

    def _named(self, made: list[Any]) -> dict[str, Any]:
        return dict(zip((p.name for p in self.session.outputs), made, strict=True))
