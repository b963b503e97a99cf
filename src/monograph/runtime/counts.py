"""Counters of a session's runs: captures, replays, copies, and fallbacks with their reasons.

The same words for every target. On the CPU a native function is what a graph is on a GPU: compiled
once, launched by every run.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monograph.errors import some_of
from monograph.runtime.forking import ForkLock

if TYPE_CHECKING:
    from monograph.runtime.executable import Executable

AUTO, OFF, REQUIRE = "auto", "off", "require"
MODES = (AUTO, OFF, REQUIRE)
DATA_DECIDE = "data decide sizes: the host reads them, and goes on from there"
_log = logging.getLogger("monograph")


def host_takes_part(kinds: Iterable[str]) -> str:
    """Return why a run with such host steps is not one launch."""
    return f"the host takes part in a run: {some_of(dict.fromkeys(kinds))}"


def why_staged(executable: Executable) -> str:
    """Return why an executable is several programs in a row, with the ops; "" for one program."""
    stops = executable.stops
    return f"{DATA_DECIDE} ({some_of(stops)})" if stops else ""


def why_not_one_launch(executable: Executable) -> str:
    """Return why a run of an executable is more than one launch; "" if it is one."""
    kinds = executable.host_kinds
    return why_staged(executable) or (host_takes_part(kinds) if kinds else "")


_RENAMED_KEYS = {
    "fetched": "pinned_input_runs",
    "recorded_for_callers": "caller_captures",
    "lanes": "streams",
    "staged": "staged_copies",
}
"""Keys of `stats` by their old names, which warn for one release."""


class Stats(dict[str, Any]):
    """Statistics by name; an old name gives the value of the new one and a DeprecationWarning."""

    def __missing__(self, key: str) -> Any:
        new = _RENAMED_KEYS.get(key)
        if new is None or new not in self:
            raise KeyError(key)
        warnings.warn(f"stats[{key!r}] is now stats[{new!r}]", DeprecationWarning, stacklevel=2)
        return self[new]


@dataclass(eq=False)
class Counts:
    """The counters of an executable's runs."""

    captures: int = 0
    """Graphs recorded; on the CPU, native functions made."""
    resizes: int = 0
    """Graphs of a GPU that were given other sizes, without a capture."""
    replays: int = 0
    """Launches of them."""
    rebinds: int = 0
    """Ports that had moved. On the CPU addresses are looked up by each run: none has to."""
    for_callers: int = 0
    """Runs that were recorded into a graph of the caller's."""
    fetched: int = 0
    """Runs whose large arrays a GPU fetched from where they are, without gathering them."""
    staged: Counter[str] = field(default_factory=Counter)
    """Copies of inputs and outputs where they are computed on, by port and reason."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Runs that the host took part in, by reason: most are more than one launch."""

    def add(self, other: Counts) -> None:
        """Add the counts of another."""
        self.captures += other.captures
        self.resizes += other.resizes
        self.replays += other.replays
        self.rebinds += other.rebinds
        self.for_callers += other.for_callers
        self.fetched += other.fetched
        self.staged.update(other.staged)
        self.fallbacks.update(other.fallbacks)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "captures": self.captures,
            "resizes": self.resizes,
            "replays": self.replays,
            "rebinds": self.rebinds,
            "caller_captures": self.for_callers,
            "pinned_input_runs": self.fetched,
            "staged_copies": dict(self.staged),
            "fallbacks": dict(self.fallbacks),
        }


class RunCounters:
    """The counters of all executables of a session, dropped ones included."""

    def __init__(self) -> None:
        self._lock = ForkLock()  # one that is entered twice: a collection may retire counts
        self._gone = Counts()
        self._live: dict[int, Counts] = {}
        self._said: set[str] = set()

    def of(self, owner: Any) -> Counts:
        """Return the counters of a new executable; they are kept when it is freed."""
        made = Counts()
        with self._lock:
            self._live[id(made)] = made
        weakref.finalize(owner, self._retire, made).atexit = False
        return made

    def _retire(self, counts: Counts) -> None:
        with self._lock:
            self._live.pop(id(counts), None)
            self._gone.add(counts)

    def total(self) -> Counts:
        """Return the sum of all counters."""
        found = Counts()
        with self._lock:
            for counts in (self._gone, *self._live.values()):
                found.add(counts)
        return found

    def watch(self, executable: Any) -> None:
        """Make a CPU executable count here."""
        executable.counts = self.of(executable)
        if executable.host_kinds:
            self.say(host_takes_part(executable.host_kinds), logging.INFO)

    def say(self, reason: str, level: int = logging.WARNING) -> None:
        """Log once why runs are not one launch."""
        with self._lock:
            new = reason not in self._said
            self._said.add(reason)
        if new:
            _log.log(level, "runs are not captured as a whole: %s", reason)
