"""Matrix products: tiles on the matrix units, rows for few of them, split sums for long ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from monograph.codegen.triton.elements import Axis, Elements
from monograph.codegen.triton.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    Launch,
    Packed,
    Scratch,
    Work,
)
from monograph.codegen.triton.library import products
from monograph.codegen.triton.scalar import register_type
from monograph.codegen.triton.tile import Tile, accumulator, finish_from, tile
from monograph.ir import DType, Value, known
from monograph.ir.dtype import bf16, f16, f32, i8
from monograph.ops.linear import Dot
from monograph.program.access import Indices, aligned
from monograph.program.index import Counter, Index, flatten, strides_of

MATRIX = (f16, bf16, f32, i8)
"""Element types that matrix units multiply."""
FEW_ROWS = 8
"""Rows up to which a product is one of vectors: the matrix units would mostly multiply zeros."""
BUSY = 132 * 2
"""Programs that keep a large device busy; fewer of them, and sums are worth splitting."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a product: batches of [m, k] times [k, n]."""

    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Config:
    """How a product is cut up."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    split: int = 1

    def __str__(self) -> str:
        split = f" split {self.split}" if self.split > 1 else ""
        return f"{self.m}x{self.n}x{self.k} w{self.warps} s{self.stages}{split}"


def serves(anchor: Value) -> bool:
    return isinstance(anchor.op, Dot) and anchor.dtype.kind != "complex"


def readable(user: Value, index: int, operand: Value) -> bool:
    """Operands are read through any views."""
    return True


def candidates(context: GpuContext) -> list[Candidate]:
    anchor = context.step.region.anchor
    assert anchor is not None
    shape = sizes(anchor)
    if shape.k == 0:
        return [Candidate("empty sum", lambda: (_empty(context),))]
    found: list[Candidate] = []
    if shape.m <= FEW_ROWS:
        found += [
            Candidate(f"rows {c}", lambda c=c: (_rows(context, shape, c),))  # type: ignore[misc]
            for c in _row_configs(shape)
        ]
    found += [
        Candidate(f"tiles {c}", lambda c=c: _tiles(context, shape, c))  # type: ignore[misc]
        for c in _tile_configs(shape, anchor.inputs[0].dtype)
    ]
    # Early enough for a fast search; never the default, which must not need a library.
    return [*found[:2], *products(context), *found[2:]]


def sizes(anchor: Value) -> Shape:
    x, y = (v.tensor.static for v in anchor.inputs)
    whole = anchor.tensor.static
    return Shape(math.prod(whole[:-2]), whole[-2], y[-1], x[-1])


def _row_configs(shape: Shape) -> list[Config]:
    longest = min(2048, _power(shape.k))
    found = [
        Config(shape.m, n, k, warps, 1)
        for k in dict.fromkeys((min(1024, longest), longest, min(512, longest)))
        for n, warps in ((2, 4), (4, 4), (1, 4), (4, 2), (8, 4), (16, 4), (2, 2))
        if n <= _power(shape.n) and shape.m * n * k <= 1 << 15
    ]
    return found or [Config(shape.m, 1, min(longest, 512), 4, 1)]


def _tile_configs(shape: Shape, dtype: DType) -> list[Config]:
    """Tiles worth trying, the most promising first."""
    found = tiles(shape.m, shape.n, shape.k, dtype)
    if shape.k >= 512:
        found += [replace(c, split=s) for c in found for s in (2, 4, 8) if shape.k // s >= 2 * c.k]
    return sorted(found, key=lambda c: guess(shape, c, dtype))


def tiles(rows: int, columns: int, depth: int, dtype: DType) -> list[Config]:
    """Tiles that a product of such sizes can be cut into."""
    wide = dtype.itemsize >= 4
    found = []
    for m in (16, 32, 64, 128):
        for n in (16, 32, 64, 128, 256):
            if m > max(16, _power(rows)) or n > max(16, _power(columns)):
                continue
            if m * n > 128 * (64 if wide else 256):
                continue
            for k in (16, 32) if wide else (32, 64, 128):
                if k <= max(32, _power(depth)):
                    warps = 8 if m * n >= 128 * 128 else 4 if m * n >= 32 * 16 else 2
                    stages = 3 if (m + n) * k * dtype.itemsize <= 48 << 10 else 2
                    found.append(Config(m, n, k, warps, stages))
    return found


def guess(shape: Shape, c: Config, dtype: DType) -> float:
    """A rough time in us, only to order what is tried.

    A start, then the steps of a sum, which follow each other: a wait, products, and operands on
    their way from the cache. Units that take 64 rows at once wait less.
    """
    programs = shape.batch * -(-shape.m // c.m) * -(-shape.n // c.n) * c.split
    length = -(-shape.k // (c.k * c.split))
    rate = 3e6 if dtype.itemsize < 4 else 2.5e5
    wait = 0.05 if c.m >= 64 else 0.15
    products = c.m * c.n * c.k * 2 / rate
    moved = (c.m + c.n) * c.k * dtype.itemsize / 1e5
    partial = 1.5 + shape.batch * shape.m * shape.n * c.split * 4e-6 if c.split > 1 else 0
    return 1 + -(-programs // BUSY) * length * (wait + products + moved) + partial


def _power(n: int) -> int:
    """The least power of two that is not below a size."""
    return 1 << max(n - 1, 0).bit_length()


def _empty(context: GpuContext) -> Launch:
    """A product whose sums have nothing to add."""
    k = context.kernel()
    t = tile(k)
    size = math.prod(t.shape)
    k.wait()
    t.batch(k.program_id(), range(len(t.shape)))
    anchor = context.step.region.anchor
    assert anchor is not None
    t.finish(f"tl.zeros((), {register_type(accumulator(anchor.dtype))})")
    return k.launch((size,), 1)


# Operands


@dataclass
class Operands:
    """How a kernel reads tiles of the two operands of a product."""

    k: KernelWriter
    t: Tile
    anchor: Value
    shape: Shape

    def __post_init__(self) -> None:
        self.counter = Counter("k", self.shape.k)
        self.weights = known(self.anchor.inputs[1])
        self.packed: str | None = None
        if self.weights is not None:
            self.packed = self.k.pointer(packed_rows(self.anchor.inputs[1]))

    def left(self, axis: Axis, shape: str) -> str:
        """x[m, k] as it is in memory."""
        x = self.anchor.inputs[0]
        at = (*self._batch(x), self.t.at[-2], self._index())
        return self._read(x, at, axis, shape)

    def right(self, axis: Axis, shape: str) -> str:
        """y[k, n] as it is in memory."""
        y = self.anchor.inputs[1]
        at = (*self._batch(y), self._index(), self.t.at[-1])
        return self._read(y, at, axis, shape)

    def rows(self, axis: Axis, columns: Axis, once: bool = False) -> str:
        """Packed weights [n, k]; those that are read once need no place in the cache."""
        masks = " & ".join(m for m in (columns.mask, axis.mask) if m)
        weights = self.anchor.inputs[1]
        outer = weights.tensor.static[:-2]
        number = flatten(self._batch(weights), strides_of(outer))
        first = self.t.elements.integer(number * (self.shape.n * self.shape.k), self.t.point)
        where = f"{self.packed} + {first} + ({columns.text}) * {self.shape.k} + ({axis.text})"
        options = f", mask={masks}, other=0" if masks else ""
        options += ', eviction_policy="evict_first"' if once else ""
        return self.k.w.let(f"tl.load({where}{options})", "w")

    def _index(self) -> Index:
        return Index(0, ((self.counter, 1),))

    def _batch(self, operand: Value) -> Indices:
        return aligned(self.t.at[:-2], operand.tensor.static[:-2])

    def _read(self, operand: Value, at: Indices, axis: Axis, shape: str) -> str:
        point = {**self.t.point, self.counter: axis}
        text = self.t.elements.through_views(operand, at, point)
        return self.k.w.let(f"tl.broadcast_to({text}, {shape})", "y")


def packed_rows(weights: Value) -> Packed:
    """Constant weights [..., k, n] as [..., n, k], so that a column is read in one piece."""
    data = known(weights)
    assert data is not None
    return Packed(np.ascontiguousarray(data.swapaxes(-1, -2)), weights.dtype)


# Tiles


def _tiles(context: GpuContext, shape: Shape, c: Config) -> tuple[Work, ...]:
    anchor = context.step.region.anchor
    assert anchor is not None
    if c.split == 1:
        return (_tile_kernel(context, shape, c, None),)
    wide = accumulator(anchor.dtype)
    size = math.prod(anchor.tensor.static)
    parts = Scratch(c.split * size * wide.itemsize, wide)
    return (_tile_kernel(context, shape, c, parts), finish_from(context, parts, c.split))


def _tile_kernel(context: GpuContext, shape: Shape, c: Config, parts: Scratch | None) -> Launch:
    anchor = context.step.region.anchor
    assert anchor is not None
    k, rank = context.kernel(), len(anchor.tensor.static)
    t = tile(k)
    w = k.w
    rows, columns = -(-shape.m // c.m), -(-shape.n // c.n)
    pid = k.program_id()
    row = w.let(f"({pid} // {columns}) * {c.m} + tl.arange(0, {c.m})", "rm")
    column = w.let(f"({pid} % {columns}) * {c.n} + tl.arange(0, {c.n})", "rn")
    m_axis = Axis(w.let(f"{row}[:, None]"), _mask(k, f"{row}[:, None]", shape.m, c.m))
    n_axis = Axis(w.let(f"{column}[None, :]"), _mask(k, f"{column}[None, :]", shape.n, c.n))
    t.point[t.counter(rank - 2)], t.point[t.counter(rank - 1)] = m_axis, n_axis
    t.batch(k.program_id(1), range(rank - 2))
    wide = register_type(accumulator(anchor.dtype))
    operands = Operands(k, t, anchor, shape)
    w.line(f"acc = tl.zeros(({c.m}, {c.n}), {wide})")
    k.wait()
    length = -(-shape.k // (c.split * c.k)) * c.k
    start = f"{k.program_id(2)} * {length}" if c.split > 1 else "0"
    steps = w.let(f"{start} + tl.arange(0, {c.k})", "rk")
    with w.block(f"for k0 in range(0, {length}, {c.k})"):
        _multiply(context, operands, shape, c, steps)
    k.trigger()
    if parts is None:
        t.finish("acc")
    else:
        _store_part(k, t, shape, parts, (m_axis, n_axis))
    return k.launch((rows * columns, shape.batch, c.split), c.warps, c.stages)


def _mask(k: KernelWriter, text: str, size: int, block: int) -> str | None:
    return k.w.let(f"{text} < {size}", "m") if size % block else None


def _multiply(context: GpuContext, operands: Operands, shape: Shape, c: Config, steps: str) -> None:
    """One step of the sum: acc += x[m, k] . y[k, n]."""
    w = operands.k.w
    now = w.let(f"k0 + {steps}", "kk")
    whole = c.split == 1 and shape.k % c.k == 0
    across = Axis(
        w.let(f"{now}[None, :]"), None if whole else w.let(f"{now}[None, :] < {shape.k}", "m")
    )
    down = Axis(
        w.let(f"{now}[:, None]"), None if whole else w.let(f"{now}[:, None] < {shape.k}", "m")
    )
    x = operands.left(across, f"({c.m}, {c.k})")
    left, right = (v.dtype for v in operands.anchor.inputs)
    n_axis = operands.t.point[operands.t.counter(len(operands.t.shape) - 1)]
    if operands.packed is not None:
        columns = Axis(
            w.let(f"tl.trans({n_axis.text})"),
            w.let(f"tl.trans({n_axis.mask})") if n_axis.mask else None,
        )
        y = w.let(f"tl.trans({operands.rows(across, columns)})", "y")
    else:
        y = operands.right(down, f"({c.k}, {c.n})")
    product = multiply(context, operands.t.elements, (x, left), (y, right), operands.anchor.dtype)
    w.line(f"acc = {product}")


def multiply(
    context: GpuContext,
    elements: Elements,
    left: tuple[str, DType],
    right: tuple[str, DType],
    out: DType,
    total: str = "acc",
) -> str:
    """total + x[m, k] . y[k, n], of tiles as they are in memory."""
    (x, of_x), (y, of_y) = left, right
    if of_x == of_y and of_x in MATRIX:
        if of_x == bf16 and context.arch.interpreted:
            # The interpreter multiplies the codes of bf16.
            x, y = f"{x}.to(tl.float32)", f"{y}.to(tl.float32)"
        precision = '"tf32"' if context.tf32 else '"ieee"'
        kind = "tl.int32" if of_x == i8 else "tl.float32"
        return f"tl.dot({x}, {y}, {total}, input_precision={precision}, out_dtype={kind})"
    scalars, wide = elements.scalars, accumulator(out)
    a = scalars.cast(scalars.decoded(x, of_x), wide).reg
    b = scalars.cast(scalars.decoded(y, of_y), wide).reg
    return f"{total} + tl.sum({a}[:, :, None] * {b}[None, :, :], 1)"


def _store_part(
    k: KernelWriter, t: Tile, shape: Shape, parts: Scratch, axes: tuple[Axis, Axis]
) -> None:
    pointer = k.pointer(parts)
    first = f"({k.program_id(2)} * {shape.batch} + {k.program_id(1)}) * {shape.m * shape.n}"
    m, n = axes
    masks = " & ".join(x.mask for x in axes if x.mask)
    where = f"{pointer} + {first} + {m.text} * {shape.n} + {n.text}"
    k.w.line(f"tl.store({where}, acc{', mask=' + masks if masks else ''})")


# Rows


def _rows(context: GpuContext, shape: Shape, c: Config) -> Launch:
    """Few rows: every program holds some columns of the weights and multiplies each row by them."""
    anchor = context.step.region.anchor
    assert anchor is not None
    k, rank = context.kernel(), len(anchor.tensor.static)
    t, w = tile(k), k.w
    k.trigger()
    column = w.let(f"{k.program_id()} * {c.n} + tl.arange(0, {c.n})", "rn")
    down = Axis(w.let(f"{column}[:, None]"), _mask(k, f"{column}[:, None]", shape.n, c.n))
    t.batch(k.program_id(1), range(rank - 2))
    operands = Operands(k, t, anchor, shape)
    steps = w.let(f"tl.arange(0, {c.k})", "rk")
    wide = accumulator(anchor.dtype)
    sums = [f"acc{m}" for m in range(shape.m)]
    for name in sums:
        w.line(f"{name} = tl.zeros(({c.n}, {c.k}), {register_type(wide)})")
    t.axis(rank - 1, down.text, down.mask)
    for start in range(0, shape.k, c.k):
        now = w.let(f"{start} + {steps}" if start else steps, "kk")
        masked = start + c.k > shape.k
        axis = Axis(
            w.let(f"{now}[None, :]"), w.let(f"{now}[None, :] < {shape.k}", "m") if masked else None
        )
        scalars = t.elements.scalars
        if operands.packed is not None:
            y = operands.rows(axis, down, once=True)
        else:
            if start == 0:
                k.wait()
            y = operands.right(axis, f"({c.n}, {c.k})")
        if start == 0:
            k.wait()
        b = scalars.cast(scalars.decoded(y, anchor.inputs[1].dtype), wide).reg
        for m, name in enumerate(sums):
            t.axis(rank - 2, str(m))
            x = operands.left(axis, f"(1, {c.k})")
            a = scalars.cast(scalars.decoded(x, anchor.inputs[0].dtype), wide).reg
            w.line(f"{name} += {a} * {b}")
    t.axis(rank - 1, column, _mask(k, column, shape.n, c.n))
    for m, name in enumerate(sums):
        t.axis(rank - 2, str(m))
        t.finish(f"tl.sum({name}, 1)")
    return k.launch((-(-shape.n // c.n), shape.batch), c.warps, 1)
