"""Kernels that compute indices: gather, pad, ranges, table lookup, col2im, turns, copies.

Several copies between memory locations are one kernel, at offsets that a counter may give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.elements import INT32_MOST, BlockAxis
from monograph.codegen.triton.emit.scalar import register_type
from monograph.codegen.triton.emit.tile import (
    Body,
    ResultTile,
    accumulator,
    each,
    joined,
    read,
    register,
    table,
)
from monograph.codegen.triton.emit.writer import literal
from monograph.codegen.triton.module.kernel import (
    BufferView,
    Candidate,
    GpuContext,
    KernelWriter,
    TritonFault,
    TritonPacked,
    TritonScratch,
    kernel_for,
    single,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.ir import TensorType, Value
from monograph.ir.dtype import i64
from monograph.ops.index import Gather, GatherElements, GatherNd
from monograph.ops.ml import Lookup
from monograph.ops.pad_tile import Iota, Pad
from monograph.ops.scalar import Scalar
from monograph.ops.scatter import Col2Im
from monograph.program.fusion.index_bounds import is_within
from monograph.program.fusion.region import Indices
from monograph.program.index import Index, kept_counter, strides_of
from monograph.program.legalise.lower_random import TakeTurn
from monograph.program.program import Program


def serves(anchor: Value) -> bool:
    op = anchor.op
    if isinstance(op, Lookup):
        return not (op.keys.dtype.is_string or op.values.dtype.is_string)
    return isinstance(op, (Col2Im, Iota, TakeTurn))


@kernel_for(Col2Im, Iota, Lookup, TakeTurn, when=serves, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    anchor = context.anchor
    if isinstance(anchor.op, TakeTurn):  # a single candidate: a measurement would advance the state
        return single("turn", each(context, _turn)[0].make)
    bodies: dict[type, Body] = {
        Col2Im: _laid_over,
        Iota: _counted,
        Lookup: _looked_up,
    }
    return each(context, bodies[type(anchor.op)])


def _counted(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    return str(t.elements.count(t.at[0], t.point).reg)


def _turn(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the number in an RNG state, which is advanced after every thread has read it."""
    state = k.pointer(k.context.anchor.inputs[0])
    turn = k.w.let(f"tl.load({state})", "turn")
    k.w.line("tl.debug_barrier()")
    k.w.line(f"tl.store({state}, {turn} + 1)")
    return turn


def _looked_up(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the value under the last key that equals an element; a NaN equals a NaN."""
    anchor = k.context.anchor
    op, x, w, s = anchor.op, anchor.inputs[0], k.w, t.elements.scalars
    assert isinstance(op, Lookup)
    texts = [t.point[t.counter(d)].text for d in range(len(t.shape))]
    mask = mask if texts else None
    given = read(t.elements, x, texts, mask)
    values = op.values.array if op.default is None else np.append(op.values.array, op.default.array)
    count = len(op.keys.array)
    w.line(f"place = {texts[0] if texts else 'tl.program_id(0)'} * 0 + {count}")
    if count:
        with w.block(f"for number in range({count})"):
            key = s.decoded(f"tl.load({table(k, op.keys.array)} + number)", x.dtype)
            same = f"({s.equal(given, key).reg})"
            if x.dtype.is_float:
                same += f" | (({given.reg} != {given.reg}) & ({key.reg} != {key.reg}))"
            w.assign("place", f"tl.where({same}, number, place)")
    if op.default is None:
        missing = w.let(f"(place == {count})" + (f" & {mask}" if mask else ""), "m")
        k.report(TritonFault("an element is not in the table"), missing, "place * 0")
        w.assign("place", f"tl.minimum(place, {max(count - 1, 0)})")
    found: Scalar = s.decoded(
        f"tl.load({table(k, values)} + place)" if len(values) else "place * 0", anchor.dtype
    )
    return s.encoded(found)


def _laid_over(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the sum of all block elements that cover a pixel."""
    anchor = k.context.anchor
    op, x, w, e = anchor.op, anchor.inputs[0], k.w, t.elements
    assert isinstance(op, Col2Im)
    n, c, *pixel = (t.point[t.counter(d)].text for d in range(len(t.shape)))
    counts, wide = op.block_counts(), accumulator(anchor.dtype)
    w.line(f"total = tl.zeros_like({n}).to({register_type(wide)})")
    total = register(w, "total", wide)
    for place in np.ndindex(*op.block):
        numbers, masks = [], [mask] if mask else []
        for d, at in enumerate(place):
            start = w.let(f"{pixel[d]} + {op.pads_begin[d] - at * op.dilations[d]}", "s")
            number = w.let(f"{start} // {op.strides[d]}", "n")
            masks.append(
                f"({start} >= 0) & ({start} % {op.strides[d]} == 0) & ({number} < {counts[d]})"
            )
            numbers.append(number)
        inside = w.let(" & ".join(f"({m})" for m in masks), "m")
        row = joined(w, [c, *map(str, place)], (x.tensor.static[1], *op.block))
        found = e.scalars.cast(read(e, x, [n, row, joined(w, numbers, counts)], inside), wide)
        own = register(w, f"tl.where({inside}, {found.reg}, {literal(0, found.reg.type)})", wide)
        w.assign("total", str(e.scalars.add(total, own).reg))
    return e.scalars.encoded(e.scalars.cast(total, anchor.dtype))


def serves_gather(anchor: Value) -> bool:
    """Return True for a gather with valid shapes, or padding."""
    if isinstance(anchor.op, GatherElements):
        x, indices = (v.tensor.static for v in anchor.inputs)
        axis = anchor.op.axis
        return all(b <= a for k, (a, b) in enumerate(zip(x, indices, strict=True)) if k != axis)
    if isinstance(anchor.op, GatherNd):
        x, indices = (v.tensor.static for v in anchor.inputs)
        return x[: anchor.op.batch_dims] == indices[: anchor.op.batch_dims]
    if isinstance(anchor.op, Pad):
        # An empty axis has nothing to repeat: there is no element to read.
        return 0 in anchor.tensor.static or anchor.op.fills(anchor.inputs[0].tensor.static)
    return isinstance(anchor.op, Gather)


@kernel_for(Gather, GatherElements, GatherNd, Pad, when=serves_gather, readable=any_view)
def gather_candidates(context: GpuContext) -> list[Candidate]:
    if isinstance(context.anchor.op, Pad):
        return each(context, _padded)
    return each(context, _gathered)


def _gathered(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    anchor = k.context.anchor
    op, (x, indices) = anchor.op, anchor.inputs
    at, sizes = t.at, x.tensor.static
    if isinstance(op, GatherElements):
        found = {op.axis: _index(k, t, indices, at, sizes[op.axis], mask)}
        return read_at(t, x, at, found, mask)
    if isinstance(op, Gather):
        axis, rank = op.axis, indices.tensor.rank
        found = {axis: _index(k, t, indices, at[axis : axis + rank], sizes[axis], mask)}
        return read_at(t, x, (*at[:axis], Index(), *at[axis + rank :]), found, mask)
    assert isinstance(op, GatherNd)
    batch, (*count, depth) = op.batch_dims, indices.tensor.static
    own = at[: len(count)]
    found = {
        batch + i: _index(k, t, indices, (*own, Index(i)), sizes[batch + i], mask)
        for i in range(depth)
    }
    return read_at(t, x, (*at[:batch], *(Index(),) * depth, *at[len(count) :]), found, mask)


def _index(
    k: KernelWriter, t: ResultTile, indices: Value, at: Indices, size: int, mask: str | None
) -> str:
    """Return an index counted from the front; one out of range is reported and replaced by 0."""
    loaded = t.elements.element(indices, at, t.point)
    wide = t.elements.scalars.cast(loaded, i64).reg
    return checked_index(k, str(wide), size, mask, reports=not is_within(indices, size))


def checked_index(
    k: KernelWriter, index: str, size: int, mask: str | None, *, reports: bool = True
) -> str:
    """Return a block of i64 indices into a dimension, counted from the front and valid."""
    from_front = k.w.let(f"tl.where({index} < 0, {index} + {size}, {index})", "n")
    wrong = k.w.let(f"({from_front} < 0) | ({from_front} >= {size})", "m")
    if reports:
        reported = k.w.let(f"{wrong} & {mask}", "m") if mask else wrong
        k.report(TritonFault("an index is out of range", f"{-size}..{size - 1}"), reported, index)
    # With the mask, even a single index becomes a block, which a masked load needs.
    beyond = f"{wrong} | ({mask} == 0)" if mask else wrong
    return k.w.let(f"tl.where({beyond}, 0, {from_front})", "n")


def read_at(t: ResultTile, x: Value, at: Indices, found: dict[int, str], mask: str | None) -> str:
    """Load elements of x at an index, some of whose numbers are data."""
    point = dict(t.point)
    whole = list(at)
    for dimension, text in found.items():
        counter = kept_counter(f"g{dimension}", x.tensor.static[dimension])
        point[counter] = BlockAxis(text, mask)
        whole[dimension] = Index(0, ((counter, 1),))
    if 0 in x.tensor.static:
        return "tl.zeros((1,), tl.int8)"
    return t.elements.through_views(x, tuple(whole), point)


def _padded(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return x inside, and the padding around it."""
    anchor = k.context.anchor
    op, x, w = anchor.op, anchor.inputs[0], k.w
    assert isinstance(op, Pad)
    inside, found = [], {}
    for d, (before, after, size) in enumerate(
        zip(op.before, op.after, x.tensor.static, strict=True)
    ):
        left = size + min(before, 0) + min(after, 0)
        place = (
            f"({t.point[t.counter(d)].text}) - {before}" if before else t.point[t.counter(d)].text
        )
        if before <= 0 and after <= 0:
            found[d] = w.let(place, "s")
            continue
        skipped = max(-before, 0)
        own = w.let(f"{place} - {skipped}" if skipped else place, "s")
        if op.mode == "constant":
            inside.append(w.let(f"({own} >= 0) & ({own} < {left})", "m"))
        elif op.mode == "edge":
            own = w.let(f"tl.minimum(tl.maximum({own}, 0), {left - 1})", "s")
        else:
            period = left if op.mode == "wrap" else max(2 * (left - 1), 1)
            turns = -(-max(before, 0) // period) * period
            own = w.let(f"({own} + {turns}) % {period}", "s")
            if op.mode != "wrap":
                own = w.let(f"tl.where({own} < {left}, {own}, {period} - {own})", "s")
        found[d] = w.let(f"{own} + {skipped}" if skipped else own, "s")
    whole = (
        w.let(" & ".join(f"({m})" for m in [*inside, *([mask] if mask else [])]), "m")
        if inside or mask
        else None
    )
    loaded = read_at(t, x, (Index(),) * len(t.shape), found, whole)
    if op.mode != "constant" or len(anchor.inputs) < 2 or not inside:
        return loaded
    fill = t.elements.element(anchor.inputs[1], (), t.point)
    outside = t.elements.scalars.encoded(fill)
    return w.let(f"tl.where({' & '.join(inside)}, {loaded}, {outside})")


BLOCK = 512


@dataclass(frozen=True)
class CopyOperand:
    """The location of elements: the memory of an argument, a byte offset, strides."""

    of: Value | TritonPacked | TritonScratch
    offset: int
    type: TensorType
    strides: tuple[int, ...]

    @property
    def dense(self) -> bool:
        """True if the elements are contiguous."""
        steps = zip(self.type.static, self.strides, strides_of(self.type.static), strict=True)
        return all(d == 1 or a == b for d, a, b in steps) or 0 in self.type.static

    def part(self, offset: int = 0) -> BufferView:
        """Return the kernel argument for these elements."""
        dtype, shape = self.type.dtype, self.type.static
        return BufferView(
            self.of, self.offset + offset * dtype.itemsize, dtype, shape, self.strides
        )

    def slice(self, axis: int, number: int) -> CopyOperand:
        """Return the elements at one index of an axis."""
        skipped = number * self.strides[axis] * self.type.dtype.itemsize
        return replace(self.without(axis), offset=self.offset + skipped)

    def without(self, axis: int) -> CopyOperand:
        """Return the operand without one axis, at its index 0."""
        shape = [d for k, d in enumerate(self.type.static) if k != axis]
        strides = tuple(s for k, s in enumerate(self.strides) if k != axis)
        return CopyOperand(self.of, self.offset, self.type.with_shape(shape), strides)


def room(type_: TensorType) -> CopyOperand:
    """Return memory for elements of a type, for as long as a step runs."""
    return dense(TritonScratch(max(type_.nbytes, 1), type_.dtype), type_)


def dense(
    of: Value | TritonPacked | TritonScratch, type_: TensorType, offset: int = 0
) -> CopyOperand:
    """Return contiguous elements in the memory of an argument."""
    return CopyOperand(of, offset, type_, strides_of(type_.static))


def stored(program: Program, value: Value) -> CopyOperand:
    """Return the location of a value of a program."""
    return CopyOperand(value, 0, value.tensor, program.places.storage[value].strides)


@dataclass(frozen=True)
class Copied:
    """Elements to copy; zeros without a source.

    A source or a target with an axis means the slice at the counter, from the front or from the
    end.
    """

    source: CopyOperand | None
    target: CopyOperand
    source_axis: int | None = None
    target_axis: int | None = None
    backward: bool = False


def copy(
    context: GpuContext,
    pieces: Sequence[Copied],
    counter: TritonScratch | None = None,
    scalars: Callable[[KernelWriter], object] | None = None,
) -> tuple[Launch, ...]:
    """Return one kernel for some copies, and a few lines that only its last program runs.

    These lines may not change what the copies read.
    """
    pieces = [p for p in pieces if 0 not in _type(p).static]
    if not pieces and scalars is None:
        return ()
    k = context.kernel()
    w = k.w
    pid = k.program_id()
    k.wait()
    first = 0
    for piece in pieces:
        blocks = -(-math.prod(_type(piece).static) // BLOCK)
        with w.block(f"if ({pid} >= {first}) & ({pid} < {first + blocks})"):
            _copy(k, piece, f"({pid} - {first})", counter)
        first += blocks
    if scalars is not None:
        with w.block(f"if {pid} == {first}"):
            scalars(k)
        first += 1
    k.trigger()
    return (k.launch((first,)),)


def _type(piece: Copied) -> TensorType:
    """Return the type of what is copied at once."""
    target = piece.target
    return target.type if piece.target_axis is None else target.without(piece.target_axis).type


def _copy(k: KernelWriter, piece: Copied, block: str, counter: TritonScratch | None) -> None:
    w, type_ = k.w, _type(piece)
    size = math.prod(type_.static)
    flat = w.let(f"{block} * {BLOCK} + tl.arange(0, {BLOCK})", "i")
    mask = w.let(f"{flat} < {size}", "m")
    target = _position(k, piece.target, piece.target_axis, piece.backward, flat, counter)
    if piece.source is None:
        w.line(f"tl.store({target}, 0, mask={mask})")
        return
    source = _position(k, piece.source, piece.source_axis, piece.backward, flat, counter)
    w.line(f"tl.store({target}, tl.load({source}, mask={mask}, other=0), mask={mask})")


def _position(
    k: KernelWriter,
    place: CopyOperand,
    axis: int | None,
    backward: bool,
    flat: str,
    counter: TritonScratch | None,
) -> str:
    """Return the pointers to a block of the elements of an operand, or of a slice of it."""
    pointer = k.pointer(place.part())
    reach = sum((d - 1) * s for d, s in zip(place.type.static, place.strides, strict=True))
    wide = ".to(tl.int64)" if reach > INT32_MOST else ""
    if axis is not None:
        assert counter is not None
        number = k.w.let(f"tl.load({k.pointer(counter)})", "t")
        if backward:
            number = k.w.let(f"{place.type.static[axis] - 1} - {number}", "t")
        pointer = k.w.let(f"{pointer} + {number} * {place.strides[axis]}", "pp")
        place = place.without(axis)
    if place.dense:
        return f"{pointer} + {flat}{wide}"
    terms, step = [], math.prod(place.type.static)
    for size, stride in zip(place.type.static, place.strides, strict=True):
        step //= size
        terms.append(f"({flat}{wide} // {step} % {size}) * {stride}")
    return f"{pointer} + {' + '.join(terms) or '0'}"
