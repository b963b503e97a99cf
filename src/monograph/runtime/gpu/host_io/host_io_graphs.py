"""Runs on arrays of the host: one launch, with copies inside or kernels that reach that far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from monograph.errors import ConfigError, ExecutionError
from monograph.runtime.executable import Feeds, Outputs
from monograph.runtime.gpu.capture.capture import Place, Recording, places_of
from monograph.runtime.gpu.capture.capture_policy import Attempts
from monograph.runtime.gpu.capture.captured_graph import GraphBuilder, Recorded
from monograph.runtime.gpu.capture.launches import ARRAYS, HERE, Launches, enter
from monograph.runtime.gpu.capture.replay_fast_path import BUSY, stream_of
from monograph.runtime.gpu.device_faults import FaultReport
from monograph.runtime.gpu.driver.graphs import (
    TO_DEVICE,
    TO_HOST,
    CopyNode,
    GraphError,
    Graphs,
    Start,
)
from monograph.runtime.gpu.host_io.deferred_free import IDLE, LAUNCHED, MARKED
from monograph.runtime.gpu.host_io.overlapped_upload import SECONDS, Arrivals, can_arrive
from monograph.runtime.gpu.host_io.pinned_inputs import Fetching
from monograph.runtime.gpu.host_io.pinned_staging import Ring, Slab, SlabLayout
from monograph.runtime.gpu.host_io.transfer_policy import (
    AUTO,
    DIRECT,
    PLAIN,
    WAYS,
    Measured,
    TransferMode,
    fastest,
    nearest,
    rivals,
    time_all,
)
from monograph.runtime.outputs import NOTHING, refuse_unlike
from monograph.runtime.pending import Pending, interrupted

ALL_GATHERED: Mapping[str, int] = {}
SLAB = "slab"
"""The one address of such a graph that moves."""


class HostRuns:
    """The runs of an executable on arrays of the host."""

    def __init__(
        self,
        launches: Launches,
        maker: GraphBuilder,
        attempts: Attempts,
        host: str = AUTO,
        measured: Measured | None = None,
        locks: bool = True,
    ) -> None:
        """locks: whether arrays of callers that come back may be locked in memory."""
        if host not in WAYS:
            raise ConfigError("unknown way for host data", expected=" | ".join(WAYS), given=host)
        self.ring = Ring(launches.executable.layout, launches.graphs)
        self._launches = launches
        self._maker = maker
        self._attempts = attempts
        self._host = host
        self._measured = measured
        self._stream = stream_of(launches.graphs)
        slabs = self.ring.layout
        self._arrivals = Arrivals(slabs.spans(), slabs.in_to)
        self._narrowing = Arrivals(slabs.spans(), slabs.in_to, slabs.narrowed, slabs.narrow_to)
        layout = launches.executable.layout
        self._fetching = Fetching(launches, layout)
        if not locks or host != AUTO:
            self._fetching.possible = False
        self._inputs = [(s.name, s.shape, s.dtype.numpy) for s in layout.inputs]

    def try_replay(self, feeds: Feeds) -> Outputs | None:
        """Replay on arrays that fit, if there is a graph already; else return None."""
        pending = self.try_start(feeds, stays=True)
        return None if pending is None else pending.result()

    def try_start(self, feeds: Feeds, stays: bool = False) -> Pending | None:
        """Enqueue the same run; stays: the caller leaves the arrays alone until it is done."""
        launches = self._launches
        recorded = launches.made.get(ARRAYS)
        if recorded is None or len(feeds) != len(self._inputs) or HERE[0] != launches.process:
            return None
        given = {}  # a mapping may make its arrays when it is asked: these are the ones to take
        for name, shape, kind in self._inputs:
            array = given[name] = feeds.get(name)
            if array.__class__ is not np.ndarray or array.shape != shape or array.dtype != kind:
                return None
        with launches.lock:
            stream = self._stream()
            if stream == BUSY or launches.made.get(ARRAYS) is not recorded:
                return None
            if stays and self._fetching.possible:
                if launches.executable.last_stream != stream:
                    launches.order(stream)  # before anything is locked or made: it may be refused
                addresses = self._fetching.addresses(given)
                make = partial(self._fetches, TransferMode(writes=recorded.writes))
                fetches = addresses and self._fetching.graph(addresses, make)
                if addresses and fetches:
                    return self._launch(fetches, given, NOTHING, stream, True, addresses)
            return self._launch(recorded, given, NOTHING, stream, fits=True)

    def _fetches(self, way: TransferMode, own: Mapping[str, int]) -> Recorded:
        """A graph that fetches arrays from where they are."""
        return hosted(self._maker, self.ring.layout, self.ring.take(), way, own)

    def start(
        self, feeds: Mapping[str, Any], out: Mapping[str, Any], stream: int
    ) -> Pending | None:
        """A run that was enqueued; None where there can be no graph for it."""
        for slot in self._launches.executable.layout.outputs:
            if slot.name in out:
                refuse_unlike(slot.name, out[slot.name], slot.shape, slot.dtype.numpy)
        recorded = self._graph(stream)
        return None if recorded is None else self._launch(recorded, feeds, out, stream)

    def _launch(
        self,
        recorded: Recorded,
        feeds: Mapping[str, Any],
        out: Mapping[str, Any],
        stream: int,
        fits: bool = False,
        addresses: Sequence[int] = (),
    ) -> Pending:
        """addresses: where the device fetches the large ones of the arrays by itself."""
        if self._launches.executable.last_stream != stream:
            self._launches.order(stream)  # before memory is asked for: it may be refused
        slab = self.ring.take()
        try:
            self._launches.begin(stream)
            if addresses:
                start = None
                slab.fill_fitting(feeds, self._fetching.large)
                slab.use.held = feeds
                self._launches.counts.fetched += 1
            else:
                start = self._fill(recorded, slab, feeds, stream, fits)
            slab.use.state = LAUNCHED
            self._launches.launch(recorded, [slab.address, *addresses], stream, start)
            self._launches.executable.runs += 1
            note = self._launches.noted()
            self._launches.graphs.record(slab.event, stream)
            slab.use.state = MARKED
            return self._pending(slab, out, note)
        except BaseException as error:
            self._clear_up(slab, stream, error)
            raise

    def _clear_up(self, slab: Slab, stream: int, error: BaseException | None = None) -> None:
        """Sees to the slab of a launch that went wrong."""
        graphs = self._launches.graphs
        if error is not None and not isinstance(error, Exception):
            self.ring.lose(slab)  # interrupted: nobody knows whether a graph uses it now
            slab.use.state = LAUNCHED
            with suppress(Exception):  # else it is kept for ever
                graphs.record(slab.event, stream)
                slab.use.state = MARKED
            return
        if slab.use.state != IDLE:  # it may have been launched all the same
            try:
                graphs.record(slab.event, stream)
                graphs.finish(slab.event)
            except Exception:
                self.ring.lose(slab)
                return
        slab.start_over()  # what has arrived, no graph has taken
        slab.leave()

    def _fill(
        self,
        recorded: Recorded,
        slab: Slab,
        feeds: Mapping[str, Any],
        stream: int,
        fits: bool,
    ) -> Start | None:
        """Takes the inputs, and sends them ahead where the graph does not fetch them.

        fits: whether they are known to be arrays of the right types and shapes. Returned is what
        launches the graph, where that takes the inputs, too.
        """
        if recorded.narrowed:
            self._narrowing.aim(slab.address, slab.control, *slab.dense(feeds))
            return self._narrowing
        if not recorded.ahead:
            if not fits:
                slab.fill(feeds)
            elif not recorded.early:
                slab.fill_fitting(feeds)
            if not recorded.early:
                return None
            self._arrivals.aim(slab.address, slab.control, slab.addresses(feeds) if fits else ())
            return self._arrivals
        if self._launches.executable.last_stream != stream:
            self._launches.order(stream)
        send, to, source = self._launches.graphs.send, recorded.ahead, slab.address
        slab.fill_ahead(feeds, lambda at, count: send(stream, to + at, source + at, count))
        return None

    def _pending(self, slab: Slab, out: Mapping[str, Any], note: FaultReport | None) -> Pending:
        """note: what the run finds wrong with its data."""
        graphs, device = self._launches.graphs, self._launches.executable.device
        turn, lose = slab.turn, self.ring.lose

        def finish() -> list[Any]:
            if slab.turn != turn:  # an interrupt came between the release below and the caller
                raise interrupted()
            enter(device)
            try:
                graphs.finish(slab.event)
            except Exception:  # nobody knows whether the run has ended
                lose(slab)
                raise
            try:
                if slab.came_late():
                    slab.start_over()
                    raise _late()
                if note is not None:
                    note.check()
                made = slab.results(out)
            except Exception:  # a run that failed has ended too
                slab.leave()
                raise
            # An interrupt leaves the run its slab: it goes on, and whoever asks again, a caller
            # or the ring, waits again.
            slab.leave()
            return made

        def done() -> bool:
            enter(device)
            return graphs.done(slab.event)

        slab.user = Pending(finish, done, repeatable=True)
        return slab.user

    def _graph(self, stream: int) -> Recorded | None:
        """The graph for such runs, recorded now if not before; None if it cannot be."""
        found = self._launches.made.get(ARRAYS)
        if found is not None or not self._attempts.wanted():
            return found
        slab = self.ring.take()
        try:
            self._launches.order(stream)
            found = self._attempts.attempt(lambda: self._chosen(slab, stream))
        except BaseException as error:
            self._clear_up(slab, stream, error)
            raise
        if slab.use.state != IDLE:  # what failed was a trial
            self._clear_up(slab, stream)
        if found is not None:
            self._launches.made[ARRAYS] = found
        return found

    def _chosen(self, slab: Slab, stream: int) -> Recorded:
        """The graph of the way that is fastest: known, or measured now on scratch memory."""
        make = partial(hosted, self._maker, self.ring.layout, slab)
        executable = self._launches.executable
        donates = any(s.over for s in executable.layout.outputs)
        if donates or not self._maker.all_exact:  # libraries are given tensors of the device
            return make(PLAIN)
        if self._host != AUTO:
            return make(TransferMode(True, True) if self._host == DIRECT else PLAIN)
        known = PLAIN if self._measured is None else self._measured.find(executable.layout)
        # What a state or a loop would make of scratch numbers, nobody knows.
        if known is not None or executable.held or executable.layout.nests:
            return make(nearest(known or PLAIN, self._rivals))
        return self._fastest(slab, stream)

    @property
    def _rivals(self) -> tuple[TransferMode, ...]:
        return rivals(self.ring.layout, self._launches.graphs.arrives)

    def _fastest(self, slab: Slab, stream: int) -> Recorded:
        assert self._measured is not None
        executable, graphs = self._launches.executable, self._launches.graphs
        made: dict[TransferMode, Recorded] = {}
        feeds = {name: np.zeros(shape, kind) for name, shape, kind in self._inputs}

        def run(recorded: Recorded) -> None:
            start = self._fill(recorded, slab, feeds, stream, True)
            slab.use.state = LAUNCHED
            if start is None:
                graphs.launch(recorded.executable, stream)
            else:
                graphs.start(recorded.executable, stream, start)
            graphs.record(slab.event, stream)
            graphs.finish(slab.event)
            slab.use.state = IDLE
            if slab.came_late():  # and taken so long that it cannot win
                slab.start_over()

        try:
            for way in self._rivals:
                made[way] = hosted(self._maker, self.ring.layout, slab, way)
            try:
                times = time_all({way: partial(run, recorded) for way, recorded in made.items()})
            finally:
                if executable.notes is not None:
                    executable.notes.doubt()  # the scratch numbers are no fault of the caller's
            if can_arrive():  # else some rivals were held back, for this process only
                self._measured.keep(executable.layout, times)
            return made.pop(fastest(times))
        finally:
            for recorded in made.values():
                recorded.close()


def hosted(
    maker: GraphBuilder,
    layout: SlabLayout,
    slab: Slab,
    way: TransferMode,
    own: Mapping[str, int] = ALL_GATHERED,
) -> Recorded:
    """A graph of which a slab is all that moves, and arrays of the caller's: `own`, by port."""
    graphs = maker.graphs
    place = maker.executable.device.place
    block = torch.empty(layout.nbytes, dtype=torch.uint8, device=place)
    memory, here = layout.memory(block), layout.memory(slab.block)
    direct = {
        name: offset
        for name, (offset, _) in layout.ports().items()
        if (way.reads if name.startswith("input:") else way.writes)
    }
    memory |= {name: here[name] for name in direct}
    start, first, last = block.data_ptr(), layout.in_to, layout.nbytes - layout.out_from
    at = layout.out_from
    brings = first and not way.reads and not way.ahead
    control = slab.control if way.early else 0
    narrow = (layout.narrowed, layout.narrow_to) if way.narrowed else ()
    copy = CopyNode(start, slab.address, first, TO_DEVICE, control, *narrow)
    bring = {"before": copy} if brings else {}
    fetch = {"after": CopyNode(slab.address + at, start + at, last, TO_HOST)}
    if own:
        bring = _one_by_one(layout, slab, start, own)
    recorder, taken = maker.fixed(memory, bring, {} if way.writes or not last else fetch)
    try:
        places = _places_of_copies(graphs, taken, layout, {SLAB: slab.address, **own}, way)
        if direct:
            found = places_of(maker.executable, graphs, taken, maker.exact, memory)
            for port, offset in direct.items():
                places[SLAB] += [(p, w, offset + behind) for p, w, behind in found.get(port, ())]
        made = Recorded(graphs, taken, places, {SLAB: slab.address, **own})
    except BaseException:
        taken.graph.close()
        raise
    made.kept += [recorder.pool, block]
    made.ahead = start if way.ahead else 0
    made.early, made.narrowed = way.early, way.narrowed
    made.writes = way.writes
    return made


def _one_by_one(
    layout: SlabLayout, slab: Slab, start: int, own: Mapping[str, int]
) -> dict[str, CopyNode]:
    """A copy of each input: from an array of the caller's, or from the slab."""
    inputs = {port: place for port, place in layout.ports().items() if port.startswith("input:")}
    return {
        port: CopyNode(start + at, own.get(port, slab.address + at), count, TO_DEVICE)
        for port, (at, count) in inputs.items()
        if count
    }


def _places_of_copies(
    graphs: Graphs,
    taken: Recording,
    layout: SlabLayout,
    addresses: Mapping[str, int],
    way: TransferMode,
) -> dict[str, list[Place]]:
    """Where addresses stand in what brings inputs and fetches outputs, by what moves."""
    early = [(1, 0, 0), (2, 0, layout.control)]
    expected = {
        "before": early if way.early else [(0, 8, 0)],
        "after": [(0, 0, layout.out_from)],
    }
    for port, (at, _) in layout.ports().items():
        expected[port] = [(0, 8, 0 if port in addresses else at)]
    found: dict[str, list[Place]] = {name: [] for name in addresses}
    for name, node in taken.edges.items():
        params = graphs.read(node)
        whose = name if name in addresses else SLAB
        for blob, at, offset in expected[name]:
            word = None if params is None else params.word(blob, at)
            if params is None or word is None or word.value != addresses[whose] + offset:
                raise GraphError("a copy was not recorded as what it is")
            found[whose].append((params, word, offset))
    return found


def _late() -> ExecutionError:
    return ExecutionError(
        f"the device waited {SECONDS} s for arrays of the host in vain",
        hint="was the process stopped, or is a tool running kernels one by one? "
        "CUDA_LAUNCH_BLOCKING=1 has inputs copied before anything is launched",
    )
