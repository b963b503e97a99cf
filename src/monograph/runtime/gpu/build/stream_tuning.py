"""How many streams the graphs of a program have: whichever number of them measures fastest.

Side by side, small kernels fill the device. But an edge from stream to stream has its price: behind the
one before it in its own stream a kernel may start early (dependent launch), behind one of another
stream it starts when that has ended, and the device has to see to that. What weighs more depends on
the kernels, and no look at the program tells: it is measured when the first graph is made, on
scratch memory, and kept beside the measurements of kernels. The numbers that come out are the same
to the bit.
"""

from __future__ import annotations

import hashlib
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

from monograph.codegen.triton.module.kernel import Call, Launch, Work
from monograph.codegen.triton.module.layout import KEPT, Bound, GpuModule, lay_out
from monograph.program.legalise.lower_random import states_of
from monograph.program.memory.stream_schedule import Schedule, narrowed
from monograph.runtime.gpu.capture.capture import Recorder, launch_order, order_of
from monograph.runtime.gpu.capture.control import REPEAT, LaunchTree, nests
from monograph.runtime.gpu.driver.graphs import Graphs
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.host_io.pinned_staging import SlabLayout
from monograph.runtime.gpu.build.tuning_cache import FULL, Entry, TuningCache

FEWER = (1, 2, 3)
"""Numbers of streams that are tried beside all that the program has."""
ROUNDS, QUEUED, BATCH, SECONDS = 9, 20, 6e-3, 0.3
"""Rounds in which each rival is timed; how many of its runs are queued then, fewer where they would
take longer than so many seconds; and the time after which no round begins."""
_log = logging.getLogger("monograph")


def rivals(order: Schedule) -> dict[int, Schedule]:
    """The orders that are worth a trial, by how many streams they have."""
    fewer = [narrowed(order, limit) for limit in FEWER if limit < order.streams]
    return {o.streams: o for o in (*fewer, order)}


def why_untried(draws: bool, found: Sequence[LaunchTree]) -> str:
    """Why no run is tried on scratch memory; "" where nothing speaks against it.

    Branches may take either side there, donated state is as much scratch as the rest, and indices
    are checked by the kernels that use them.

    draws: whether random ops have a state.
    """
    if draws:
        return "random numbers: a trial would draw from their state"
    if any(nest.kind == REPEAT and nest.count is None for nest in found):
        return "a loop that data end: on scratch memory it might not end"
    return ""


@dataclass(frozen=True)
class MeasuredStreams:
    """The numbers of streams that were measured to be fastest, by program."""

    cache: TuningCache
    environment: str
    used: dict[str, Entry] = field(default_factory=dict)
    """Measurements that chose the streams of a graph here."""

    def find(self, key: str, known: Sequence[int]) -> int | None:
        """The streams for a program, if they have been measured."""
        entry = self._entries.get(key)
        found = None if entry is None else {text(n): n for n in known}.get(entry["winner"])
        if entry is not None and found is not None:
            self.used[key] = entry
        return found

    def keep(self, key: str, problem: str, times: Mapping[int, float]) -> None:
        """Remembers what a run in so many streams has taken, in us."""
        # Of equals the one with fewer streams.
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
    """The number of streams as the tuning cache stores it; its entries say lanes."""
    return "1 lane" if streams == 1 else f"{streams} lanes"


class StreamTuner:
    """The streams of an executable's graphs, chosen when the first of them is made."""

    def __init__(
        self, executable: GpuProgram, graphs: Graphs, measured: MeasuredStreams | None = None
    ) -> None:
        self.executable = executable
        self.graphs = graphs
        self._measured = measured
        self._chosen: Schedule | None = None

    @property
    def count(self) -> int:
        """Lanes of the graphs; 1 as long as there are none."""
        return 1 if self._chosen is None else self._chosen.streams

    def order(self) -> Schedule:
        """Which launch comes in which stream, behind which others. Only the first call measures.

        Whoever calls holds the executable's lock, and has it ready to be recorded.
        """
        if self._chosen is None:
            self._chosen = self._choose(order_of(self.executable))
        return self._chosen

    def _choose(self, order: Schedule) -> Schedule:
        """The order in all streams, or in fewer of them.

        Where nothing can be measured, launches follow each other as they do without a graph: no
        bet on what might be faster. Whoever gives no measurements wants the order as it is.
        """
        if order.streams == 1 or self._measured is None:
            return order
        tried = rivals(order)
        executable = self.executable
        if why := why_untried(bool(executable.held), executable.layout.nests):
            _log.info("streams are not measured, a graph has one: %s", why)
            return tried[1]
        key = key_of(executable.module)  # type: ignore[attr-defined]
        known = self._measured.find(key, [*tried])
        if known is None:
            times = self._times(tried)
            if not times:
                return tried[1]
            self._measured.keep(key, self._problem(order), times)
            # Another process may have been first: all that share a file choose alike.
            known = self._measured.find(key, [*tried])
        return tried[known or 1]

    def _problem(self, order: Schedule) -> str:
        kernels, crossings = self.executable.kernels, order.crossings
        waits = "1 wait" if crossings == 1 else f"{crossings} waits"
        return f"a run of {kernels} kernels: {text(order.streams)}, {waits} between them"

    def _times(self, tried: Mapping[int, Schedule]) -> dict[int, float]:
        """What a run takes in so many streams; empty where there is no memory to find out."""
        try:
            return self._measure(tried)
        except torch.OutOfMemoryError as e:
            _log.warning("streams are not measured, a graph has one: %s", str(e).partition("\n")[0])
            return {}

    def _measure(self, tried: Mapping[int, Schedule]) -> dict[int, float]:
        executable = self.executable
        layout = SlabLayout(executable.layout)
        place = executable.device.place
        block = torch.zeros(max(layout.nbytes, 1), dtype=torch.uint8, device=place)
        notes = executable.buffers[KEPT].clone()
        recorders = [Recorder(executable, self.graphs, order) for order in tried.values()]
        with ExitStack() as stack:
            # What trials find wrong with their numbers is no fault of the caller's.
            stack.callback(executable.buffers[KEPT].copy_, notes)
            trials = [self._trial(r, layout.memory(block), stack) for r in recorders]
            return time_queued(dict(zip(tried, trials, strict=True)))

    def _trial(
        self, recorder: Recorder, memory: Mapping[str, torch.Tensor], stack: ExitStack
    ) -> Callable[[int], None]:
        """Enqueues so many runs of a graph, and waits for them."""
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


def planned(module: GpuModule, measured: MeasuredStreams) -> GpuModule:
    """A module with memory for one stream where its graphs will have no more: that takes less."""
    order = launch_order(module.works)
    if order.streams == 1:
        return module
    tried = not why_untried(bool(states_of(module.program.graph)), nests(module))
    if tried and measured.find(key_of(module), [*rivals(order)]) != 1:
        return module
    works: dict[int, list[Work]] = {}
    for bound in module.works:
        works.setdefault(bound.position, []).append(bound.work)
    chosen = [(module.steps[position], tuple(made)) for position, made in works.items()]
    return lay_out(module.program, chosen, 1, module)


def key_of(module: GpuModule) -> str:
    """What a measurement is kept under: the launches, where their arguments lie, and the orders.

    The numbers in constants are left out.
    """
    launches = [(_about(bound), bound.arguments) for bound in module.every]
    tried = rivals(launch_order(module.works))
    orders = {streams: (order.stream, order.waits) for streams, order in tried.items()}
    parts = repr((launches, nests(module), orders))
    return "lanes-" + hashlib.sha256(parts.encode()).hexdigest()


def _about(bound: Bound) -> tuple[object, ...]:
    """What decides how long a launch takes."""
    work = bound.work
    if isinstance(work, Launch):
        return work.source, work.grid, work.warps, work.stages, work.dependent
    return (work.name,) if isinstance(work, Call) else (type(work).__name__,)


def time_queued(runs: Mapping[int, Callable[[int], None]]) -> dict[int, float]:
    """The median time in us of one among many runs that are queued; the rivals take turns.

    The host only waits for the last one: unless its launches take longer than what they launch,
    which callers would feel too, this is the time of the device.
    """
    singles = []
    for run in runs.values():
        run(1)  # all kinds of things may happen for the first time
        began = time.perf_counter()
        run(1)
        singles.append(time.perf_counter() - began)
    longest = max(singles, default=0.0)
    count = QUEUED if longest * QUEUED <= BATCH else max(1, int(BATCH / longest))
    found: dict[int, list[float]] = {rival: [] for rival in runs}
    start = time.perf_counter()
    for turn in range(ROUNDS):
        if turn and time.perf_counter() - start > SECONDS:
            break
        for rival, run in runs.items():
            run(1)  # another has been where it goes
            began = time.perf_counter()
            run(count)
            found[rival].append((time.perf_counter() - began) / count)
    return {rival: statistics.median(times) * 1e6 for rival, times in found.items()}
