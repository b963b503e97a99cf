"""The streams of a compiled module: the key of their measurement, and memory for fewer streams."""

from __future__ import annotations

import hashlib

from monograph.codegen.triton.module.kernel import Call, Work
from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.module.layout import Bound, GpuModule, lay_out
from monograph.program.legalise.lower_random import states_of
from monograph.runtime.gpu.build.launch_trees import nests
from monograph.runtime.gpu.build.stream_tuning import (
    MeasuredStreams,
    candidate_schedules,
    untried_reason,
)
from monograph.runtime.gpu.capture.capture import launch_order


def planned(module: GpuModule, measured: MeasuredStreams) -> GpuModule:
    """Return the module with memory for one stream if its graphs will use only one.

    That takes less memory.
    """
    order = launch_order(module.works)
    if order.streams == 1:
        return module
    tried = not untried_reason(bool(states_of(module.program.graph)), nests(module))
    if tried and measured.find(key_of(module), [*candidate_schedules(order)]) != 1:
        return module
    works: dict[int, list[Work]] = {}
    for bound in module.works:
        works.setdefault(bound.position, []).append(bound.work)
    chosen = [(module.steps[position], tuple(made)) for position, made in works.items()]
    return lay_out(module.program, chosen, 1, module)


def key_of(module: GpuModule) -> str:
    """Return the key of a measurement: launches, argument addresses and schedules.

    Values of constants do not matter.
    """
    launches = [(_about(bound), bound.arguments) for bound in module.every]
    tried = candidate_schedules(launch_order(module.works))
    orders = {streams: (order.stream, order.waits) for streams, order in tried.items()}
    parts = repr((launches, nests(module), orders))
    return "lanes-" + hashlib.sha256(parts.encode()).hexdigest()


def _about(bound: Bound) -> tuple[object, ...]:
    """Return what decides the duration of a launch."""
    work = bound.work
    if isinstance(work, Launch):
        return work.source, work.grid, work.warps, work.stages, work.dependent
    return (work.name,) if isinstance(work, Call) else (type(work).__name__,)
