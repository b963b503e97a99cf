"""The common base of matrix products: sizes, operands as tiles, fused work, TF32.

The kernel of a product of few rows may fuse two things. It may normalise its rows: the product is
then of the unnormalised rows, and each sum is scaled by the row's root mean square, whose squares
the kernel sums while it reads the row. And work on column blocks of its result (`silu(y[:, :n]) *
y[:, n:]`) may follow in registers.

Split-K adds up parts in one kernel. Every program of a tile stores its part and increments a
counter. The program that finds all others counted reads all parts in order, its own too, so that
the result does not depend on which one was last. It resets the counter for the next run.

TF32 units read f32 and drop its last 13 bits. That truncates: every operand and every product
shrinks a little, and over many layers this adds up. So operands are rounded to the nearest TF32
first: constant weights on the host, all others in the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from monograph.codegen.triton.emit.elements import INT32_MOST, BlockAxis
from monograph.codegen.triton.emit.tile import ResultTile
from monograph.codegen.triton.emit.writer import Writer
from monograph.codegen.triton.matmul.codes import codes_of
from monograph.codegen.triton.matmul.row_norms import gains_fit, inner_norm, norm_of
from monograph.codegen.triton.module.kernel import (
    GpuContext,
    KernelWriter,
    TritonPacked,
    TritonScratch,
)
from monograph.ir import Array, Constant, DType, Value, known
from monograph.ir.dtype import bf16, f16, f32, i32
from monograph.ir.sizes import hint_of, is_open
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.program.fusion.fuse import part_starts
from monograph.program.fusion.op_classes import is_view
from monograph.program.fusion.region import Element, Indices, Region, aligned, through_view
from monograph.program.index import Counter, Index, flatten, strides_of
from monograph.rewrite import GPU_COST, rows_normalised

DROPPED = 13
"""The bits of f32 that TF32 does not have."""
HALF, KEPT = 1 << (DROPPED - 1), -(1 << DROPPED)
LIMIT = 2.0**128 - 2.0**116
"""Smaller numbers round to a finite one; others are not rounded, nor are infinity and NaN."""

ADD, OFF = "add", "off"
"""Arithmetic on the bits, which every device has; and truncation, for comparisons only."""


def multiplies_tf32(context: GpuContext) -> bool:
    """Return True if products of f32 may and do run in TF32.

    Of AMD's devices only gfx942 has it; Triton rejects the precision on the others.
    """
    arch = context.arch
    return context.tf32 and (arch.backend == "cuda" or arch.name == "gfx942")


def rounds(context: GpuContext, dtype: DType) -> bool:
    """Return True if operands of a type have to be rounded for a product."""
    return dtype == f32 and multiplies_tf32(context)


def dot_precision(context: GpuContext) -> str:
    """Return the precision of a product of f32 in Triton's source."""
    return '"tf32"' if multiplies_tf32(context) else '"ieee"'


def rounding() -> str:
    """Return the rounding method of kernels.

    NVIDIA's own instruction (`cvt.rna.tf32.f32`) saves 2% of YOLOv10n, but turns the largest finite
    numbers into infinity.
    """
    return ADD


def rounded(context: GpuContext, w: Writer, x: str, dtype: DType) -> str:
    """Return a product's operand, rounded to the nearest TF32 if the units would truncate it."""
    if not rounds(context, dtype):
        return x
    if rounding() == OFF:
        return x
    x = w.let(x, "x")
    bits = w.let(f"({x}.to(tl.int32, bitcast=True) + {HALF}) & {KEPT}", "b")
    near = f"{bits}.to(tl.float32, bitcast=True)"
    return w.let(f"tl.where(tl.abs({x}) < {LIMIT!r}, {near}, {x})", "t")


def round_array(x: Array) -> Array:
    """Round numbers of f32 to the nearest TF32, ties away from zero, as kernels do."""
    bits = np.ascontiguousarray(x, np.float32).view(np.int32)
    with np.errstate(over="ignore"):
        near = ((bits + np.int32(HALF)) & np.int32(KEPT)).view(np.float32)
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(x) < LIMIT, near, x).reshape(np.shape(x))


def packed_operand(context: GpuContext, packed: TritonPacked) -> TritonPacked:
    """Return constant weights, rounded once for all runs if the units would truncate them."""
    if not rounds(context, packed.dtype):
        return packed
    return TritonPacked(round_array(packed.array), packed.dtype)


FEW_ROWS = GPU_COST.rows_normalised
"""The most rows that are multiplied one by one."""
LEAST_ROWS, MATRIX_ROWS = 2, 64
"""The rows of 16-bit floats that `matrix_rows` multiplies at once."""
STRIPE = 128
"""Columns of weights that are transposed at a time."""


@dataclass(frozen=True)
class ProductShape:
    """The sizes of a product: batches of [m, k] times [k, n]."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def hint(self) -> ProductShape:
        """The sizes by which tilings are chosen: open ones as in the compiling run."""
        return ProductShape(*(hint_of(d) for d in (self.batch, self.m, self.n, self.k)))


def sizes(anchor: Value) -> ProductShape:
    x, y = (v.tensor.static for v in anchor.inputs)
    whole = anchor.tensor.static
    return ProductShape(math.prod(whole[:-2]), whole[-2], y[-1], x[-1])


def shared_rows(anchor: Value) -> ProductShape:
    """Return the sizes with all rows of a batch together if they share one matrix of weights."""
    shape = sizes(anchor)
    if math.prod(anchor.inputs[1].tensor.static[:-2]) != 1:
        return shape
    return ProductShape(1, shape.batch * shape.m, shape.n, shape.k)


def few_rows(shape: ProductShape) -> bool:
    """Return True if a product has few rows: a kernel for few is written for their number."""
    return not is_open(shape.m) and shape.m <= FEW_ROWS


# What is done inside the kernel


def normalises(user: Value, index: int) -> bool:
    """Return True if the kernel of a product normalises its rows: few rows, constant weights."""
    if index != 0 or not _has_few_rows(user) or user.dtype != user.inputs[0].dtype:
        return False
    norm, rows = norm_of(user.inputs[0]), shared_rows(user).m
    # For more rows a kernel of their norm takes less time than their squares in every program.
    if norm is None or rows > rows_normalised(GPU_COST, user.dtype):
        return False
    return rows <= FEW_ROWS or gains_fit(norm)


def gathers(anchor: Value, starts: tuple[int, ...], width: int) -> bool:
    """Return True if a program holds separate column blocks of a product: few rows."""
    return _has_few_rows(anchor)


def _has_few_rows(user: Value) -> bool:
    if not isinstance(user.op, Dot) or user.dtype not in (f16, bf16, f32):
        return False
    shape = sizes(user)
    if on_matrix_units(user):
        return shape.k > 0
    return few_rows(shape) and shape.k > 0 and _are_known(user.inputs[1])


def on_matrix_units(user: Value) -> bool:
    """Return True if matrix units multiply all rows at once, whatever is fused into the product."""
    shape = shared_rows(user)
    if any(map(is_open, (shape.batch, shape.m, shape.n, shape.k))):
        return False
    if not LEAST_ROWS <= shape.m <= MATRIX_ROWS or user.dtype not in (f16, bf16):
        return False
    if any(v.dtype != user.dtype for v in user.inputs):
        return False
    if known(user.inputs[1]) is not None:
        return True
    codes = codes_of(user.inputs[1])
    return codes is not None and codes.dtype.is_integer


def _are_known(weights: Value) -> bool:
    """Return True if weights are constants, or decoded from constants."""
    while is_view(weights):
        weights = weights.inputs[0]
    if isinstance(weights.op, Dequantize):
        return all(isinstance(v.op, Constant) for v in weights.inputs)
    return isinstance(weights.op, Constant)


def parts_of(region: Region) -> tuple[int, ...]:
    """Return the first columns of the blocks that a region's result is computed from."""
    anchor = region.anchor
    assert anchor is not None
    if anchor.tensor.static == region.root.tensor.static:
        return (0,)
    return part_starts(anchor, region.root, frozenset(region.inputs))


# Operands


@dataclass
class FewRows:
    """A product of few rows, and the work fused into its kernel."""

    context: GpuContext
    shape: ProductShape
    anchor: Value = field(init=False)

    def __post_init__(self) -> None:
        region = self.context.step.region
        self.anchor = self.context.anchor
        self.norm = inner_norm(region)
        self.starts = parts_of(region)

    @property
    def width(self) -> int:
        """The columns of a part."""
        return self.context.step.region.root.tensor.static[-1]


@dataclass
class Operands:
    """The access of a kernel to tiles of the two operands of a product."""

    k: KernelWriter
    t: ResultTile
    anchor: Value
    shape: ProductShape

    def __post_init__(self) -> None:
        self.counter = Counter("k", self.shape.k)
        self.norm = inner_norm(self.k.context.step.region)
        self.weights = known(self.anchor.inputs[1])
        self.packed: str | None = None

    def pack(self, packed: TritonPacked | None = None) -> None:
        """Read constant weights as columns, each contiguous."""
        if self.weights is not None:
            self.packed = self.k.pointer(packed or packed_rows(self.anchor.inputs[1]))

    def pack_tiles(self) -> None:
        """Read constant weights rounded to the precision of the matrix units."""
        if self.weights is not None:
            self.pack(packed_operand(self.k.context, packed_rows(self.anchor.inputs[1])))

    def left(self, axis: BlockAxis, shape: str) -> str:
        """Load x[m, k]; rows that the kernel normalises are loaded unnormalised."""
        element = self.source()
        return self._read(element.value, element.at, axis, shape)

    def source(self) -> Element:
        """Return the element of x[m, k]; for normalised rows, the unnormalised one."""
        x = self.anchor.inputs[0]
        at = (*self._batch(x), self.t.at[-2], self._index())
        if self.norm is None:
            return Element(x, at)
        return Element(self.norm.inputs[0], self._normed(Element(x, at)).at)

    def scales(self, axis: BlockAxis, shape: str) -> str | None:
        """Load the scales of normalised rows."""
        if self.norm is None or len(self.norm.inputs) == 1:
            return None
        x, given = self.anchor.inputs[0], self.norm.inputs[1]
        at = self._normed(Element(x, (*self._batch(x), self.t.at[-2], self._index()))).at
        return self._read(given, aligned(at, given.tensor.static), axis, shape)

    def _normed(self, element: Element) -> Element:
        while element.value is not self.norm:
            element = through_view(element.value, element.at)
        return element

    def right(self, axis: BlockAxis, shape: str) -> str:
        """y[k, n] as it is in memory."""
        y = self.anchor.inputs[1]
        at = (*self._batch(y), self._index(), self.t.at[-1])
        return self._read(y, at, axis, shape)

    def rows(self, axis: BlockAxis, columns: BlockAxis, once: bool = False, start: int = 0) -> str:
        """Load packed weights [n, k]; weights that are read once need not stay in the cache."""
        masks = " & ".join(m for m in (columns.mask, axis.mask) if m)
        weights = self.anchor.inputs[1]
        outer = weights.tensor.static[:-2]
        number = flatten(self._batch(weights), strides_of(outer))
        size = self.shape.n * self.shape.k
        first = self.t.elements.integer(number * size + start * self.shape.k, self.t.point)
        far = ".to(tl.int64)" if size > INT32_MOST else ""
        where = f"{self.packed} + {first} + ({columns.text}){far} * {self.shape.k} + ({axis.text})"
        options = f", mask={masks}, other=0" if masks else ""
        options += ', eviction_policy="evict_first"' if once else ""
        return self.k.w.let(f"tl.load({where}{options})", "w")

    def first_column(self) -> str:
        """Return the first column of a batch's weights among the columns of all matrices."""
        weights = self.anchor.inputs[1]
        number = flatten(self._batch(weights), strides_of(weights.tensor.static[:-2]))
        return self.t.elements.integer(number * self.shape.n, self.t.point)

    def _index(self) -> Index:
        return Index(0, ((self.counter, 1),))

    def _batch(self, operand: Value) -> Indices:
        return aligned(self.t.at[:-2], operand.tensor.static[:-2])

    def _read(self, operand: Value, at: Indices, axis: BlockAxis, shape: str) -> str:
        point = {**self.t.point, self.counter: axis}
        text = self.t.elements.through_views(operand, at, point)
        return self.k.w.let(f"tl.broadcast_to({text}, {shape})", "y")


def packed_rows(weights: Value) -> TritonPacked:
    """Pack constant weights [..., k, n] as [..., n, k], so that a column is contiguous."""
    data = known(weights)
    assert data is not None
    made = np.empty((*data.shape[:-2], data.shape[-1], data.shape[-2]), data.dtype)
    # A stripe is made dense first: columns of a wide matrix would all map to a few lines of the
    # processor's cache.
    for first in range(0, data.shape[-1], STRIPE):
        stripe = np.ascontiguousarray(data[..., first : first + STRIPE])
        made[..., first : first + STRIPE, :] = stripe.swapaxes(-1, -2)
    return TritonPacked(made, weights.dtype)


@dataclass(frozen=True)
class Parts:
    """The division of a result: tiles, each the sum of some parts."""

    split: int
    tiles: int
    size: int
    """The elements of a part, of all tiles together."""
    dtype: DType
    single: bool = False
    """True if a tile is one element: then all its parts are read at once."""


Place = Callable[[str], str]
"""Returns the addresses of a tile's elements of a part, from the number of the part."""


MOST_TILES = 256
"""The most tiles of a split sum with open rows: with more, tiles alone keep a device busy."""


def _counters(tiles: int) -> int:
    """Return the number of counters: memory that is zero before the first run has a fixed size."""
    if not is_open(tiles):
        return tiles
    return MOST_TILES if tiles <= MOST_TILES else int(tiles)


def join_parts(
    k: KernelWriter,
    parts: Parts,
    tile: str,
    place: Place,
    mask: str | None,
    finish: Callable[[str], None],
) -> None:
    """Store `acc` as the part of a program (its third index); the last program finishes.

    tile: the number of the program's tile.
    """
    w = k.w
    memory = k.pointer(TritonScratch(parts.split * parts.size * parts.dtype.itemsize, parts.dtype))
    counts = k.pointer(TritonScratch(_counters(parts.tiles) * i32.itemsize, i32, zeroed=True))
    own = w.let(place(k.program_id(2)), "i")
    w.line(f"tl.store({memory} + {own}, acc{f', mask={mask}' if mask else ''})")
    # This program's stores come before its count, and that before the last one's loads.
    w.line("tl.debug_barrier()")
    count = w.let(f"{counts} + {tile}", "c")
    before = w.name("before")
    w.line(f'{before} = tl.atomic_add({count}, 1, sem="acq_rel")')
    with w.block(f"if {before} == {parts.split - 1}"):
        w.line(f"tl.store({count}, 0)")
        # Bypasses the nearest cache: others have written there.
        options = (f", mask={mask}, other=0" if mask else "") + ', cache_modifier=".cg"'
        total = w.name("total")
        if parts.single:
            numbers = w.let(f"tl.arange(0, {1 << (parts.split - 1).bit_length()})", "r")
            options = f', mask={numbers} < {parts.split}, other=0, cache_modifier=".cg"'
            w.line(f"{total} = tl.sum(tl.load({memory} + {place(numbers)}{options}), 0)")
        else:
            for part in range(parts.split):
                text = f"tl.load({memory} + {place(str(part))}{options})"
                w.line(f"{total} = {total} + {text}" if part else f"{total} = {text}")
        finish(total)
