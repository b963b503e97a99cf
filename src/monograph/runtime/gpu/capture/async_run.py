"""Runs that are enqueued, kernel by kernel or as a graph, and not waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from monograph.errors import ConfigError
from monograph.runtime.counts import Counts
from monograph.runtime.executable import Feeds, Stream
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.device_faults import FaultReport
from monograph.runtime.gpu.memory import told_of_failure
from monograph.runtime.gpu.ports import (
    imported,
    lands_on_host,
    refuse_misfit,
    why_copied,
    why_copied_back,
    why_not_written,
)
from monograph.runtime.gpu.tensors import raw
from monograph.runtime.outputs import NOTHING
from monograph.runtime.pending import Pending, ready

Memory = dict[str, torch.Tensor]
"""The bytes of every port."""


class End(NamedTuple):
    """The end of a run that was enqueued."""

    wait: Callable[[], None]
    reached: Callable[[], bool]
    note: FaultReport | None
    """The data faults of the run."""


def started(
    executable: GpuProgram,
    feeds: Feeds,
    out: Feeds,
    counts: Counts | None,
    enqueue: Callable[[Memory], End | None],
) -> Pending:
    """A run on tensors and arrays, after `enqueue` was given the memory of its ports.

    It returns the end of the run; None if nobody may wait for it.
    """
    place, layout = executable.device.place, executable.layout
    inputs = {}
    for slot in layout.inputs:
        data = feeds[slot.name]
        if isinstance(data, torch.Tensor):
            refuse_misfit(slot, data)
        _count(counts, slot.name, why_copied(data, place))
        inputs[slot.name] = executable.input_tensor(data, slot)
    outputs = executable.output_tensors(feeds, inputs, _usable(executable, inputs, out, counts))
    memory = {f"input:{n}": raw(t) for n, t in inputs.items()}
    memory |= {f"output:{n}": raw(t) for n, t in outputs.items()}
    end = enqueue(memory)
    as_tensors = any(isinstance(x, torch.Tensor) for x in feeds.values())

    def result(number: int) -> Any:
        slot = layout.outputs[number]
        return executable.result(slot, outputs[slot.name], out, as_tensors)

    later = [lands_on_host(out.get(s.name), as_tensors) for s in layout.outputs]
    found = [None if later[i] else result(i) for i in range(len(later))]

    def finish() -> list[Any]:
        with told_of_failure():
            if end is not None and (end.note is not None or any(later)):
                end.wait()
                if end.note is not None:
                    end.note.check()
            return [result(i) if later[i] else x for i, x in enumerate(found)]

    return Pending(finish, lambda: end is None or end.reached())


def start_on_stream(
    executable: GpuProgram, feeds: Feeds, out: Feeds = NOTHING, stream: Stream = None
) -> Pending:
    """Enqueue a run kernel by kernel on the current stream, or the one given.

    If the host takes part in the run, it has ended before this returns.
    """
    executable.check_process()
    given = {name: imported(x) for name, x in feeds.items()}
    place = executable.device.place
    with ExitStack() as stack:
        if stream is not None:
            if place.type != "cuda":
                raise ConfigError("there are no streams here", given=str(stream))
            user = torch.cuda.ExternalStream(stream_number(stream), place)
            for tensor in (*given.values(), *out.values()):
                if isinstance(tensor, torch.Tensor) and tensor.device == place:
                    tensor.record_stream(user)
            stack.enter_context(torch.cuda.stream(user))
        if not executable.whole:
            return ready(executable.run(given, out))
        return started_eagerly(executable, given, out)


def stream_number(stream: Stream) -> int:
    """Return the driver's number of a torch stream; a number is returned as it is."""
    number: Stream = getattr(stream, "cuda_stream", stream)
    return int(number)


def started_eagerly(executable: GpuProgram, feeds: Feeds, out: Feeds = NOTHING) -> Pending:
    """Enqueue a run on the current stream, every kernel as its own launch."""

    def enqueue(memory: Memory) -> End:
        note = executable.enqueue(memory)
        return _end_of(executable.device.place, note)

    with told_of_failure(), executable.device.active(), executable.lock:
        return started(executable, feeds, out, None, enqueue)


def _end_of(place: torch.device, note: FaultReport | None) -> End:
    """The end of what the current stream was given so far."""
    if place.type != "cuda":  # the host itself, which has done it
        return End(lambda: None, lambda: True, note)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(place))
    return End(event.synchronize, event.query, note)


def _usable(
    executable: GpuProgram,
    inputs: Mapping[str, torch.Tensor],
    out: Feeds,
    counts: Counts | None,
) -> dict[str, Any]:
    """Return the caller's memory that kernels may write to."""
    over = {s.name: s.over for s in executable.layout.outputs}
    found = {}
    for name, given in out.items():
        others = [t for n, t in inputs.items() if n != over.get(name)]
        others += [t for n, t in out.items() if n != name]
        why = why_not_written(given, others, executable.device.place)
        _count(counts, name, why or why_copied_back(given, executable.device.place))
        if not why:
            found[name] = given
    return found


def _count(counts: Counts | None, name: str, why: str) -> None:
    if why and counts is not None:
        counts.staged[f"{name}: {why}"] += 1
