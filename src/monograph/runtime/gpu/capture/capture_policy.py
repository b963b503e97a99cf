"""The capture policy: when a capture is tried, and runs without one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

from monograph.errors import ConfigError
from monograph.runtime.counts import MODES, OFF, REQUIRE, Counts, RunCounters
from monograph.runtime.executable import Feeds, Outputs, Stream, WrappedExecutable
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.capture.captured_graph import CapturedGraph
from monograph.runtime.gpu.capture.launches import not_copied
from monograph.runtime.gpu.driver.graphs import GraphError, UncapturableError
from monograph.runtime.outputs import NOTHING
from monograph.runtime.pending import Pending

_LONGEST = 1024
"""Runs after which a recording that failed is tried again, at most."""
_log = logging.getLogger("monograph")


class CapturePolicy:
    """Decides when a recording is tried, and what follows if it fails."""

    def __init__(self, mode: str, counts: Counts, tally: RunCounters, never: str = "") -> None:
        if mode not in MODES:
            raise ConfigError("unknown way to capture", expected=" | ".join(MODES), given=mode)
        self.mode = mode
        self.counts = counts
        self._tally = tally
        self._reason = never
        self._never = bool(never)
        self._failures = 0
        self._pause = 0

    def wanted(self) -> bool:
        """Return True if a capture should be tried now; else count a fallback."""
        if self.mode == OFF:
            return False
        if not self._never and self._pause == 0:
            return True
        if self._never:
            self.count_fallback(self._reason)
        else:
            self.counts.fallbacks[self._reason] += 1
        self._pause = max(self._pause - 1, 0)
        return False

    def count_fallback(self, reason: str) -> None:
        """Counts a run that no graph can hold as a whole, and says so once; or refuses it."""
        if self.mode == OFF:
            return
        if self.mode == REQUIRE:
            raise GraphError("the run cannot be captured", given=reason)
        self._tally.say(reason)
        self.counts.fallbacks[reason] += 1

    def attempt(self, make: Callable[[], CapturedGraph]) -> CapturedGraph | None:
        """A recording; None if it failed. Nothing has been launched in either case."""
        try:
            recorded = make()
        except Exception as error:
            self._failed(error)
            return None
        self._failures = 0
        self.counts.captures += recorded.captured
        self.counts.resizes += not recorded.captured
        return recorded

    def _failed(self, error: Exception) -> None:
        """Record a failed capture; a temporary failure is tried again, ever more rarely."""
        self._failures += 1
        self._pause = min(2 ** (self._failures - 1), _LONGEST) - 1
        self._never = isinstance(error, UncapturableError)
        self._reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        if self.mode == REQUIRE:
            raise GraphError("the run cannot be captured", given=self._reason) from error
        if self._never:
            self._tally.say(self._reason)  # as every later run would: once
        else:
            _log.warning("a run was not captured, and launched step by step: %s", self._reason)
        self.counts.fallbacks[self._reason] += 1


class Eager(WrappedExecutable):
    """An executable that would be captured if there were graphs: each run counts a fallback."""

    def __init__(self, executable: GpuProgram, reason: str, mode: str, tally: RunCounters) -> None:
        super().__init__(executable)
        self.executable = executable
        self.counts: Counts = tally.of(self)
        self._reason = reason
        self._policy = CapturePolicy(mode, self.counts, tally)

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
            self._policy.count_fallback(self._reason)
