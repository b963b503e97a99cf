"""The layout of a compiled module: what its runs need to know, as plain data."""

from __future__ import annotations

from typing import Any

from monograph.codegen.triton.module.layout import GpuModule
from monograph.program.fusion.op_classes import is_native
from monograph.program.legalise.lower_random import states_of
from monograph.program.legalise.normalise import cast_first
from monograph.program.memory.buffer_assignment import OUTPUT
from monograph.program.program import Program
from monograph.program.work import program_work
from monograph.runtime.gpu.bound_program import DeviceFaultText, DevicePort, GpuLayout
from monograph.runtime.gpu.build.launch_trees import nests
from monograph.runtime.gpu.build.stream_plans import key_of
from monograph.runtime.gpu.capture.capture import launch_order


def layout_of(module: GpuModule) -> GpuLayout:
    """Return what runs of a module need to know."""
    program = module.program
    buffers = program.places.buffers
    over = program.donated
    states = states_of(program.graph)
    used = {p.buffer.name for p in _outputs(program) if p is not None and p.buffer.kind == OUTPUT}
    order = {name: i for i, (name, _) in enumerate(program.graph.outputs)}
    work = program_work(program)
    narrowed = cast_first(program.graph)
    return GpuLayout(
        tuple(
            DevicePort(n, v.dtype, v.tensor.static, narrowed=narrowed.get(v))
            for n, v in zip(program.graph.input_names, program.graph.inputs, strict=True)
            if is_native(v) and v not in states
        ),
        tuple(
            DevicePort(b.name, b.dtype, tuple(b.shape), over.get(b.name, ""))
            for b in sorted(buffers, key=lambda b: order.get(b.name, -1))
            if b.kind == OUTPUT and b.name in used
        ),
        tuple(b.arguments for b in module.every),
        module.arena_bytes,
        module.kept_bytes,
        module.pieces,
        tuple(
            DeviceFaultText(
                f.message, f.expected, step.origin, step.region.kind, at, f.shows_data, f.internal
            )
            for step, f, at in module.faults
        ),
        work.flops,
        work.bytes,
        nests(module),
        module.bounds_checks,
        *_streams_of(module),
    )


def _streams_of(module: GpuModule) -> tuple[Any, ...]:
    """Return the streams, the waits and their key; nothing for work on one stream."""
    order = launch_order(module.works)
    if order.streams == 1:
        return ()
    return order.stream, order.waits, key_of(module)


def _outputs(program: Program) -> list[Any]:
    return [program.places.storage.get(v) for _, v in program.graph.outputs]


def is_whole(module: GpuModule) -> bool:
    """Return True if the device does all the work, and every output has memory of its own."""
    graph = module.program.graph
    places = _outputs(module.program)
    names = [p.buffer.name for p in places if p is not None and p.buffer.kind == OUTPUT]
    if module.host or names != [name for name, _ in graph.outputs]:
        return False
    return all(map(is_native, (*graph.inputs, *(v for _, v in graph.outputs))))
