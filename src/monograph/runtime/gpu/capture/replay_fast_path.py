"""Runs on tensors that need nothing done to them: the usual case, in as few steps as there are.

Everything that is the same in every run is looked up once, when the graph has been recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from monograph.runtime.executable import Feeds, Outputs
from monograph.runtime.gpu.bound_program import DevicePort
from monograph.runtime.gpu.capture.captured_graph import CapturedGraph
from monograph.runtime.gpu.capture.launches import HERE, TENSORS, THREAD, Launches, Mark
from monograph.runtime.gpu.device_faults import FaultReport, Notes
from monograph.runtime.gpu.driver.graphs import Graphs
from monograph.runtime.gpu.driver.torch_driver import TorchGraphs
from monograph.runtime.gpu.host_io.pinned_staging import nbytes
from monograph.runtime.gpu.memory import FAILED
from monograph.runtime.gpu.tensors import torch_type
from monograph.runtime.outputs import NOTHING

TryReplay: TypeAlias = Callable[..., "Outputs | None"]
"""Takes feeds and places for donated outputs; None where the run needs more than a launch."""
TryReplayReported: TypeAlias = Callable[..., "tuple[Outputs, FaultReport, Mark] | None"]
"""The same for a run whose data may be wrong: with what it notes of them, and its end."""
_PARTS = {torch.float16, torch.float32, torch.float64}
"""Types of the parts of complex numbers: of some of these torch only notes that they are negated,
and changes nothing in memory (the imaginary parts of what is conjugated)."""
BUSY = -1
"""In the place of a stream: it records for the caller, the device is not the current one, or the
thread is new to it."""


def decline(feeds: Feeds, out: Feeds = NOTHING, on: Any = None) -> None:
    """Return None: there is no graph yet."""


def try_replay(launches: Launches, recorded: CapturedGraph) -> TryReplay:
    """A run of a graph on dense tensors of the device, as it takes them.

    It is one long function on purpose: what a run looks up are locals of this one, and every call
    between them would cost a share of the few microseconds that a run takes the host.
    """
    layout = launches.executable.layout
    place = launches.executable.device.place
    index = place.index if place.type == "cuda" else -1
    inputs = [
        (
            s.name,
            torch.Size(s.shape),
            torch_type(s.dtype),
            torch_type(s.dtype) in _PARTS,
            recorded.aligned[f"input:{s.name}"],
        )
        for s in layout.inputs
    ]
    count = len(inputs)
    at = {s.name: i for i, s in enumerate(layout.inputs)}
    outputs = [
        (
            s.name,
            at[s.over] if s.over else -1,
            tuple(s.shape),
            strides(s.shape),
            torch_type(s.dtype),
        )
        for s in layout.outputs
    ]
    donated = {s.name for s in layout.outputs if s.over}
    in_place = _in_place(layout.inputs, [(s.name, at[s.over]) for s in layout.outputs if s.over])
    current, empty = stream_of(launches.graphs), _empty(place)
    lock, here = launches.lock, HERE
    executable, graphs, counts = launches.executable, launches.graphs, launches.counts
    kind_of_tensors, launch = torch.Tensor, graphs.launch

    def run(feeds: Feeds, out: Feeds = NOTHING) -> Outputs | None:
        if len(feeds) != count or here[0] != launches.process:
            return None
        addresses = []
        for name, shape, kind, part, aligned in inputs:
            tensor: Any = feeds.get(name)
            if (
                tensor.__class__ is not kind_of_tensors
                or tensor.dtype is not kind
                or tensor.shape != shape
                or tensor.get_device() != index
                or not tensor.is_contiguous()
                or (part and tensor.is_neg())
            ):
                return None
            address = tensor.data_ptr()
            if address % aligned:
                return None
            addresses.append(address)
        if (out or donated) and (out.keys() != donated or not in_place(feeds, out, addresses)):
            return None
        with lock:
            stream = current()
            if stream == BUSY or launches.made.get(TENSORS) is not recorded:
                return None
            if executable.last_stream != stream:
                launches.order(stream)  # before memory is asked for: it may be refused
            found = []
            for name, over, size, steps, kind in outputs:
                if over >= 0:
                    found.append(out[name])
                    addresses.append(addresses[over])
                else:
                    try:
                        made = empty(size, steps, kind)
                    except (torch.OutOfMemoryError, FAILED):
                        return None  # the long way says what is needed
                    found.append(made)
                    addresses.append(made.data_ptr())
            if addresses == recorded.addresses and executable.last_stream == stream:
                launch(recorded.executable, stream)
                counts.replays += 1
                for copied in recorded.copied:
                    counts.staged[copied] += 1
            else:
                launches.launch(recorded, addresses, stream)
            executable.runs += 1
        return found

    return run


def with_fault_report(run: TryReplay, launches: Launches, notes: Notes) -> TryReplayReported:
    """The same for a model whose data may be wrong: behind the run comes what it notes of them."""
    lock, executable = launches.lock, launches.executable
    current = stream_of(launches.graphs)

    def started(feeds: Feeds, out: Feeds = NOTHING) -> tuple[Outputs, FaultReport, Mark] | None:
        with lock:  # no other run comes in between
            if notes.doubtful:
                stream = current()
                if stream == BUSY or HERE[0] != launches.process:
                    return None
                launches.order(stream)
                notes.wipe()
            try:
                found = run(feeds, out)
                if found is None:
                    return None
                return found, notes.take(), launches.marked(executable.last_stream)
            except BaseException:
                notes.doubt()  # it may have been launched all the same
                raise

    return started


def waited(start: TryReplayReported) -> TryReplay:
    """The same, waited for and looked at."""

    def run(feeds: Feeds, out: Feeds = NOTHING) -> Outputs | None:
        made = start(feeds, out)
        if made is None:
            return None
        found, note, mark = made
        mark.wait()
        note.check()
        return found

    return run


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of elements one after the other."""
    return tuple(math.prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape)))


def _in_place(
    inputs: tuple[DevicePort, ...], states: list[tuple[str, int]]
) -> Callable[[Mapping[str, Any], Mapping[str, Any], list[int]], bool]:
    """Return a check that all state is given back in place, and that nothing overlaps it."""
    names, sizes = [s.name for s in inputs], [nbytes(s) for s in inputs]
    written = {over for _, over in states}

    def holds(feeds: Feeds, out: Feeds, addresses: list[int]) -> bool:
        for name, over in states:
            if out[name] is not feeds[names[over]]:
                return False
        end = state_end = 0
        for start, number in sorted(zip(addresses, range(len(addresses)), strict=True)):
            if start < state_end or (start < end and number in written):
                return False
            end = max(end, start + sizes[number])
            if number in written:
                state_end = start + sizes[number]
        return True

    return holds


def stream_of(graphs: Graphs) -> Callable[[], int]:
    """The current stream, where a graph can be launched into it."""
    if not isinstance(graphs, TorchGraphs):

        def current_stream() -> int:
            return BUSY if graphs.capturing_now() or not graphs.here() else graphs.current()

        return current_stream
    index = graphs.index
    current, here = torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice
    capturing = torch._C._cuda_isCurrentStreamCapturing

    def looked_at() -> int:
        if not THREAD.ready:
            return BUSY
        stream = current(index)
        # The default stream cannot record.
        return BUSY if here() != index or (stream and capturing()) else int(stream)

    return looked_at


def _empty(place: torch.device) -> Callable[[Any, Any, torch.dtype], torch.Tensor]:
    """Return what makes a tensor on the current device: torch's short cut, if it has one."""
    short: Any = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    if place.type == "cuda" and short is not None:
        found: Callable[[Any, Any, torch.dtype], torch.Tensor] = short
        return found

    def made(size: Any, steps: Any, kind: torch.dtype) -> torch.Tensor:
        # With strides it is made in half the time.
        return torch.empty_strided(size, steps, dtype=kind, device=place)

    return made
