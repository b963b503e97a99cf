"""How arrays of the host reach the device and come back: by copies, or kernels that reach so far.

Which is faster depends on the sizes, on how often kernels read their inputs, and on the machine:
it is measured, and kept beside the measurements of kernels.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from monograph.runtime.gpu.bound_program import GpuLayout
from monograph.runtime.gpu.build.tuning_cache import Entry, TuningCache
from monograph.runtime.gpu.host_io.pinned_staging import SlabLayout, nbytes

AUTO, DIRECT, COPY, PIECES = "auto", "direct", "copy", "pieces"
EARLY, NARROWED = "early", "narrowed"
WAYS = (AUTO, DIRECT, COPY)
ROUNDS, RUNS, HOPELESS, SECONDS = 8, 3, 1.5, 0.5
"""Rounds in which each rival is timed so often in a row, as callers run it; how much slower than
the fastest one may be in a round to be in the next; and the time after which no round begins."""
T = TypeVar("T")


class TransferMode(NamedTuple):
    """Whether kernels read inputs, and write outputs, in the host's memory themselves."""

    reads: bool = False
    writes: bool = False
    ahead: bool = False
    """Whether inputs are copied piece by piece, while the host still gathers the rest."""
    early: bool = False
    """Whether the graph is launched first, and takes them as they arrive."""
    narrowed: bool = False
    """Whether the host rounds on that way what the program would round first of all."""

    def __str__(self) -> str:
        early = NARROWED if self.narrowed else EARLY if self.early else COPY
        taken = PIECES if self.ahead else DIRECT if self.reads else early
        return f"{taken} in, {DIRECT if self.writes else COPY} out"


PLAIN = TransferMode()
RIVALS = (PLAIN, TransferMode(writes=True), TransferMode(reads=True, writes=True))
AHEAD = (TransferMode(writes=True, ahead=True), TransferMode(ahead=True))
FIRST = (TransferMode(writes=True, early=True), TransferMode(early=True))
HALVED = tuple(way._replace(narrowed=True) for way in FIRST)
WHOLE = (*RIVALS, *FIRST)
EVERY = (*WHOLE, *AHEAD, *HALVED)


def rivals(layout: SlabLayout, arrives: bool) -> tuple[TransferMode, ...]:
    """Return the modes to time. `arrives`: a graph can wait for its inputs.

    Pieces lose to an early launch on every model measured, so they are timed only where inputs are
    too large for one.
    """
    if not layout.in_to:
        return RIVALS
    if not arrives or not layout.control_bytes:
        return (*RIVALS, *AHEAD)
    return WHOLE if layout.narrowed is None else (*WHOLE, *HALVED)


def fastest(times: Mapping[TransferMode, float]) -> TransferMode:
    """The way to take, by what each has taken."""
    return min(times, key=lambda way: times[way])


def nearest(way: TransferMode, possible: Sequence[TransferMode]) -> TransferMode:
    """A way that was measured elsewhere, or what is most like it of those that there are here."""
    wide = way._replace(narrowed=False)
    like = (way, wide, wide._replace(early=False), PLAIN)
    return next(found for found in like if found in possible)


@dataclass(frozen=True)
class Measured:
    """The ways that were measured to be fastest, by program."""

    cache: TuningCache
    environment: str

    def find(self, layout: GpuLayout) -> TransferMode | None:
        """The way for a program, if it has been measured."""
        entry = self._entries.get(_key(layout))
        known = {str(w): w for w in EVERY}
        return None if entry is None else known.get(entry["winner"])

    def keep(self, layout: GpuLayout, times: Mapping[TransferMode, float]) -> None:
        """Remembers what each way has taken, in us."""
        taken, made = (sum(map(nbytes, slots)) for slots in (layout.inputs, layout.outputs))
        ordered = sorted(times.items(), key=lambda item: item[1])
        self._entries[_key(layout)] = {
            "problem": f"arrays of the host: {taken:,} bytes in, {made:,} bytes out",
            "winner": str(fastest(times)),
            "default": str(PLAIN),
            "mode": "full",
            "us": {str(way): round(us, 3) for way, us in ordered},
        }
        self.cache.save()

    @property
    def _entries(self) -> dict[str, Entry]:
        return self.cache.of(self.environment)


def _key(layout: GpuLayout) -> str:
    """Which launch reads which input where: constants and what kernels compute are left out.

    And which ways there are: what was measured without some of them is measured again.
    """
    ways = [str(way) for way in EVERY]
    text = repr((layout.inputs, layout.outputs, layout.arguments, ways))
    return "host-" + hashlib.sha256(text.encode()).hexdigest()


def time_all(runs: Mapping[T, Callable[[], None]]) -> dict[T, float]:
    """The median time of each run in us, as the host sees it; they take turns.

    The first run of a turn is not counted: another has been where it goes.
    """
    found: dict[T, list[float]] = {way: [] for way in runs}
    hopeful = dict(runs)
    start = time.perf_counter()
    for turn in range(ROUNDS):
        if turn > 1 and time.perf_counter() - start > SECONDS:
            break
        for way, run in hopeful.items():
            run()
            for _ in range(RUNS):
                began = time.perf_counter()
                run()
                found[way].append(time.perf_counter() - began)
        if turn == 0:  # all kinds of things may happen for the first time
            found = {way: [] for way in runs}
            continue
        medians = {way: statistics.median(times) for way, times in found.items()}
        best = min(medians.values())
        hopeful = {way: run for way, run in runs.items() if medians[way] <= HOPELESS * best}
    return {way: statistics.median(times) * 1e6 for way, times in found.items()}
