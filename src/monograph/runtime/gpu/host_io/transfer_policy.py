"""The transfer mode of host arrays: copies, or kernels that access host memory.

The fastest mode depends on sizes, on how often kernels read their inputs, and on the machine. It is
measured and stored in the tuning cache.
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
from monograph.runtime.gpu.host_io.pinned_staging import StagingLayout, nbytes

AUTO, DIRECT, COPY, PIECES = "auto", "direct", "copy", "pieces"
EARLY, NARROWED = "early", "narrowed"
CHOICES = (AUTO, DIRECT, COPY)
ROUNDS, RUNS = 8, 3
"""Rounds of measurement, and timed runs of each mode in a round."""
HOPELESS = 1.5
"""A mode that is this many times slower than the fastest drops out."""
SECONDS = 0.5
"""No round begins after this time."""
T = TypeVar("T")


class TransferMode(NamedTuple):
    """A way to move inputs and outputs; `reads`, `writes`: kernels access host memory directly."""

    reads: bool = False
    writes: bool = False
    pieces: bool = False
    """Inputs are copied in pieces while the host still gathers the rest."""
    overlapped: bool = False
    """The graph is launched first and reads inputs as they arrive (overlapped upload)."""
    narrowed: bool = False
    """The host also rounds inputs that the program would round first (downcast)."""

    def __str__(self) -> str:
        early = NARROWED if self.narrowed else EARLY if self.overlapped else COPY
        taken = PIECES if self.pieces else DIRECT if self.reads else early
        return f"{taken} in, {DIRECT if self.writes else COPY} out"


PLAIN = TransferMode()
BASIC = (PLAIN, TransferMode(writes=True), TransferMode(reads=True, writes=True))
PIECEWISE = (TransferMode(writes=True, pieces=True), TransferMode(pieces=True))
OVERLAPPED = (TransferMode(writes=True, overlapped=True), TransferMode(overlapped=True))
DOWNCAST = tuple(mode._replace(narrowed=True) for mode in OVERLAPPED)
FULL_WIDTH = (*BASIC, *OVERLAPPED)
ALL_MODES = (*FULL_WIDTH, *PIECEWISE, *DOWNCAST)


def candidate_modes(layout: StagingLayout, waits_for_inputs: bool) -> tuple[TransferMode, ...]:
    """Return the modes to time. `waits_for_inputs`: a graph can wait for its inputs.

    Pieces lose to an early launch on every model measured, so they are timed only where inputs are
    too large for one.
    """
    if not layout.in_to:
        return BASIC
    if not waits_for_inputs or not layout.control_bytes:
        return (*BASIC, *PIECEWISE)
    return FULL_WIDTH if layout.narrowed is None else (*FULL_WIDTH, *DOWNCAST)


def fastest(times: Mapping[TransferMode, float]) -> TransferMode:
    """Return the mode with the shortest time."""
    return min(times, key=lambda mode: times[mode])


def nearest(mode: TransferMode, possible: Sequence[TransferMode]) -> TransferMode:
    """Return a stored mode, or the most similar one that is possible here."""
    wide = mode._replace(narrowed=False)
    like = (mode, wide, wide._replace(overlapped=False), PLAIN)
    return next(found for found in like if found in possible)


@dataclass(frozen=True)
class MeasuredTransferModes:
    """The fastest transfer modes, by program."""

    cache: TuningCache
    environment: str

    def find(self, layout: GpuLayout) -> TransferMode | None:
        """Return the measured mode of a program, if any."""
        entry = self._entries.get(_key(layout))
        known = {str(w): w for w in ALL_MODES}
        return None if entry is None else known.get(entry["winner"])

    def keep(self, layout: GpuLayout, times: Mapping[TransferMode, float]) -> None:
        """Store the time of each mode in us."""
        taken, made = (sum(map(nbytes, slots)) for slots in (layout.inputs, layout.outputs))
        ordered = sorted(times.items(), key=lambda item: item[1])
        self._entries[_key(layout)] = {
            "problem": f"arrays of the host: {taken:,} bytes in, {made:,} bytes out",
            "winner": str(fastest(times)),
            "default": str(PLAIN),
            "mode": "full",
            "us": {str(mode): round(us, 3) for mode, us in ordered},
        }
        self.cache.save()

    @property
    def _entries(self) -> dict[str, Entry]:
        return self.cache.of(self.environment)


def _key(layout: GpuLayout) -> str:
    """Return a key of the inputs, outputs and arguments of all launches, and of the known modes.

    Constants and the kernels' work do not matter. A new mode makes old measurements invalid.
    """
    modes = [str(mode) for mode in ALL_MODES]
    text = repr((layout.inputs, layout.outputs, layout.arguments, modes))
    return "host-" + hashlib.sha256(text.encode()).hexdigest()


def time_all(runs: Mapping[T, Callable[[], None]]) -> dict[T, float]:
    """Return the median time of each run in us, as the host sees it; modes alternate.

    The first run of each round is warm-up.
    """
    found: dict[T, list[float]] = {mode: [] for mode in runs}
    remaining = dict(runs)
    start = time.perf_counter()
    for round_ in range(ROUNDS):
        if round_ > 1 and time.perf_counter() - start > SECONDS:
            break
        for mode, run in remaining.items():
            run()
            for _ in range(RUNS):
                began = time.perf_counter()
                run()
                found[mode].append(time.perf_counter() - began)
        if round_ == 0:  # warm-up
            found = {mode: [] for mode in runs}
            continue
        medians = {mode: statistics.median(times) for mode, times in found.items()}
        best = min(medians.values())
        remaining = {mode: run for mode, run in runs.items() if medians[mode] <= HOPELESS * best}
    return {mode: statistics.median(times) * 1e6 for mode, times in found.items()}
