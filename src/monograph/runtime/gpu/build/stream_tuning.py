"""The measured number of streams of a program's graphs.

Small kernels on several streams fill the device. But a dependency between streams has a price: a
kernel may start before its predecessor in the same stream has ended (dependent launch), and only
after a predecessor in another stream has ended. The tuner measures both when the first graph is
built, on scratch memory, and stores the winner in the tuning cache. Results are equal to the bit.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

from monograph.codegen.triton.module.launch import KEPT
from monograph.program.memory.schedules import Schedule, narrowed
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.build.tuning_cache import FULL, Entry, TuningCache
from monograph.runtime.gpu.capture.capture import Recorder, order_of
from monograph.runtime.gpu.capture.control import REPEAT, LaunchTree
from monograph.runtime.gpu.driver.graphs import Graphs
from monograph.runtime.gpu.host_io.pinned_staging import StagingLayout

FEWER = (1, 2, 3)
"""Numbers of streams that are tried besides the program's own."""
ROUNDS = 9
"""Rounds of measurement."""
QUEUED, BATCH = 20, 6e-3
"""Runs that are queued per round; fewer if they would take longer than `BATCH` seconds."""
SECONDS = 0.3
"""No round begins after this time."""
_log = logging.getLogger("monograph")


def candidate_schedules(order: Schedule) -> dict[int, Schedule]:
    """Return the candidate schedules, by their number of streams."""
    fewer = [narrowed(order, limit) for limit in FEWER if limit < order.streams]
    return {o.streams: o for o in (*fewer, order)}


def untried_reason(draws: bool, found: Sequence[LaunchTree]) -> str:
    """Return why no run may be tried on scratch memory, or "".

    Branches may take either side there, donated state is scratch too, and kernels check their
    indices. `draws`: random ops have a state.
    """
    if draws:
        return "random numbers: a trial would draw from their state"
    if any(nest.kind == REPEAT and nest.count is None for nest in found):
        return "a loop that data end: on scratch memory it might not end"
    return ""


@dataclass(frozen=True)
class MeasuredStreams:
    """The fastest numbers of streams, by program."""

    cache: TuningCache
    environment: str
    used: dict[str, Entry] = field(default_factory=dict)
    """Measurements that chose the streams of a graph here."""

    def find(self, key: str, known: Sequence[int]) -> int | None:
        """Return the measured number of streams of a program, if any."""
        entry = self._entries.get(key)
        found = None if entry is None else {text(n): n for n in known}.get(entry["winner"])
        if entry is not None and found is not None:
            self.used[key] = entry
        return found

    def keep(self, key: str, problem: str, times: Mapping[int, float]) -> None:
        """Store the times of runs in us, by number of streams."""
        # On a tie, fewer streams win.
        ordered = sorted(times.items(), key=lambda item: (item[1], item[0]))
        self._entries[key] = {
            "problem": problem,
            "winner": text(ordered[0][0]),
            "default": text(1),
            "mode": FULL,
            "us": {text(streams): round(us, 3) for streams, us in ordered},
        }
        self.cache.save()

    @property
    def _entries(self) -> dict[str, Entry]:
        return self.cache.of(self.environment)


def text(streams: int) -> str:
    """Return the number of streams as the tuning cache stores it; its entries say lanes."""
    return "1 lane" if streams == 1 else f"{streams} lanes"


class StreamTuner:
    """Chooses the streams of an executable's graphs when the first graph is built."""

    def __init__(
        self, executable: GpuProgram, graphs: Graphs, measured: MeasuredStreams | None = None
    ) -> None:
        self.executable = executable
        self.graphs = graphs
        self._measured = measured
        self._chosen: Schedule | None = None

    @property
    def count(self) -> int:
        """Streams of the graphs; 1 before the first graph."""
        return 1 if self._chosen is None else self._chosen.streams

    def order(self) -> Schedule:
        """Return the stream and the dependencies of each launch. Only the first call measures.

        The caller holds the executable's lock and has prepared it for recording.
        """
        if self._chosen is None:
            self._chosen = self._choose(order_of(self.executable))
        return self._chosen

    def _choose(self, order: Schedule) -> Schedule:
        """Return the schedule on all streams, or on fewer.

        Without measurements to consult, keep the schedule. If nothing can be measured, use one
        stream.
        """
        if order.streams == 1 or self._measured is None:
            return order
        tried = candidate_schedules(order)
        executable = self.executable
        if why := untried_reason(bool(executable.held), executable.layout.nests):
            _log.info("cannot measure streams, using one: %s", why)
            return tried[1]
        key = executable.layout.stream_key
        known = self._measured.find(key, [*tried])
        if known is None:
            times = self._times(tried)
            if not times:
                return tried[1]
            self._measured.keep(key, self._problem(order), times)
            # Another process may have stored a winner first: all that share a file choose alike.
            known = self._measured.find(key, [*tried])
        return tried[known or 1]

    def _problem(self, order: Schedule) -> str:
        kernels, crossings = self.executable.kernels, order.crossings
        waits = "1 wait" if crossings == 1 else f"{crossings} waits"
        return f"a run of {kernels} kernels: {text(order.streams)}, {waits} between them"

    def _times(self, tried: Mapping[int, Schedule]) -> dict[int, float]:
        """Return the time of a run by number of streams; empty if there is too little memory."""
        try:
            return self._measure(tried)
        except torch.OutOfMemoryError as e:
            _log.warning("cannot measure streams, using one: %s", str(e).partition("\n")[0])
            return {}

    def _measure(self, tried: Mapping[int, Schedule]) -> dict[int, float]:
        executable = self.executable
        layout = StagingLayout(executable.layout)
        place = executable.device.place
        block = torch.zeros(max(layout.nbytes, 1), dtype=torch.uint8, device=place)
        notes = executable.buffers[KEPT].clone()
        recorders = [Recorder(executable, self.graphs, order) for order in tried.values()]
        with ExitStack() as stack:
            # Trials run on scratch data: drop their device faults.
            stack.callback(executable.buffers[KEPT].copy_, notes)
            trials = [self._trial(r, layout.memory(block), stack) for r in recorders]
            return time_queued(dict(zip(tried, trials, strict=True)))

    def _trial(
        self, recorder: Recorder, memory: Mapping[str, torch.Tensor], stack: ExitStack
    ) -> Callable[[int], None]:
        """Return a function that enqueues a number of runs of a graph and waits for them."""
        graphs = self.graphs
        taken = recorder.record(memory)
        stack.callback(taken.graph.close)
        made = graphs.instantiate(taken.graph)
        stack.callback(made.close)
        event, stream = graphs.event(), graphs.current()
        stack.callback(event.close)

        def run(count: int) -> None:
            for _ in range(count):
                graphs.launch(made, stream)
            graphs.record(event, stream)
            graphs.finish(event)

        return run


def time_queued(runs: Mapping[int, Callable[[int], None]]) -> dict[int, float]:
    """Return the median time in us of one among many queued runs; candidates alternate.

    The host only waits for the last run. This is the device's time, unless launches take longer
    than the work; then callers wait as long.
    """
    singles = []
    for run in runs.values():
        run(1)  # warm-up
        began = time.perf_counter()
        run(1)
        singles.append(time.perf_counter() - began)
    longest = max(singles, default=0.0)
    count = QUEUED if longest * QUEUED <= BATCH else max(1, int(BATCH / longest))
    found: dict[int, list[float]] = {streams: [] for streams in runs}
    start = time.perf_counter()
    for turn in range(ROUNDS):
        if turn and time.perf_counter() - start > SECONDS:
            break
        for streams, run in runs.items():
            run(1)  # warm-up: another candidate ran before
            began = time.perf_counter()
            run(count)
            found[streams].append((time.perf_counter() - began) / count)
    return {streams: statistics.median(times) * 1e6 for streams, times in found.items()}
