"""Tiles of a result in registers: epilogue and store; kernels of pointwise work, and map kernels.

A map kernel computes each element of a result independently, in flat blocks. It reads operands and
writes results at indices that are expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from monograph.codegen.common import types
from monograph.codegen.common.registers import Reg
from monograph.codegen.triton.emit.elements import INT32_MOST, BlockAxis, Point, TritonElements
from monograph.codegen.triton.emit.writer import Writer
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonPacked,
    TritonScratch,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.ir import Array, DType, Value, from_numpy
from monograph.ir.dtype import f32, f64, i32, i64
from monograph.ir.sizes import divides, hint_of
from monograph.ops.scalar import Scalar
from monograph.program.fusion.region import Element, Indices, counters, merge
from monograph.program.index import Counter, Index, flatten, kept_counter

BLOCKS = ((128, 4), (256, 4), (512, 4), (1024, 4), (1024, 8), (2048, 8))
"""(elements of a program, warps) to try."""


def pointwise(context: GpuContext) -> list[Candidate]:
    """Kernels that compute every element of a region's outputs, which share a shape."""
    size = hint_of(math.prod(context.step.region.outputs[0].tensor.static))
    fitting = [b for b in BLOCKS if b[0] <= max(128, size)]
    default = max(fitting, key=lambda b: (size // b[0] >= 264, -abs(b[0] - 512)))
    ordered = [default, *(b for b in fitting if b != default)]
    return [
        Candidate(f"flat {block} w{warps}", lambda b=block, w=warps: (_flat(context, b, w),))  # type: ignore[misc]
        for block, warps in ordered
    ]


def _flat(context: GpuContext, block: int, warps: int) -> Launch:
    region = context.step.region
    k = context.kernel()
    elements = k.elements()
    shape = region.outputs[0].tensor.static
    size = math.prod(shape)
    plain = counters(shape)
    at = merge(shape, plain, _positions(elements, region.outputs, plain))
    order = elements.plan(region.outputs, at)
    pid = k.program_id()
    flat = k.w.let(f"{pid} * {block} + tl.arange(0, {block})", "i")
    mask = None if divides(block, size) else k.w.let(f"{flat} < {size}", "m")
    k.wait()
    point = spread(k.w.let, flat, mask, at)
    made = elements.emit(order, point)
    k.trigger()
    for value in region.outputs:
        elements.store(value, at, made[Element(value, at)], point)
    return k.launch((-(-size // block),), warps)


def spread(let: object, flat: str, mask: str | None, at: Indices) -> dict[Counter, BlockAxis]:
    """Return the counters of a loop nest from the row-major number of an element."""
    assert callable(let)
    found = {c for index in at for c in index.counters}
    nest = sorted(found, key=lambda c: (len(c.name), c.name))
    point = {}
    step = math.prod(c.extent for c in nest)
    for number, c in enumerate(nest):
        step //= c.extent
        text = flat if step == 1 else let(f"({flat}) // {step}", "q")
        if number:
            text = let(f"({text}) % {c.extent}", "r")
        point[c] = BlockAxis(text, mask)
    return point


def _positions(elements: TritonElements, outputs: Sequence[Value], at: Indices) -> list[Index]:
    """Every position in memory that the loop reads or writes."""
    found = [
        flatten(r.element.at, elements.storage[r.element.value].strides)
        for r in elements.plan(outputs, at)
        if not r.operands and r.element.value in elements.storage
    ]
    return found + [flatten(at, elements.storage[v].strides) for v in outputs]


@dataclass
class ResultTile:
    """A block of an anchor's result: an axis for each dimension, of size 1 or more.

    Unlike those of a loop nest, its counters stay if a dimension has only one element: a tile may
    be larger than the result, and its masks must cover that.
    """

    k: KernelWriter
    shape: tuple[int, ...]
    elements: TritonElements
    point: dict[Counter, BlockAxis] = field(default_factory=dict)

    def index(self, dimension: int) -> Index:
        return Index(0, ((self.counter(dimension), 1),))

    def counter(self, dimension: int) -> Counter:
        return Counter(f"d{dimension}", self.shape[dimension])

    @property
    def at(self) -> Indices:
        return tuple(self.index(d) for d in range(len(self.shape)))

    def axis(self, dimension: int, text: str, mask: str | None = None) -> None:
        """Set the numbers of a dimension in this tile."""
        self.point[self.counter(dimension)] = BlockAxis(text, mask)

    def batch(self, number: str, dimensions: Sequence[int], mask: str | None = None) -> None:
        """Set the numbers of some dimensions from their row-major number."""
        step = math.prod(self.shape[d] for d in dimensions)
        for place, d in enumerate(dimensions):
            step //= self.shape[d]
            text = number if step == 1 else f"({number}) // {step}"
            if place:
                text = f"({text}) % {self.shape[d]}"
            self.axis(d, self.k.w.let(text, "b"), mask)

    def finish(self, result: str) -> None:
        """Compute the epilogue of an expression with the anchor's sums, and store it."""
        anchor = self.k.context.anchor
        wide = accumulator(anchor.dtype)
        given = register(self.k.w, result, wide)
        self.finish_scalar(self.elements.scalars.cast(given, anchor.dtype))

    def finish_parts(self, results: Mapping[int, str]) -> None:
        """The same for a tile of separate column blocks, by their first columns."""
        region, anchor = self.k.context.step.region, self.k.context.anchor
        e = self.elements
        wide = accumulator(anchor.dtype)
        parts = {}
        for start, text in results.items():
            parts[start] = e.scalars.cast(register(self.k.w, text, wide), anchor.dtype)
            e.given[anchor] = parts[start]  # so that resolution stops there
        order = e.plan(region.outputs, self.at)
        held = [item.element for item in order if item.element.value is anchor]
        made = e.emit(order, self.point, {h: parts[h.at[-1].constant] for h in held})
        for value in region.outputs:
            e.store(value, self.at, made[Element(value, self.at)], self.point)

    def finish_stored(self, result: str) -> None:
        """The same for an expression in memory form."""
        self.finish_scalar(self.elements.scalars.decoded(result, self.k.context.anchor.dtype))

    def finish_scalar(self, result: Scalar) -> None:
        """The same for elements of the anchor's type."""
        region = self.k.context.step.region
        self.elements.given[self.k.context.anchor] = result
        made = self.elements.emit(self.elements.plan(region.outputs, self.at), self.point)
        for value in region.outputs:
            self.elements.store(value, self.at, made[Element(value, self.at)], self.point)


def tile(k: KernelWriter) -> ResultTile:
    """The tile of a kernel's region."""
    return ResultTile(k, k.context.step.region.root.tensor.static, k.elements())


def accumulator(dtype: DType) -> DType:
    """Return the type in which sums of a type are kept."""
    if dtype.is_float:
        return f64 if dtype == f64 else f32
    return i64 if dtype.bits == 64 else i32


def finish_from(
    context: GpuContext, partial: TritonScratch, parts: int = 1, block: int = 512
) -> Launch:
    """Return a kernel that adds up parts of an anchor's result in memory, and finishes them."""
    region = context.step.region
    k = context.kernel()
    elements, anchor = k.elements(), context.anchor
    shape = region.root.tensor.static
    size = math.prod(shape)
    pointer = k.pointer(partial)
    flat = k.w.let(f"{k.program_id()} * {block} + tl.arange(0, {block})", "i")
    mask = k.w.let(f"{flat} < {size}", "m")
    k.wait()
    total = k.w.name("total")
    k.w.line(f"{total} = tl.load({pointer} + {flat}, mask={mask}, other=0)")
    for part in range(1, parts):
        k.w.assign(
            total, f"{total} + tl.load({pointer} + {part * size} + {flat}, mask={mask}, other=0)"
        )
    k.trigger()
    wide = accumulator(anchor.dtype)
    given = elements.scalars.decoded(total, partial.dtype)
    elements.given[anchor] = (
        elements.scalars.cast(Scalar(given.reg, partial.dtype), anchor.dtype)
        if (partial.dtype == wide)
        else Scalar(given.reg, anchor.dtype)
    )
    at = counters(shape)
    point = spread(k.w.let, flat, mask, at)
    elements.ground = BlockAxis(flat, mask)
    made = elements.emit(elements.plan(region.outputs, at), point)
    for value in region.outputs:
        elements.store(value, at, made[Element(value, at)], point)
    return k.launch((-(-size // block),))


Body = Callable[[KernelWriter, ResultTile, str | None], str]
"""Writes the elements at a tile's point: an expression in register form."""
MAP_BLOCKS = ((256, 4), (128, 4), (512, 4), (1024, 8))


def each(context: GpuContext, body: Body) -> list[Candidate]:
    """Return kernels that compute the elements of an anchor's one result, and finish them."""
    return [
        Candidate(f"each {block} w{warps}", lambda b=block, w=warps: (_each(context, body, b, w),))  # type: ignore[misc]
        for block, warps in MAP_BLOCKS
    ]


def _each(context: GpuContext, body: Body, block: int, warps: int) -> Launch:
    k = context.kernel()
    t = tile(k)
    size = math.prod(t.shape)
    flat = k.w.let(f"{k.program_id()} * {block} + tl.arange(0, {block})", "i")
    mask = None if divides(block, size) else k.w.let(f"{flat} < {size}", "m")
    t.batch(flat, range(len(t.shape)), mask)
    t.elements.ground = BlockAxis(flat, mask)
    k.wait()
    result = body(k, t, mask)
    k.trigger()
    t.finish_stored(result)
    return k.launch((-(-size // block),), warps)


def _nest(value: Value, numbers: Sequence[str], mask: str | None) -> tuple[Indices, Point]:
    """Return an index and a point at which a value's dimensions have these numbers."""
    shape = value.tensor.static
    counters = [kept_counter(f"o{i}", d) for i, d in enumerate(shape)]
    point = {c: BlockAxis(text, mask, True) for c, text in zip(counters, numbers, strict=True)}
    return tuple(Index(0, ((c, 1),)) for c in counters), point


def _operand(value: Value, numbers: Sequence[str], mask: str | None) -> tuple[Indices, Point]:
    """The same for an operand, some of whose numbers may be literals.

    Literals are not masked: alone they are no block that a mask could fit.
    """
    at, nest = _nest(value, numbers, mask)
    pairs = zip(at, numbers, strict=True)
    point = {c: axis for c, axis in nest.items() if not axis.text.isdigit()}
    return tuple(Index(int(n)) if n.isdigit() else index for index, n in pairs), point


def read(e: TritonElements, value: Value, numbers: Sequence[str], mask: str | None) -> Scalar:
    """Load an operand's elements through its views, in register form."""
    at, point = _operand(value, numbers, mask)
    return e.element(value, at, point)


def write(
    e: TritonElements, value: Value, numbers: Sequence[str], scalar: Scalar, mask: str | None
) -> None:
    """Store elements of a result."""
    at, point = _nest(value, numbers, mask)
    e.store(value, at, scalar, point)


def coordinates(w: Writer, number: str, sizes: Sequence[int]) -> list[str]:
    """The coordinates of a number in row-major order."""
    step = math.prod(sizes)
    found = []
    for place, size in enumerate(sizes):
        step //= max(size, 1)
        text = number if step <= 1 else f"({number}) // {step}"
        found.append(w.let(f"({text}) % {size}" if place else text, "b"))
    return found


def joined(w: Writer, numbers: Sequence[str], sizes: Sequence[int]) -> str:
    """Return the row-major number of some coordinates."""
    wide = math.prod(sizes) > INT32_MOST
    text = "0"
    for number, size in zip(numbers, sizes, strict=True):
        own = f"({number}).to(tl.int64)" if wide else f"({number})"
        text = own if text == "0" else w.let(f"{text} * {size} + {own}", "n")
    return w.let(text, "n") if numbers else "0"


def table(k: KernelWriter, array: Array) -> str:
    """A pointer to a constant of the kernel's own."""
    return k.pointer(TritonPacked(np.ascontiguousarray(array), from_numpy(array.dtype)))


def register(w: Writer, text: str, dtype: DType) -> Scalar:
    """An expression as elements of a type in registers."""
    return Scalar(Reg(w.let(text), types.register(dtype)), dtype)
