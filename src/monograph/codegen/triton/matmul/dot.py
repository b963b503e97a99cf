"""Matrix products: tiles on the matrix units, GEMV for few rows, split-K, and libraries'
products."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.elements import BlockAxis, TritonElements
from monograph.codegen.triton.emit.scalar import register_type
from monograph.codegen.triton.emit.tile import ResultTile, accumulator, finish_from, tile
from monograph.codegen.triton.emit.writer import Writer, power
from monograph.codegen.triton.matmul import fused_matvec, gemv, matrix_rows
from monograph.codegen.triton.matmul.product import (
    MOST_TILES,
    Operands,
    Parts,
    dot_precision,
    few_rows,
    join_parts,
    rounded,
    sizes,
)
from monograph.codegen.triton.matmul.product import ProductShape as ProductShape
from monograph.codegen.triton.matmul.row_norms import inner_norm
from monograph.codegen.triton.module.kernel import (
    Argument,
    Call,
    Candidate,
    GpuContext,
    KernelWriter,
    TritonScratch,
    Work,
    kernel_for,
    variants,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.module.library import LibraryCall
from monograph.ir import DType, Value
from monograph.ir.dtype import bf16, f16, f32, i8, i32, u8
from monograph.ir.sizes import any_open, divides
from monograph.ops.linear import Dot
from monograph.program.fusion.fuse import inner_product
from monograph.program.index import strides_of
from monograph.program.memory.strided import Strided, strided

TYPES = (f16, bf16, f32)


def products(context: GpuContext) -> list[Candidate]:
    """Return a library's product, if strides describe the operands."""
    anchor = context.anchor
    storage = context.program.places.storage
    found = [strided(v, storage) for v in anchor.inputs]
    if any(f is None for f in found) or {v.dtype for v in (*anchor.inputs, anchor)} - set(TYPES):
        return []
    views = [f for f in found if f is not None]
    return [Candidate("library matmul", lambda: _product(context, anchor, views))]


def _product(context: GpuContext, anchor: Value, views: list[Strided]) -> tuple[Work, ...]:
    storage = context.program.places.storage
    left, right = (
        (v.tensor.static, f.strides, f.offset - storage[f.source].offset)
        for v, f in zip(anchor.inputs, views, strict=True)
    )
    shape, tf32 = anchor.tensor.static, context.tf32
    multiply = LibraryCall("matmul", {"left": left, "right": right, "shape": shape, "tf32": tf32})
    sources: tuple[Argument, ...] = tuple(f.source for f in views)
    result, finish = destination(context)
    return (Call("matmul", (*sources, result), multiply), *finish)


def destination(context: GpuContext) -> tuple[Argument, tuple[Work, ...]]:
    """Return the contiguous memory for a library's result, and the epilogue."""
    region, anchor = context.step.region, context.anchor
    if region.root is anchor and len(region.outputs) == 1 and _dense(context, anchor):
        return anchor, ()
    result = TritonScratch(anchor.tensor.nbytes, anchor.dtype)
    return result, (finish_from(context, result),)


def _dense(context: GpuContext, value: Value) -> bool:
    return context.program.places.storage[value].strides == strides_of(value.tensor.static)


MATRIX = (f16, bf16, f32)
"""Floats that matrix units multiply."""
BYTES = (i8, u8)
"""Integers that matrix units multiply, u8 in two parts."""
BUSY = 132 * 2
"""The programs that keep a large device busy; with fewer, splitting sums pays."""

EARLY = 6
"""Candidates for few rows that a fast search tries before a tile and a library's product."""


@dataclass(frozen=True)
class DotTiling:
    """The tiling of a product."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    split: int = 1

    def tiles(self, shape: ProductShape) -> int:
        """Return the number of tiles of a result."""
        return shape.batch * -(-shape.m // self.m) * -(-shape.n // self.n)

    def __str__(self) -> str:
        split = f" split {self.split}" if self.split > 1 else ""
        return f"{self.m}x{self.n}x{self.k} w{self.warps} s{self.stages}{split}"


def serves(anchor: Value) -> bool:
    return isinstance(anchor.op, Dot) and anchor.dtype.kind != "complex"


@kernel_for(Dot, when=serves, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    anchor = context.anchor
    shape = sizes(anchor)
    if shape.k == 0:
        return [Candidate("empty sum", lambda: (_empty(context),))]
    region = context.step.region
    first = inner_product(region)
    if first is not None:
        return _chained(context, first)
    together = matrix_rows.candidates(context)
    alone = gemv.candidates(context, shape) if few_rows(shape) else []
    few = alone
    if together:
        few = [*together[:EARLY], *alone[:2], *together[EARLY:], *alone[2:]]
    if inner_norm(region) is not None or anchor.tensor.shape != region.root.tensor.shape:
        return few  # only these fuse work into the product
    configs = _tile_configs(shape.hint, anchor.inputs[0].dtype)
    if any_open((shape.batch, shape.m, shape.n)):
        configs = [c for c in configs if c.split == 1 or c.tiles(shape.hint) <= MOST_TILES]
    found = variants("tiles", configs, partial(_tile_kernel, context, shape))
    # Early enough for a fast search; never the default, which must not need a library.
    early = [*few[:EARLY], *found[: 1 if few else 2]]
    rest = [*few[EARLY:], *found[1 if few else 2 :]]
    return [*early, *products(context), *rest]


def _chained(context: GpuContext, first: Value) -> list[Candidate]:
    """Return the candidates that fuse a product of one column into the one before it."""
    shape, kind = sizes(first), first.inputs[0].dtype

    def multiplied(
        operands: Operands, of: ProductShape, m: int, n: int, k: int, steps: str
    ) -> None:
        _multiply(context, operands, of, DotTiling(m, n, k, 4, 1), steps)

    tilings = [c for c in _tile_configs(shape.hint, kind) if c.split == 1]
    return fused_matvec.candidates(context, first, tilings, multiplied)


def _tile_configs(shape: ProductShape, dtype: DType) -> list[DotTiling]:
    """Return the tilings to try, the most promising first."""
    found = tiles(shape.m, shape.n, shape.k, dtype)
    if shape.k >= 512:
        found += [replace(c, split=s) for c in found for s in (2, 4, 8) if shape.k // s >= 2 * c.k]
    return sorted(found, key=lambda c: guess(shape, c, dtype))


def tiles(rows: int, columns: int, depth: int, dtype: DType) -> list[DotTiling]:
    """Return tilings of a product of such sizes."""
    wide = dtype.itemsize >= 4
    found = []
    for m in (16, 32, 64, 128):
        for n in (16, 32, 64, 128, 256):
            if m > max(16, power(rows)) or n > max(16, power(columns)):
                continue
            if m * n > 128 * (64 if wide else 256):
                continue
            for k in (16, 32) if wide else (32, 64, 128):
                if k <= max(32, power(depth)):
                    warps = 8 if m * n >= 128 * 128 else 4 if m * n >= 32 * 16 else 2
                    stages = 3 if (m + n) * k * dtype.itemsize <= 48 << 10 else 2
                    found.append(DotTiling(m, n, k, warps, stages))
    return found


def guess(shape: ProductShape, c: DotTiling, dtype: DType) -> float:
    """Estimate the time in us, only to order the candidates.

    A start, then the sequential steps of a sum: latency, products, and operands from the cache.
    Units that take 64 rows at once wait less.
    """
    programs = shape.batch * -(-shape.m // c.m) * -(-shape.n // c.n) * c.split
    length = -(-shape.k // (c.k * c.split))
    rate = 3e6 if dtype.itemsize < 4 else 2.5e5
    wait = 0.05 if c.m >= 64 else 0.15
    products = c.m * c.n * c.k * 2 / rate
    moved = (c.m + c.n) * c.k * dtype.itemsize / 1e5
    partial = 1.5 + shape.batch * shape.m * shape.n * c.split * 4e-6 if c.split > 1 else 0
    return 1 + -(-programs // BUSY) * length * (wait + products + moved) + partial


def _empty(context: GpuContext) -> Launch:
    """Return the kernel of a product with an empty sum."""
    k = context.kernel()
    t = tile(k)
    size = math.prod(t.shape)
    k.wait()
    t.batch(k.program_id(), range(len(t.shape)))
    t.finish(f"tl.zeros((), {register_type(accumulator(context.anchor.dtype))})")
    return k.launch((size,), 1)


# Tiles


def _tile_kernel(context: GpuContext, shape: ProductShape, c: DotTiling) -> Launch:
    anchor = context.anchor
    k, rank = context.kernel(), len(anchor.tensor.static)
    t = tile(k)
    w = k.w
    rows, columns = -(-shape.m // c.m), -(-shape.n // c.n)
    pid = k.program_id()
    row = w.let(f"({pid} // {columns}) * {c.m} + tl.arange(0, {c.m})", "rm")
    column = w.let(f"({pid} % {columns}) * {c.n} + tl.arange(0, {c.n})", "rn")
    m_axis = BlockAxis(w.let(f"{row}[:, None]"), _mask(k, f"{row}[:, None]", shape.m, c.m))
    n_axis = BlockAxis(w.let(f"{column}[None, :]"), _mask(k, f"{column}[None, :]", shape.n, c.n))
    t.point[t.counter(rank - 2)], t.point[t.counter(rank - 1)] = m_axis, n_axis
    t.batch(k.program_id(1), range(rank - 2))
    wide = register_type(accumulator(anchor.dtype))
    operands = Operands(k, t, anchor, shape)
    operands.pack_tiles()
    w.line(f"acc = tl.zeros(({c.m}, {c.n}), {wide})")
    k.wait()
    length = -(-shape.k // (c.split * c.k)) * c.k
    start = f"{k.program_id(2)} * {length}" if c.split > 1 else "0"
    steps = w.let(f"{start} + tl.arange(0, {c.k})", "rk")
    with w.block(f"for k0 in range(0, {length}, {c.k})"):
        _multiply(context, operands, shape, c, steps)
    k.trigger()
    if c.split == 1:
        t.finish("acc")
    else:
        _finish_parts(t, shape, c, (m_axis, n_axis))
    return k.launch((rows * columns, shape.batch, c.split), c.warps, c.stages)


def _mask(k: KernelWriter, text: str, size: int, block: int) -> str | None:
    return None if divides(block, size) else k.w.let(f"{text} < {size}", "m")


def _multiply(
    context: GpuContext, operands: Operands, shape: ProductShape, c: DotTiling, steps: str
) -> None:
    """Write one step of the sum: acc += x[m, k] . y[k, n]."""
    w = operands.k.w
    now = w.let(f"k0 + {steps}", "kk")
    whole = c.split == 1 and divides(c.k, shape.k)
    across = BlockAxis(
        w.let(f"{now}[None, :]"), None if whole else w.let(f"{now}[None, :] < {shape.k}", "m")
    )
    down = BlockAxis(
        w.let(f"{now}[:, None]"), None if whole else w.let(f"{now}[:, None] < {shape.k}", "m")
    )
    x = operands.left(across, f"({c.m}, {c.k})")
    left, right = (v.dtype for v in operands.anchor.inputs)
    n_axis = operands.t.point[operands.t.counter(len(operands.t.shape) - 1)]
    if operands.packed is not None:
        columns = BlockAxis(
            w.let(f"tl.trans({n_axis.text})"),
            w.let(f"tl.trans({n_axis.mask})") if n_axis.mask else None,
        )
        y = w.let(f"tl.trans({operands.rows(across, columns)})", "y")
    else:
        y = operands.right(down, f"({c.k}, {c.n})")
    pair, out = ((x, left), (y, right)), operands.anchor.dtype
    product = multiply(
        context, operands.t.elements, *pair, out, rounds_right=operands.packed is None
    )
    w.line(f"acc = {product}")


def multiply(
    context: GpuContext,
    elements: TritonElements,
    left: tuple[str, DType],
    right: tuple[str, DType],
    out: DType,
    total: str = "acc",
    rounds_right: bool = True,
) -> str:
    """total + x[m, k] . y[k, n], of tiles in memory form.

    Operands are rounded to the precision of the matrix units; packed weights are rounded already,
    see `tf32`.
    """
    (x, of_x), (y, of_y) = left, right
    if of_x in BYTES and of_y in BYTES and accumulator(out) == i32:
        return _byte_products(elements.w, left, right, total)
    if of_x == of_y and of_x in MATRIX:
        if of_x == bf16 and context.arch.interpreted:
            # The interpreter would multiply the codes of bf16.
            x, y = f"{x}.to(tl.float32)", f"{y}.to(tl.float32)"
        x = rounded(context, elements.w, x, of_x)
        y = rounded(context, elements.w, y, of_y) if rounds_right else y
        precision = dot_precision(context)
        return f"tl.dot({x}, {y}, {total}, input_precision={precision}, out_dtype=tl.float32)"
    scalars, wide = elements.scalars, accumulator(out)
    a = scalars.cast(scalars.decoded(x, of_x), wide).reg
    b = scalars.cast(scalars.decoded(y, of_y), wide).reg
    return f"{total} + tl.sum({a}[:, :, None] * {b}[None, :, :], 1)"


def _byte_products(w: Writer, left: tuple[str, DType], right: tuple[str, DType], total: str) -> str:
    """total + x . y of bytes: products of i8 on the matrix units, summed in i32.

    An unsigned byte is its lower seven bits and 128 times the highest, both of which i8 holds. A
    sum wraps, as the reference does.
    """

    def parts(of: tuple[str, DType]) -> list[tuple[str, int]]:
        x, kind = of
        if kind == i8:
            return [(x, 1)]
        x = w.let(x, "u")
        low, high = (w.let(f"({x} {how}).to(tl.int8)", "b") for how in ("& 127", ">> 7 & 1"))
        return [(low, 1), (high, 128)]

    def product(x: str, y: str, before: str | None) -> str:
        added = f", {before}" if before else ""
        return f"tl.dot({x}, {y}{added}, out_dtype=tl.int32)"

    for x, x_scale in parts(left):
        for y, y_scale in parts(right):
            scale = x_scale * y_scale
            if scale == 1:
                total = w.let(product(x, y, total), "d")
            else:
                total = w.let(f"{total} + {product(x, y, None)} * {scale}", "d")
    return total


def _finish_parts(
    t: ResultTile, shape: ProductShape, c: DotTiling, axes: tuple[BlockAxis, BlockAxis]
) -> None:
    """Finish a split sum: the last program of each tile adds up the parts."""
    k = t.k
    m, n = axes
    tiles = -(-shape.m // c.m) * -(-shape.n // c.n)
    size = shape.batch * shape.m * shape.n
    first = f"{k.program_id(1)} * {shape.m * shape.n} + {m.text} * {shape.n} + {n.text}"
    masks = " & ".join(x.mask for x in axes if x.mask)
    join_parts(
        k,
        Parts(c.split, shape.batch * tiles, size, accumulator(k.context.anchor.dtype)),
        f"{k.program_id(1)} * {tiles} + {k.program_id()}",
        lambda part: f"{part} * {size} + {first}",
        k.w.let(masks, "m") if masks else None,
        t.finish,
    )
