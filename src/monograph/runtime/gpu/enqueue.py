"""Runs that are enqueued, kernel by kernel or as a graph, and not waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from monograph.runtime.counts import Counts
from monograph.runtime.gpu.fitting import (
    goes_to_host,
    refuse_misfit,
    why_copied,
    why_not_written,
)
from monograph.runtime.gpu.running import Running
from monograph.runtime.gpu.tensors import raw
from monograph.runtime.outputs import NOTHING
from monograph.runtime.pending import Pending

Memory = dict[str, torch.Tensor]
"""The bytes of every port."""


def started(
    executable: Running,
    feeds: Mapping[str, Any],
    out: Mapping[str, Any],
    counts: Counts | None,
    enqueue: Callable[[Memory], tuple[Callable[[], None], Callable[[], bool]] | None],
) -> Pending:
    """A run on tensors and arrays, after `enqueue` was given the memory of its ports.

    It returns how to wait for the run, and whether that would be long; None if nobody may wait.
    """
    place, layout = executable.device.place, executable.layout
    inputs = {}
    for slot in layout.inputs:
        data = feeds[slot.name]
        if isinstance(data, torch.Tensor):
            refuse_misfit(slot, data)
        _count(counts, slot.name, why_copied(data, place))
        inputs[slot.name] = executable._given(data, slot)
    outputs = executable._outputs(feeds, inputs, _usable(executable, inputs, out, counts))
    memory = {f"input:{n}": raw(t) for n, t in inputs.items()}
    memory |= {f"output:{n}": raw(t) for n, t in outputs.items()}
    end = enqueue(memory)
    as_tensors = any(isinstance(x, torch.Tensor) for x in feeds.values())

    def result(number: int) -> Any:
        slot = layout.outputs[number]
        return executable._result(slot, outputs[slot.name], out, as_tensors)

    later = [goes_to_host(out.get(s.name), as_tensors) for s in layout.outputs]
    found = [None if later[i] else result(i) for i in range(len(later))]

    def finish() -> list[Any]:
        if end is not None and (layout.faults or any(later)):
            end[0]()
            executable.check()
        return [result(i) if later[i] else x for i, x in enumerate(found)]

    return Pending(finish, lambda: end is None or end[1]())


def started_eagerly(
    executable: Running, feeds: Mapping[str, Any], out: Mapping[str, Any] = NOTHING
) -> Pending:
    """A run, every kernel launched by itself on the current stream."""

    def enqueue(memory: Memory) -> tuple[Callable[[], None], Callable[[], bool]]:
        executable.launch(memory)
        return _end_of(executable.device.place)

    with executable.device.active(), executable._lock:
        return started(executable, feeds, out, None, enqueue)


def _end_of(place: torch.device) -> tuple[Callable[[], None], Callable[[], bool]]:
    """How to wait for what the current stream was given so far, and whether it is done."""
    if place.type != "cuda":  # the host itself, which has done it
        return lambda: None, lambda: True
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(place))
    return event.synchronize, event.query


def _usable(
    executable: Running,
    inputs: Mapping[str, torch.Tensor],
    out: Mapping[str, Any],
    counts: Counts | None,
) -> dict[str, Any]:
    """What of the caller's the kernels may write to."""
    over = {s.name: s.over for s in executable.layout.outputs}
    found = {}
    for name, given in out.items():
        others = [t for n, t in inputs.items() if n != over.get(name)]
        others += [t for n, t in out.items() if n != name]
        why = why_not_written(given, others, executable.device.place)
        _count(counts, name, why)
        if not why:
            found[name] = given
    return found


def _count(counts: Counts | None, name: str, why: str) -> None:
    if why and counts is not None:
        counts.staged[f"{name}: {why}"] += 1
