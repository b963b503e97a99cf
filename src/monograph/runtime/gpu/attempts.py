"""Whether runs are captured: the mode, what came of attempts, and what is counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from monograph.errors import ConfigError
from monograph.runtime.gpu.capture import UncapturableError
from monograph.runtime.gpu.graphs import GraphError
from monograph.runtime.gpu.recorded import Recorded

AUTO, OFF, REQUIRE = "auto", "off", "require"
MODES = (AUTO, OFF, REQUIRE)
_LONGEST = 1024
"""Runs after which a recording that failed is tried again, at most."""
_log = logging.getLogger("monograph")


@dataclass
class Counts:
    """What runs have been."""

    captures: int = 0
    replays: int = 0
    rebinds: int = 0
    """Ports that had moved."""
    for_callers: int = 0
    """Runs that were recorded into a graph of the caller's."""
    staged: Counter[str] = field(default_factory=Counter)
    """Copies of inputs and outputs on the device, by port and reason."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Runs launched kernel by kernel, by reason."""


class Attempts:
    """Decides when a recording is tried, and what follows if it fails."""

    def __init__(self, mode: str, never: str = "") -> None:
        if mode not in MODES:
            raise ConfigError("unknown way to capture", expected=" | ".join(MODES), given=mode)
        self.mode = mode
        self.counts = Counts()
        self._reason = never
        self._never = bool(never)
        self._failures = 0
        self._pause = 0

    def wanted(self) -> bool:
        """Whether a recording is to be tried now; a run that does without is counted."""
        if self.mode == OFF:
            return False
        if self._never and self.mode == REQUIRE:
            raise GraphError("the run cannot be captured", given=self._reason)
        if not self._never and self._pause == 0:
            return True
        if self._never and not self.counts.fallbacks[self._reason]:
            _log.warning("runs are not captured: %s", self._reason)
        self._pause = max(self._pause - 1, 0)
        self.counts.fallbacks[self._reason] += 1
        return False

    def attempt(self, make: Callable[[], Recorded]) -> Recorded | None:
        """A recording; None if it failed. Nothing has been launched in either case."""
        try:
            recorded = make()
        except Exception as error:
            self._failed(error)
            return None
        self._failures = 0
        self.counts.captures += 1
        return recorded

    def _failed(self, error: Exception) -> None:
        """What may have been an accident is tried again: the next time, then ever more rarely."""
        self._failures += 1
        self._pause = min(2 ** (self._failures - 1), _LONGEST) - 1
        self._never = isinstance(error, UncapturableError)
        self._reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        if self.mode == REQUIRE:
            raise GraphError("the run cannot be captured", given=self._reason) from error
        _log.warning("a run was not captured, and launched step by step: %s", self._reason)
        self.counts.fallbacks[self._reason] += 1
