"""Runs of executables that are not captured, because the device has no graphs."""

from __future__ import annotations

from typing import Any, NoReturn

from monograph.runtime.counts import Counts, RunCounters
from monograph.runtime.executable import Feeds, Outputs, Stream, WrappedExecutable
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.capture.capture_policy import Attempts
from monograph.runtime.gpu.capture.launches import not_copied
from monograph.runtime.outputs import NOTHING
from monograph.runtime.pending import Pending


class Eager(WrappedExecutable):
    """An executable that would be captured if there were graphs: each run counts a fallback."""

    def __init__(self, executable: GpuProgram, reason: str, mode: str, tally: RunCounters) -> None:
        super().__init__(executable)
        self.executable = executable
        self.counts: Counts = tally.of(self)
        self._reason = reason
        self._attempts = Attempts(mode, self.counts, tally)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise not_copied("a model on a GPU")

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        self._count()
        return self.executable.run(feeds, out)

    def start(self, feeds: Feeds, out: Feeds = NOTHING, stream: Stream = None) -> Pending:
        self._count()
        return self.executable.start(feeds, out, stream)

    def _count(self) -> None:
        with self.executable.lock:  # threads count together
            self._attempts.count_fallback(self._reason)
