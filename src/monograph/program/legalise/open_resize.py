"""Resizes of axes of open size as lookups, at places and with weights that a run computes.

A kernel for resizing reads tables that are made at compile time; those of an axis of open size
depend on the run. The places of the results are a vector, so that to compute them costs little.
"""

from __future__ import annotations

import numpy as np

from monograph.ir import DType, Value, constant
from monograph.ir.dtype import f32, f64, i64
from monograph.ir.sizes import hint_of, is_open
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Ceil, Div, Floor, Max, Min, Mul, Sub, Where
from monograph.ops.image import CROP
from monograph.ops.index import Gather
from monograph.ops.logic import Less
from monograph.ops.pad_tile import Iota
from monograph.ops.reduce import ReduceMax
from monograph.ops.resize import LINEAR, NEAREST, STRETCH, Resize
from monograph.ops.shape import Reshape


def as_lookups(op: Resize, x: Value) -> Value | None:
    """Return a resize with axes of open size as lookups; None if it has none, or cannot be."""
    shape, sizes = x.tensor.static, op.sizes
    if sizes is None or op.policy != STRETCH or op.coordinates == CROP:
        return None
    if not any(is_open(n) or is_open(shape[a]) for n, a in zip(sizes, op.axes, strict=True)):
        return None
    if op.mode != NEAREST and (op.mode != LINEAR or not x.dtype.is_float):
        return None
    if op.antialias or op.exclude_outside or 0 in shape:
        return None
    # The axis that shrinks most comes first: the others have less to do.
    order = sorted(range(len(sizes)), key=lambda i: _growth(shape[op.axes[i]], sizes[i]))
    wide = x.dtype if op.mode == NEAREST or x.dtype == f64 else f32
    made = x if x.dtype == wide else Cast(wide)(x)
    for i in order:
        made = _Axis(op, i, shape[op.axes[i]]).resized(made)
    return made if made.dtype == x.dtype else Cast(x.dtype)(made)


def _growth(before: int, after: int) -> float:
    return float(hint_of(after) / max(hint_of(before), 1))


def _number(size: int) -> Value:
    """Return a size as an f64."""
    if is_open(size):
        return Cast(f64)(constant(np.array(size, object), i64))
    return _real(size)


def _real(number: float) -> Value:
    return constant(np.float64(number))


class _Axis:
    """One axis of a resize: the arithmetic of `ops.image.coordinates`, on values of the run."""

    def __init__(self, op: Resize, i: int, size: int) -> None:
        assert op.sizes is not None
        self.op, self.axis = op, op.axes[i]
        self.size, self.count = size, op.sizes[i]
        self.scale = None if op.scales is None else op.scales[i]
        self.last = Sub()(_number(size), _real(1))

    def resized(self, x: Value) -> Value:
        """Return x with this axis resized."""
        places = self._places()
        if self.op.mode == NEAREST:
            return self._read(x, self._nearest(places))
        base = Floor()(places)
        beyond = Add()(base, _real(1))
        near = Sub()(_real(1), Sub()(places, base))
        far = Sub()(_real(1), Sub()(beyond, places))
        taps = ((base, near), (beyond, far))
        parts = [Mul()(self._read(x, at), self._weight(w, x)) for at, w in taps]
        return Add()(parts[0], self._used(far, parts[1]))

    def _used(self, weights: Value, part: Value) -> Value:
        """Return a part of the sums; 0 where it weighs nothing in any of them.

        It is not read then on other targets: NaN and infinities in it must not count.
        """
        most = ReduceMax((0,), keep=True)(weights)
        weighs = Reshape((1,) * part.tensor.rank)(Less()(_real(0), most))
        return Where()(weighs, part, constant(np.zeros((), part.dtype.numpy)))

    def _places(self) -> Value:
        """Return the places of the input that the results stand for."""
        mode, steps = self.op.coordinates, Cast(f64)(Iota(self.count)())
        if mode == "align_corners":
            spans = Max()(Sub()(self._length(), _real(1)), _real(1))  # of one element: 0 / 1
            return Div()(Mul()(steps, self.last), spans)
        if mode == "asymmetric":
            return self._unscaled(steps)
        if mode == "pytorch_half_pixel" and self.count <= 1:
            return Mul()(steps, _real(0))
        centres = self._unscaled(Add()(steps, _real(0.5)))
        if mode == "tf_half_pixel_for_nn":
            return centres
        places = Sub()(centres, _real(0.5))
        if mode == "half_pixel_symmetric" and self.scale is not None:
            rest = Sub()(_real(1), Div()(_number(self.count), self._length()))
            half = Div()(_number(self.size), _real(2))
            places = Add()(places, Mul()(half, rest))
        return places

    def _unscaled(self, x: Value) -> Value:
        if self.scale is None:
            return Div()(Mul()(x, _number(self.size)), _number(self.count))
        return Cast(f64)(Div()(Cast(f32)(x), constant(np.float32(self.scale))))

    def _length(self) -> Value:
        if self.scale is None:
            return _number(self.count)
        wide = Mul()(Cast(f32)(_number(self.size)), constant(np.float32(self.scale)))
        return Cast(f64)(wide)

    def _nearest(self, x: Value) -> Value:
        rounding = self.op.rounding
        if rounding == "simple":
            grows = self.count >= self.size if self.scale is None else self.scale >= 1
            rounding = "floor" if grows else "ceil"
        if rounding in ("floor", "round_prefer_ceil"):
            return Floor()(x if rounding == "floor" else Add()(x, _real(0.5)))
        return Ceil()(x if rounding == "ceil" else Sub()(x, _real(0.5)))

    def _read(self, x: Value, places: Value) -> Value:
        inside = Min()(Max()(places, _real(0)), self.last)
        return Gather(self.axis)(x, Cast(i64)(inside))

    def _weight(self, weight: Value, x: Value) -> Value:
        shape = _along(self.axis, self.count, x.tensor.rank)
        dtype: DType = x.dtype
        return Reshape(shape)(weight if dtype == f64 else Cast(dtype)(weight))


def _along(axis: int, count: int, rank: int) -> tuple[int, ...]:
    return tuple(count if i == axis else 1 for i in range(rank))
