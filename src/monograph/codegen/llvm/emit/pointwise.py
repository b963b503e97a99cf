"""Loops over elements: fused pointwise work, copies, views."""

from __future__ import annotations

from collections.abc import Sequence

from monograph.codegen.llvm.emit.elements import LlvmElements, Point
from monograph.codegen.llvm.emit.loops import LoopNest
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, pointers
from monograph.program.fusion.access import Element, Indices, Resolved, counters
from monograph.program.fusion.region import merge
from monograph.program.index import Index, flatten

UNROLL = 4
HEAVY = 6
"""The most ops of an expression that is unrolled: more would run out of registers."""


def pointwise(context: KernelContext) -> Kernel:
    """A kernel that computes every element of a region's outputs, which share a shape."""
    region = context.step.region
    for value in (*region.inputs, *region.outputs):
        context.argument(value)
    b = context.builder(len(context.arguments))
    shape = region.outputs[0].tensor.static
    if 0 in shape:
        return context.finish(b)
    storage = context.program.places.storage
    elements = LlvmElements(
        b,
        LlvmScalars(b, context.features),
        storage,
        pointers(b, context.arguments),
        frozenset(region.inputs),
    )
    plain = counters(shape)
    at = merge(shape, plain, _positions(context, elements.plan(region.outputs, plain), plain))
    order = elements.plan(region.outputs, at)

    def body(point: Point) -> None:
        made = elements.emit(order, point)
        for value in region.outputs:
            elements.store(value, at, made[Element(value, at)], point)

    heavy = sum(bool(r.operands) for r in order) > HEAVY
    widest = max(v.dtype.bits for v in (*region.inputs, *region.body))
    lanes = context.features.lanes(max(widest, 32))
    LoopNest(b, at, context.threads).run(body, lanes, 1 if heavy else UNROLL)
    return context.finish(b)


def _positions(context: KernelContext, order: Sequence[Resolved], at: Indices) -> list[Index]:
    """Every position in memory that the loop reads or writes."""
    storage = context.program.places.storage
    found = [
        flatten(r.element.at, storage[r.element.value].strides)
        for r in order
        if not r.operands and r.element.value in storage
    ]
    return found + [flatten(at, storage[v].strides) for v in context.step.region.outputs]
