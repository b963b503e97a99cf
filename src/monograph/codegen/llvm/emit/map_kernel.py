"""Map kernels: the loops around an anchor that computes each element independently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from monograph.codegen.llvm.emit.builder import Builder
from monograph.codegen.llvm.emit.elements import LlvmElements, Point
from monograph.codegen.llvm.emit.loops import LoopNest
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.module.kernel import Argument, Kernel, KernelContext, pointers
from monograph.ir import DType
from monograph.ir.dtype import u8, u16, u32, u64
from monograph.ops.scalar import Scalar
from monograph.program.fusion.access import Element, Indices, counters
from monograph.program.fusion.region import merge
from monograph.program.index import Index, flatten

_BITS: dict[int, DType] = {1: u8, 2: u16, 4: u32, 8: u64}


class ElementMaker(Protocol):
    """The computation of an anchor's elements at an index in terms of loop counters."""

    def positions(self) -> list[Index]:
        """Return the positions that it reads: dimensions contiguous in all of them
        become one loop.
        """

    def enter(self, point: Point) -> None:
        """Prepare a row: all counters but the innermost are known."""

    def element(self, point: Point) -> Scalar:
        """The anchor's element at a point, or as many as the point has lanes."""


Build = Callable[[LlvmElements, Indices], ElementMaker]


def each_element(
    context: KernelContext, build: Build, extra: Sequence[Argument] = (), vectors: bool = True
) -> Kernel:
    """Generate a kernel that computes and finishes every element of the anchor.

    Pointers come in the order: inputs of the region, its outputs, `extra`.
    """
    region = context.step.region
    for value in (*region.inputs, *region.outputs, *extra):
        context.argument(value)
    b = context.builder(len(context.arguments))
    emit_each(context, elements_of(context, b), build, vectors)
    return context.finish(b)


def elements_of(context: KernelContext, b: Builder) -> LlvmElements:
    """Return the element emitter of a kernel whose arguments are fixed."""
    region = context.step.region
    return LlvmElements(
        b,
        LlvmScalars(b, context.features),
        dict(context.program.places.storage),
        pointers(b, context.arguments),
        frozenset(region.inputs),
    )


def emit_each(context: KernelContext, elements: LlvmElements, build: Build, vectors: bool) -> None:
    """Emit the loops that compute, finish and store every element of the anchor."""
    region = context.step.region
    anchor = region.anchor
    assert anchor is not None
    shape = anchor.tensor.static
    if 0 in shape:
        return
    storage = elements.storage
    elements.given[anchor] = Scalar(None, anchor.dtype)
    plain = counters(shape)
    order = elements.plan(region.outputs, plain)
    known = [r.element for r in order if not r.operands and r.element.value in storage]
    stored = [flatten(e.at, storage[e.value].strides) for e in known]
    stored += [flatten(plain, storage[v].strides) for v in region.outputs]
    at = merge(shape, plain, [*stored, *build(elements, plain).positions()])
    order = elements.plan(region.outputs, at)
    maker = build(elements, at)

    def body(point: Point) -> None:
        elements.given[anchor] = maker.element(point)
        made = elements.emit(order, point)
        for value in region.outputs:
            elements.store(value, at, made[Element(value, at)], point)

    lanes = _lanes(context) if vectors else 1
    LoopNest(elements.b, at, context.threads).run(body, lanes, 1, maker.enter)


def _lanes(context: KernelContext) -> int:
    region = context.step.region
    assert region.anchor is not None
    if not region.epilogue:
        return context.features.lanes(8 * region.anchor.dtype.itemsize)
    made = (v.dtype.bits for v in (region.anchor, *region.epilogue))
    return context.features.lanes(max(*made, 32))


def moved_dtype(context: KernelContext) -> DType:
    """Return the type that elements are moved as: bits if the anchor has no epilogue."""
    region = context.step.region
    assert region.anchor is not None
    return region.anchor.dtype if region.epilogue else bits_of(region.anchor.dtype)


def bits_of(dtype: DType) -> DType:
    """Return the unsigned integer type of the same size in memory."""
    return _BITS[dtype.itemsize]


def follows(position: Index, point: Point) -> bool:
    """Return True if adjacent lanes read adjacent elements."""
    assert point.lane is not None
    lane = point.lane
    return position.factor(lane) == 1 and all(
        a == lane or lane not in Index(0, ((a, 1),)).counters for a, _ in position.terms
    )
