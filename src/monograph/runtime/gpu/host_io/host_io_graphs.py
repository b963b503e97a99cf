"""Runs on host arrays: one launch, with copies in the graph or kernels that access host memory."""

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
from monograph.runtime.gpu.capture.capture_policy import CapturePolicy
from monograph.runtime.gpu.capture.captured_graph import CapturedGraph, GraphBuilder
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
from monograph.runtime.gpu.host_io.overlapped_upload import SECONDS, OverlappedUpload, can_overlap
from monograph.runtime.gpu.host_io.pinned_arrays import PinnedInputs
from monograph.runtime.gpu.host_io.pinned_staging import (
    IDLE,
    LAUNCHED,
    MARKED,
    Ring,
    StagingBuffer,
    StagingLayout,
)
from monograph.runtime.gpu.host_io.transfer_policy import (
    AUTO,
    CHOICES,
    DIRECT,
    PLAIN,
    MeasuredTransferModes,
    TransferMode,
    candidate_modes,
    fastest,
    nearest,
    time_all,
)
from monograph.runtime.outputs import NOTHING, refuse_unlike
from monograph.runtime.pending import Pending, interrupted

ALL_GATHERED: Mapping[str, int] = {}
STAGING = "staging"
"""Key of the staging buffer among the addresses of a graph."""


class HostRuns:
    """The runs of an executable on host arrays."""

    def __init__(
        self,
        launches: Launches,
        maker: GraphBuilder,
        policy: CapturePolicy,
        host: str = AUTO,
        measured: MeasuredTransferModes | None = None,
        locks: bool = True,
    ) -> None:
        """Set up the runs. `locks`: arrays that are fed again may be pinned."""
        if host not in CHOICES:
            raise ConfigError(
                "unknown option for host data", expected=" | ".join(CHOICES), given=host
            )
        self.ring = Ring(launches.executable.layout, launches.graphs)
        self._launches = launches
        self._maker = maker
        self._policy = policy
        self._host = host
        self._measured = measured
        self._stream = stream_of(launches.graphs)
        staging = self.ring.layout
        self._upload = OverlappedUpload(staging.spans(), staging.in_to)
        self._downcast_upload = OverlappedUpload(
            staging.spans(), staging.in_to, staging.narrowed, staging.narrow_to
        )
        layout = launches.executable.layout
        self._pinned = PinnedInputs(launches, layout)
        if not locks or host != AUTO:
            self._pinned.possible = False
        self._inputs = [(s.name, s.shape, s.dtype.numpy) for s in layout.inputs]

    def try_replay(self, feeds: Feeds) -> Outputs | None:
        """Replay on arrays that fit, if there is a graph already; else return None."""
        pending = self.try_start(feeds, stays=True)
        return None if pending is None else pending.result()

    def try_start(self, feeds: Feeds, stays: bool = False) -> Pending | None:
        """Enqueue the same run. `stays`: the caller does not change the arrays until it is done."""
        launches = self._launches
        recorded = launches.made.get(ARRAYS)
        if recorded is None or len(feeds) != len(self._inputs) or HERE[0] != launches.process:
            return None
        given = {}  # a mapping may create its arrays on access
        for name, shape, kind in self._inputs:
            array = given[name] = feeds.get(name)
            if array.__class__ is not np.ndarray or array.shape != shape or array.dtype != kind:
                return None
        with launches.lock:
            stream = self._stream()
            if stream == BUSY or launches.made.get(ARRAYS) is not recorded:
                return None
            if stays and self._pinned.possible:
                if launches.executable.last_stream != stream:
                    launches.order(stream)  # first: it may be refused
                addresses = self._pinned.addresses(given)
                make = partial(self._pinned_graph, TransferMode(writes=recorded.writes))
                fetches = addresses and self._pinned.graph(addresses, make)
                if addresses and fetches:
                    return self._launch(fetches, given, NOTHING, stream, True, addresses)
            return self._launch(recorded, given, NOTHING, stream, fits=True)

    def _pinned_graph(self, mode: TransferMode, own: Mapping[str, int]) -> CapturedGraph:
        """Build a graph that reads pinned arrays."""
        return build_graph(self._maker, self.ring.layout, self.ring.take(), mode, own)

    def start(
        self, feeds: Mapping[str, Any], out: Mapping[str, Any], stream: int
    ) -> Pending | None:
        """Enqueue a run; return None if there can be no graph for it."""
        for slot in self._launches.executable.layout.outputs:
            if slot.name in out:
                refuse_unlike(slot.name, out[slot.name], slot.shape, slot.dtype.numpy)
        recorded = self._graph(stream)
        return None if recorded is None else self._launch(recorded, feeds, out, stream)

    def _launch(
        self,
        recorded: CapturedGraph,
        feeds: Mapping[str, Any],
        out: Mapping[str, Any],
        stream: int,
        fits: bool = False,
        addresses: Sequence[int] = (),
    ) -> Pending:
        """Enqueue a run. `addresses`: pinned arrays that the device reads directly."""
        if self._launches.executable.last_stream != stream:
            self._launches.order(stream)  # first: it may be refused
        staging = self.ring.take()
        try:
            self._launches.begin(stream)
            if addresses:
                start = None
                staging.fill_fitting(feeds, self._pinned.large)
                staging.use.held = feeds
                self._launches.counts.fetched += 1
            else:
                start = self._fill(recorded, staging, feeds, stream, fits)
            staging.use.state = LAUNCHED
            self._launches.launch(recorded, [staging.address, *addresses], stream, start)
            self._launches.executable.runs += 1
            note = self._launches.noted()
            self._launches.graphs.record(staging.event, stream)
            staging.use.state = MARKED
            return self._pending(staging, out, note)
        except BaseException as error:
            self._clear_up(staging, stream, error)
            raise

    def _clear_up(
        self, staging: StagingBuffer, stream: int, error: BaseException | None = None
    ) -> None:
        """Release the staging buffer of a launch that failed."""
        graphs = self._launches.graphs
        if error is not None and not isinstance(error, Exception):
            self.ring.abandon(staging)  # interrupted: a graph may be using it now
            staging.use.state = LAUNCHED
            with suppress(Exception):  # else it is kept forever
                graphs.record(staging.event, stream)
                staging.use.state = MARKED
            return
        if staging.use.state != IDLE:  # it may have been launched nevertheless
            try:
                graphs.record(staging.event, stream)
                graphs.finish(staging.event)
            except Exception:
                self.ring.abandon(staging)
                return
        staging.reset_flags()  # no graph has read what arrived
        staging.release()

    def _fill(
        self,
        recorded: CapturedGraph,
        staging: StagingBuffer,
        feeds: Mapping[str, Any],
        stream: int,
        fits: bool,
    ) -> Start | None:
        """Copy the inputs, and upload them where the graph does not.

        fits: they are arrays of the right types and shapes. Returns the function that launches the
        graph, if that also copies the inputs.
        """
        if recorded.narrowed:
            self._downcast_upload.aim(staging.address, staging.control, *staging.dense(feeds))
            return self._downcast_upload
        if not recorded.upload_address:
            if not fits:
                staging.fill(feeds)
            elif not recorded.overlapped:
                staging.fill_fitting(feeds)
            if not recorded.overlapped:
                return None
            self._upload.aim(
                staging.address, staging.control, staging.addresses(feeds) if fits else ()
            )
            return self._upload
        if self._launches.executable.last_stream != stream:
            self._launches.order(stream)
        send, to, source = self._launches.graphs.send, recorded.upload_address, staging.address
        staging.fill_in_pieces(feeds, lambda at, count: send(stream, to + at, source + at, count))
        return None

    def _pending(
        self, staging: StagingBuffer, out: Mapping[str, Any], note: FaultReport | None
    ) -> Pending:
        """Return the pending run. `note`: its device fault report."""
        graphs, device = self._launches.graphs, self._launches.executable.device
        turn, lose = staging.turn, self.ring.abandon

        def finish() -> list[Any]:
            if staging.turn != turn:  # an interrupt came between the release below and the caller
                raise interrupted()
            enter(device)
            try:
                graphs.finish(staging.event)
            except Exception:  # nobody knows whether the run has ended
                lose(staging)
                raise
            try:
                if staging.timed_out():
                    staging.reset_flags()
                    raise _late()
                if note is not None:
                    note.check()
                made = staging.results(out)
            except Exception:  # a run that failed has ended too
                staging.release()
                raise
            # After an interrupt the run keeps its buffer and goes on: the next call waits again.
            staging.release()
            return made

        def done() -> bool:
            enter(device)
            return graphs.done(staging.event)

        staging.user = Pending(finish, done, repeatable=True)
        return staging.user

    def _graph(self, stream: int) -> CapturedGraph | None:
        """Return the graph of such runs, built now if necessary; None if it cannot be built."""
        found = self._launches.made.get(ARRAYS)
        if found is not None or not self._policy.wanted():
            return found
        staging = self.ring.take()
        try:
            self._launches.order(stream)
            found = self._policy.attempt(lambda: self._chosen(staging, stream))
        except BaseException as error:
            self._clear_up(staging, stream, error)
            raise
        if staging.use.state != IDLE:  # a trial failed
            self._clear_up(staging, stream)
        if found is not None:
            self._launches.made[ARRAYS] = found
        return found

    def _chosen(self, staging: StagingBuffer, stream: int) -> CapturedGraph:
        """Build the graph of the fastest mode, which is known or measured now on scratch memory."""
        make = partial(build_graph, self._maker, self.ring.layout, staging)
        executable = self._launches.executable
        donates = any(s.over for s in executable.layout.outputs)
        if donates or not self._maker.all_exact:  # libraries need device tensors
            return make(PLAIN)
        if self._host != AUTO:
            return make(TransferMode(True, True) if self._host == DIRECT else PLAIN)
        known = PLAIN if self._measured is None else self._measured.find(executable.layout)
        # State and loops could misbehave on scratch data.
        if known is not None or executable.held or executable.layout.nests:
            return make(nearest(known or PLAIN, self._candidates))
        return self._fastest(staging, stream)

    @property
    def _candidates(self) -> tuple[TransferMode, ...]:
        return candidate_modes(self.ring.layout, self._launches.graphs.waits_for_inputs)

    def _fastest(self, staging: StagingBuffer, stream: int) -> CapturedGraph:
        assert self._measured is not None
        executable, graphs = self._launches.executable, self._launches.graphs
        made: dict[TransferMode, CapturedGraph] = {}
        feeds = {name: np.zeros(shape, kind) for name, shape, kind in self._inputs}

        def run(recorded: CapturedGraph) -> None:
            start = self._fill(recorded, staging, feeds, stream, True)
            staging.use.state = LAUNCHED
            if start is None:
                graphs.launch(recorded.executable, stream)
            else:
                graphs.start(recorded.executable, stream, start)
            graphs.record(staging.event, stream)
            graphs.finish(staging.event)
            staging.use.state = IDLE
            if staging.timed_out():  # too slow to win
                staging.reset_flags()

        try:
            for mode in self._candidates:
                made[mode] = build_graph(self._maker, self.ring.layout, staging, mode)
            try:
                times = time_all({mode: partial(run, recorded) for mode, recorded in made.items()})
            finally:
                if executable.notes is not None:
                    executable.notes.doubt()  # faults in scratch data are not the caller's
            if can_overlap():  # else some modes were not tried, in this process only
                self._measured.keep(executable.layout, times)
            return made.pop(fastest(times))
        finally:
            for recorded in made.values():
                recorded.close()


def build_graph(
    maker: GraphBuilder,
    layout: StagingLayout,
    staging: StagingBuffer,
    mode: TransferMode,
    own: Mapping[str, int] = ALL_GATHERED,
) -> CapturedGraph:
    """Build a graph whose only moving address is a staging buffer, and `own` arrays by port."""
    graphs = maker.graphs
    place = maker.executable.device.place
    block = torch.empty(layout.nbytes, dtype=torch.uint8, device=place)
    memory, here = layout.memory(block), layout.memory(staging.block)
    direct = {
        name: offset
        for name, (offset, _) in layout.ports().items()
        if (mode.reads if name.startswith("input:") else mode.writes)
    }
    memory |= {name: here[name] for name in direct}
    start, first, last = block.data_ptr(), layout.in_to, layout.nbytes - layout.out_from
    at = layout.out_from
    brings = first and not mode.reads and not mode.pieces
    control = staging.control if mode.overlapped else 0
    narrow = (layout.narrowed, layout.narrow_to) if mode.narrowed else ()
    copy = CopyNode(start, staging.address, first, TO_DEVICE, control, *narrow)
    bring = {"before": copy} if brings else {}
    fetch = {"after": CopyNode(staging.address + at, start + at, last, TO_HOST)}
    if own:
        bring = _copy_each(layout, staging, start, own)
    recorder, taken = maker.fixed(memory, bring, {} if mode.writes or not last else fetch)
    try:
        places = _places_of_copies(graphs, taken, layout, {STAGING: staging.address, **own}, mode)
        if direct:
            found = places_of(maker.executable, graphs, taken, maker.exact, memory)
            for port, offset in direct.items():
                places[STAGING] += [(p, w, offset + behind) for p, w, behind in found.get(port, ())]
        made = CapturedGraph(graphs, taken, places, {STAGING: staging.address, **own})
    except BaseException:
        taken.graph.close()
        raise
    made.kept += [recorder.pool, block]
    made.upload_address = start if mode.pieces else 0
    made.overlapped, made.narrowed = mode.overlapped, mode.narrowed
    made.writes = mode.writes
    return made


def _copy_each(
    layout: StagingLayout, staging: StagingBuffer, start: int, own: Mapping[str, int]
) -> dict[str, CopyNode]:
    """Return a copy of each input, from a caller's array or from the staging buffer."""
    inputs = {port: place for port, place in layout.ports().items() if port.startswith("input:")}
    return {
        port: CopyNode(start + at, own.get(port, staging.address + at), count, TO_DEVICE)
        for port, (at, count) in inputs.items()
        if count
    }


def _places_of_copies(
    graphs: Graphs,
    taken: Recording,
    layout: StagingLayout,
    addresses: Mapping[str, int],
    mode: TransferMode,
) -> dict[str, list[Place]]:
    """Return the pointer parameters of the copies, by what moves."""
    early = [(1, 0, 0), (2, 0, layout.control)]
    expected = {
        "before": early if mode.overlapped else [(0, 8, 0)],
        "after": [(0, 0, layout.out_from)],
    }
    for port, (at, _) in layout.ports().items():
        expected[port] = [(0, 8, 0 if port in addresses else at)]
    found: dict[str, list[Place]] = {name: [] for name in addresses}
    for name, node in taken.edges.items():
        params = graphs.read(node)
        whose = name if name in addresses else STAGING
        for blob, at, offset in expected[name]:
            word = None if params is None else params.word(blob, at)
            if params is None or word is None or word.value != addresses[whose] + offset:
                raise GraphError("a copy was recorded with unexpected addresses")
            found[whose].append((params, word, offset))
    return found


def _late() -> ExecutionError:
    return ExecutionError(
        f"the device waited {SECONDS} s for host arrays, and gave up",
        hint="was the process stopped, or is a tool running kernels one by one? "
        "CUDA_LAUNCH_BLOCKING=1 has inputs copied before anything is launched",
    )
