"""A CPU that takes runs as a GPU does: they are enqueued, and looked at when somebody waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from monograph import Session
from monograph.generate.engine.runner import StepRunner
from monograph.generate.rewrite.sampling import SEEN
from monograph.runtime.pending import Pending


class Queue:
    """A record of runs enqueued and waited for, in this order; either may be refused."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[str, int]] = []
        self._refused: tuple[str, int, BaseException] | None = None
        self._started = 0
        queue = self

        def run_async(session: Session, feeds: Any, stream: Any = None, out: Any = None) -> Pending:
            return queue._enqueued(lambda: session.run(feeds, out=out))

        patch.setattr(Session, "run_async", run_async)
        patch.setattr(StepRunner, "_can_run_ahead", lambda engine: SEEN not in engine.state)

    def refuse(self, what: str, first: int, error: BaseException) -> None:
        """Fails one such thing and all behind it."""
        self._refused = what, first, error

    def accept(self) -> None:
        """Fails no more."""
        self._refused = None

    def _told(self, what: str, number: int) -> None:
        self.log.append((what, number))
        if self._refused is not None and self._refused[0] == what and self._refused[1] <= number:
            raise self._refused[2]

    def _enqueued(self, run: Callable[[], list[Any]]) -> Pending:
        number, self._started = self._started, self._started + 1
        self._told("start", number)
        made = run()

        def finish() -> list[Any]:
            self._told("wait", number)
            return made

        return Pending(finish, lambda: True, enqueued=made)

    def numbers(self, what: str) -> list[int]:
        return [number for told, number in self.log if told == what]
