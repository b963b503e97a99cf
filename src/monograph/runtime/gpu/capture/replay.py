"""Replay: an executable's run as one launch of a graph that was recorded once.

The first run records and launches once. Later runs launch; ports that have moved are written into
the graph before. A run that cannot be recorded is launched kernel by kernel, counted and logged.
Where the host has steps of its own, what lies between two of them is a graph; where graphs cannot
look at conditions, branches and loops are such steps.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NoReturn

import torch

from monograph.errors import ExecutionError
from monograph.runtime.counts import AUTO, OFF, Counts, RunCounters, host_takes_part
from monograph.runtime.executable import (
    DonatedRun,
    FastPath,
    Feeds,
    Outputs,
    Stream,
    WrappedExecutable,
)
from monograph.runtime.fast_path import ReturnedState
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.build.stream_tuning import MeasuredStreams, StreamTuner
from monograph.runtime.gpu.capture.async_run import End, Memory, started, stream_number
from monograph.runtime.gpu.capture.capture_policy import CapturePolicy
from monograph.runtime.gpu.capture.captured_graph import CapturedGraph, GraphBuilder
from monograph.runtime.gpu.capture.control import (
    ConditionalLaunch,
    decides_on_foreign,
    needs_conditions,
    record_control,
)
from monograph.runtime.gpu.capture.launches import TENSORS, Launches, Mark, enter, not_copied
from monograph.runtime.gpu.capture.partial_graphs import PartialGraphs, launch_on
from monograph.runtime.gpu.capture.replay_fast_path import (
    TryReplay,
    TryReplayReported,
    decline,
    try_replay,
    waited,
    with_fault_report,
)
from monograph.runtime.gpu.capture.sized_graphs import SizedGraphs
from monograph.runtime.gpu.device_faults import FaultReport
from monograph.runtime.gpu.driver.graphs import Graphs
from monograph.runtime.gpu.host_io.host_io_graphs import HostRuns
from monograph.runtime.gpu.host_io.pinned_staging import Ring, free_finished
from monograph.runtime.gpu.host_io.transfer_policy import MeasuredTransferModes
from monograph.runtime.gpu.memory import told_of_failure
from monograph.runtime.gpu.ports import imported, where_else
from monograph.runtime.outputs import NOTHING
from monograph.runtime.pending import Pending, ready

HOST_ARRAYS = "arrays of the host"


class Replay(WrappedExecutable):
    """An executable that is captured once and replayed. Several threads may use it."""

    def __init__(
        self,
        executable: GpuProgram,
        graphs: Graphs,
        mode: str = AUTO,
        *,
        host: str = AUTO,
        tally: RunCounters | None = None,
        measured: MeasuredTransferModes | None = None,
        streams: MeasuredStreams | None = None,
        locks: bool = True,
        sized: SizedGraphs | None = None,
    ) -> None:
        super().__init__(executable)
        self.executable = executable
        self.graphs = graphs
        tally = tally or RunCounters()
        self.counts: Counts = tally.of(self)
        self._policy = CapturePolicy(mode, self.counts, tally)
        self._launches = Launches(executable, graphs, self.counts)
        self._tuner = StreamTuner(executable, graphs, streams)
        self._maker = GraphBuilder(executable, graphs, self._tuner)
        self._arrays = HostRuns(self._launches, self._maker, self._policy, host, measured, locks)
        self._sized = sized
        """The graphs of all sizes of a variant, if this is the code of one."""
        self._had_graph = False
        self._place = executable.device.place
        self._partial: PartialGraphs | None = None
        if mode != OFF:
            partial = PartialGraphs(self._launches, self._policy)
            if not executable.whole or partial.reason:
                self._partial = partial
        self._replay_tensors: TryReplay = decline
        """A replay on tensors as they are; it declines before there is a graph."""
        self._enqueue_tensors: TryReplay = decline
        """The same, not waited for, where data cannot be wrong."""
        self._enqueue_reported: TryReplayReported | None = None
        """The same, not waited for, where kernels report data faults."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise not_copied("a model on a GPU")

    @property
    def stats(self) -> dict[str, Any]:
        """The counters of runs, as plain data."""
        return self.counts.as_dict() | {"launches_per_run": self.launches}

    @property
    def launches(self) -> int:
        """Launches of a run by the host."""
        if self._partial is not None and self._launches.made:
            return self._partial.launches
        return 1 if self._launches.made else self.executable.launches

    @property
    def streams(self) -> int:
        return self._tuner.count

    @property
    def own_bytes(self) -> int:
        """Device memory that the executable and its graphs hold, without the constants."""
        staged = {t.data_ptr(): t for r in self._launches.made.values() for t in r.memory}
        return self.executable.own_bytes + sum(int(t.nbytes) for t in staged.values())

    @property
    def _recorded(self) -> CapturedGraph | None:
        return self._launches.made.get(TENSORS)

    @property
    def _ring(self) -> Ring:
        return self._arrays.ring

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        found = self.try_run(feeds, out)
        return self._start(feeds, out).result() if found is None else found

    def run_full(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        return self._start(feeds, out).result()

    def try_run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs | None:
        """Replay on tensors of the device or arrays of the host, if a graph takes them as is."""
        found = self._replay_tensors(feeds, out)
        if found is None and not out and self._partial is None:
            return self._arrays.try_replay(feeds)
        return found

    def run_async(self, feeds: Feeds, stream: Stream = None, out: Feeds = NOTHING) -> Pending:
        """Enqueue a run on the current stream, or the one given, and return at once.

        The caller may change arrays on the host as soon as this returns. Tensors are ordered by
        the stream, as by any other work on it.
        """
        return self.try_start(feeds, out, stream) or self.start(feeds, out, stream)

    def start(self, feeds: Feeds, out: Feeds = NOTHING, stream: Stream = None) -> Pending:
        if stream is None:
            return self._start(feeds, out)
        number = stream_number(stream)
        elsewhere = number != self.graphs.current()
        with self.graphs.using(number):
            pending = self._start(feeds, out)
            if elsewhere:
                self._hold(feeds, out, number)
            return pending

    def state_fast_path(self, run: DonatedRun) -> FastPath:
        return ReturnedState(self, run)

    def _hold(self, feeds: Feeds, out: Feeds, stream: int) -> None:
        """Keep the caller's tensors alive for another stream that uses them."""
        tensors = [x for x in (*feeds.values(), *out.values()) if isinstance(x, torch.Tensor)]
        mine = [t for t in tensors if t.device == self._place]
        if mine:
            self.graphs.used_on(mine, stream)

    def try_start(
        self, feeds: Feeds, out: Feeds = NOTHING, stream: Stream = None
    ) -> Pending | None:
        current = self.graphs.current()
        if stream is not None and (number := stream_number(stream)) != current:
            with self.graphs.using(number):
                pending = self.try_start(feeds, out)
            if pending is not None:
                self._hold(feeds, out, number)
            return pending
        if self._enqueue_reported is not None:
            if (made := self._enqueue_reported(feeds, out)) is not None:
                return _checked_later(*made)
        elif (found := self._enqueue_tensors(feeds, out)) is not None:
            reached = self._launches.marked(current).reached
            return Pending(lambda: found, reached, enqueued=found)
        return None if out or self._partial else self._arrays.try_start(feeds)

    def close(self) -> None:
        """Frees the graphs now."""
        self._launches.close()

    def _start(self, feeds: Feeds, out: Feeds) -> Pending:
        """Enqueues a run, whatever it needs."""
        self._launches.check_process()
        with told_of_failure():
            enter(self.executable.device)
            given = {name: imported(x) for name, x in feeds.items()}
            if not self.executable.whole:
                return self._run_parts(given, out)
            try:
                return self._start_whole(given, out)
            except torch.OutOfMemoryError as e:
                raise self.executable.no_memory(e) from None

    def _start_whole(self, given: Feeds, out: Feeds) -> Pending:
        with ExitStack() as stack:
            if not self.graphs.here():
                stack.enter_context(self.graphs.guard())
            stack.enter_context(self._launches.lock)
            stream = self.graphs.current()
            if self.graphs.capturing_now():
                self._refuse_recording(given, out)
                return self._from_device(given, out, stream, recording=True)
            self._launches.order(stream)  # before memory is asked for: it may be refused
            free_finished(self.graphs)
            if self._partial is not None:
                self._policy.count_fallback(self._partial.reason)
                return self._from_device(given, out, stream)
            tensors = any(isinstance(x, torch.Tensor) for x in (*given.values(), *out.values()))
            if tensors or self._sized is not None:
                return self._from_device(given, out, stream)
            pending = self._arrays.start(given, out, stream)
            return pending or self._from_device(given, out, stream, captured=False)

    def _refuse_recording(self, given: Feeds, out: Feeds) -> None:
        """Refuses what a caller's graph cannot hold, before any of it is recorded."""
        for name, x in (*given.items(), *out.items()):
            if why := where_else(x, self._place):
                whose = "tensors of another device" if "on the host" not in why else HOST_ARRAYS
                raise _not_recorded(f"on {whose}", given=f"{name}: {why}")
        if not given and any(s.name not in out for s in self.executable.layout.outputs):
            raise _not_recorded(
                f"that makes {HOST_ARRAYS}",
                hint="give tensors of the device for the outputs (out=)",
            )
        if not any(map(needs_conditions, self.executable.records)):
            return
        if not self.graphs.conditionals:
            raise _not_recorded(
                "with a branch or a loop",
                hint=f"{self.graphs.name} graphs have no conditional nodes",
            )
        if any(decides_on_foreign(self.graphs, r) for r in self.executable.records):
            # What they take from torch would not belong to the caller's graph.
            raise _not_recorded(
                "with a library's launches inside a branch or a loop",
                hint="run it before or behind what is recorded",
            )
        if not self._launches.made:  # what its nodes need is loaded with the first of our own
            raise _not_recorded("with a branch or a loop", hint="run once with these shapes before")

    def _run_parts(self, feeds: Feeds, out: Feeds) -> Pending:
        """A run with steps on the host, or with outputs that have no memory of their own."""
        if self.graphs.capturing_now():
            raise _not_recorded("of a model that the host takes part in")
        with self._launches.lock:  # threads count together
            if kinds := self.executable.host_kinds:
                self._policy.count_fallback(host_takes_part(kinds))
            if self._partial is not None and self._partial.reason:
                self._policy.count_fallback(self._partial.reason)
        if self._partial is None:
            return ready(self.executable.run(feeds, out))
        with self.executable.device.active(), self._launches.lock:
            self._launches.order(self.graphs.current())  # which marks the memory of graphs, too
            return ready(self.executable.run_parts(feeds, out, self._partial.launch))

    def _from_device(
        self,
        feeds: Feeds,
        out: Feeds,
        stream: int,
        recording: bool = False,
        captured: bool = True,
    ) -> Pending:
        """A run that is given its inputs one by one: tensors are among them, or it is not captured.

        recording: whether the caller records a graph, which it becomes part of.
        """

        def enqueue(memory: Memory) -> End | None:
            if recording:
                self._record_for_caller(memory, stream)
                return None
            self._launches.order(stream)
            note = self._enqueue(memory, stream) if captured else self.executable.enqueue(memory)
            mark = self._launches.marked(stream)
            return End(mark.wait, mark.reached, note)

        return started(self.executable, feeds, out, self.counts, enqueue)

    def _record_for_caller(self, memory: Memory, stream: int) -> None:
        for port, record, position, offset in self.executable.port_arguments:
            record.point(position, memory[port], offset)
        with self.graphs.lock:  # one recording at a time in a process
            for record in self.executable.records:
                if isinstance(record, ConditionalLaunch):
                    record_control(self.graphs, record, stream)
                else:
                    record.launch(stream)
        self.counts.for_callers += 1
        if self.executable.notes is not None:
            self.executable.notes.give_up()

    def _enqueue(self, memory: Memory, stream: int) -> FaultReport | None:
        """One run on some memory: a launch of the graph, of several, or of every kernel."""
        if self._partial is not None:
            self._launches.begin(stream)
            self._partial.launch(0, len(self.executable.records), memory, stream)
            self.executable.runs += 1
            return self._launches.noted()
        recorded = self._recorded
        if recorded is None and self._policy.wanted():
            recorded = self._policy.attempt(lambda: self._graph(memory))
            if recorded is not None:
                self._launches.made[TENSORS] = recorded
                self._warm_up(recorded)
        if recorded is None:
            return self.executable.enqueue(memory)
        self._launches.begin(stream)
        launch_on(self._launches, recorded, memory, stream)
        self.executable.runs += 1
        return self._launches.noted()

    def _graph(self, memory: Memory) -> CapturedGraph:
        """Return a graph of the launches: of a variant, one that other sizes had."""
        if self._sized is None:
            return self._maker.make(memory)
        again, self._had_graph = self._had_graph, True
        found = self._sized.take(self._launches, memory, again)
        if found is not None:
            return found
        made = self._sized.adopt(self._maker.make(memory), self._launches, memory)
        made.captured = True
        return made

    def _warm_up(self, recorded: CapturedGraph) -> None:
        """Let later runs take the fast path."""
        replay = try_replay(self._launches, recorded)
        if self.executable.notes is None:
            self._enqueue_tensors = self._replay_tensors = replay
            return
        reported = with_fault_report(replay, self._launches, self.executable.notes)
        self._enqueue_reported = reported
        self._replay_tensors = waited(reported)


def _checked_later(found: list[Any], note: FaultReport, mark: Mark) -> Pending:
    """A run that is looked at when its outputs are asked for."""

    def finish() -> list[Any]:
        mark.wait()
        note.check()
        return found

    return Pending(finish, mark.reached, enqueued=found)


def _not_recorded(
    what: str, given: str | None = None, hint: str = "feed tensors that are on the device"
) -> ExecutionError:
    return ExecutionError(
        f"a run {what} cannot be recorded into a caller's graph", given=given, hint=hint
    )
