"""Resizing: elements along each resized axis by precomputed tables of positions and weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.scalar import register_type
from monograph.codegen.triton.emit.tile import ResultTile, coordinates, each, read, register, table
from monograph.codegen.triton.emit.writer import Writer
from monograph.codegen.triton.module.kernel import Candidate, GpuContext, KernelWriter, kernel_for
from monograph.ir import Array, DType, Value
from monograph.ir.dtype import f32, f64
from monograph.ops.image import CROP, nearest_places, taps, used_taps
from monograph.ops.resize import LINEAR, NEAREST, Resize, whole_number
from monograph.ops.scalar import Scalar

MOST_UNROLLED = 36
"""The most taps that are unrolled."""


def serves(anchor: Value) -> bool:
    op = anchor.op
    if not isinstance(op, Resize) or op.sizes is None or op.policy != "stretch":
        return False
    return 0 in anchor.tensor.static or 0 not in anchor.inputs[0].tensor.static


@kernel_for(Resize, when=serves, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    return each(context, _resized)


@dataclass(frozen=True)
class _Axis:
    """A resized axis: [output, tap] positions and weights, and the outputs that are outside."""

    dimension: int
    places: Array
    weights: Array | None
    outside: Array

    @property
    def taps(self) -> int:
        return int(self.places.shape[1])


def _axis(op: Resize, number: int, size: int) -> _Axis:
    where = op.axis_of(number, size)
    outside = where.outside() if op.coordinates == CROP else np.zeros(0, bool)
    if op.mode == NEAREST:
        return _Axis(op.axes[number], nearest_places(where, op.rounding)[:, None], None, outside)
    a = None if op.mode == LINEAR else op.cubic_a
    places, weights = used_taps(*taps(where, a, op.antialias, op.exclude_outside))
    return _Axis(op.axes[number], places.T, weights.T, outside)


def _resized(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    anchor = k.context.anchor
    op, x, w, s = anchor.op, anchor.inputs[0], k.w, t.elements.scalars
    assert isinstance(op, Resize)
    axes = [_axis(op, i, x.tensor.static[a]) for i, a in enumerate(op.axes)]
    texts = [t.point[t.counter(d)].text for d in range(len(t.shape))]
    dtype = x.dtype
    if op.mode != NEAREST:
        dtype = f32 if x.dtype.is_float and x.dtype != f64 else f64
    walk = _Walk(k, t, x, axes, texts, dtype, mask)
    total = walk.only() if op.mode == NEAREST else walk.summed()
    if not anchor.dtype.is_float and op.mode != NEAREST:
        total = whole_number(s, total, anchor.dtype, op.antialias)
    made = s.cast(total, anchor.dtype)
    for axis in axes:
        if axis.outside.any():
            pointer = table(k, axis.outside.astype(np.int8))
            beyond = w.let(f"tl.load({pointer} + ({texts[axis.dimension]}){walk.inside}) != 0", "m")
            other = s.constant(op.beyond(anchor.dtype), anchor.dtype)
            made = Scalar(
                w.set(made.reg.type, f"tl.where({beyond}, {other.reg}, {made.reg})"), made.dtype
            )
    return s.encoded(made)


@dataclass
class _Walk:
    """The weighted sum over the taps of all resized axes."""

    k: KernelWriter
    t: ResultTile
    x: Value
    axes: list[_Axis]
    texts: list[str]
    dtype: DType
    mask: str | None

    def __post_init__(self) -> None:
        # Masked: a block may be larger than the result.
        self.inside = f", mask={self.mask}, other=0" if self.mask else ""
        self.places = [table(self.k, a.places.astype(np.int32)) for a in self.axes]
        self.weights = [
            "" if a.weights is None else table(self.k, a.weights.astype(self.dtype.numpy))
            for a in self.axes
        ]

    @property
    def count(self) -> int:
        return math.prod(a.taps for a in self.axes)

    def only(self) -> Scalar:
        return self._tap(["0"] * len(self.axes))[0]

    def summed(self) -> Scalar:
        w = self.k.w
        shape = self.texts[0] if self.texts else "tl.full((), 0, tl.int32)"
        w.line(f"total = tl.zeros_like({shape}).to({register_type(self.dtype)})")
        total = register(w, "total", self.dtype)
        if self.count <= MOST_UNROLLED:
            for number in np.ndindex(*(a.taps for a in self.axes)):
                w.assign("total", str(self._added(total, [str(n) for n in number]).reg))
            return total
        with w.block(f"for tap in range({self.count})"):
            numbers = coordinates(w, "tap", [a.taps for a in self.axes])
            w.assign("total", str(self._added(total, numbers).reg))
        return total

    def _added(self, total: Scalar, numbers: list[str]) -> Scalar:
        s = self.t.elements.scalars
        x, weight = self._tap(numbers)
        own = s.cast(x, self.dtype)
        return s.add(total, own if weight is None else s.mul(own, weight))

    def _tap(self, numbers: list[str]) -> tuple[Scalar, Scalar | None]:
        """Return the element under a tap, and the product of its weights."""
        w: Writer = self.k.w
        s = self.t.elements.scalars
        at, weight = list(self.texts), None
        for i, (axis, number) in enumerate(zip(self.axes, numbers, strict=True)):
            entry = w.let(f"({self.texts[axis.dimension]}) * {axis.taps} + {number}", "i")
            at[axis.dimension] = w.let(f"tl.load({self.places[i]} + {entry}{self.inside})", "n")
            if axis.weights is not None:
                text = f"tl.load({self.weights[i]} + {entry}{self.inside})"
                own = register(w, text, self.dtype)
                weight = own if weight is None else s.mul(weight, own)
        return read(self.t.elements, self.x, at, self.mask), weight
