"""Resizing by interpolation: each axis on its own, so a result is a product of small matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    Dim,
    DType,
    Narrowing,
    Op,
    TensorType,
    Type,
    Value,
    from_numpy,
    sample,
)
from monograph.ir.layout import LayoutPlan, Order, in_order, stored_axes
from monograph.ir.sizes import divides, is_open, proven
from monograph.ops.base import (
    NUMERIC,
    as_tensor,
    check_allocation,
    check_kinds,
    normalise_axis,
)
from monograph.ops.image import (
    COORDINATES,
    CROP,
    ROUNDINGS,
    TAPS,
    Axis,
    coordinates,
    nearest_places,
    taps,
    used_taps,
)
from monograph.ops.scalar import Scalar, ScalarBuilder

NEAREST, LINEAR, CUBIC = "nearest", "linear", "cubic"
STRETCH, NOT_LARGER, NOT_SMALLER = "stretch", "not_larger", "not_smaller"
GRID = 1 << 16
"""Interpolated integers are multiples of 1 / GRID before they become whole."""


@dataclass(frozen=True)
class Resize(Op):
    """x with some axes resampled to `sizes`, or to floor(size * scale).

    `coordinates` says which place of the input a place of the output stands for (see `resample`),
    `mode` how it is read between elements: the nearest one by `rounding`, or a linear or a cubic
    kernel with the parameter `cubic_a`. Places beyond the edges repeat the edge, or with
    `exclude_outside` have no weight. `antialias` widens the kernel when an axis shrinks. Only
    "tf_crop_and_resize" reads `roi` (starts, then ends, relative to the size) and gives
    `extrapolation` beyond the edges. A `policy` other than "stretch" keeps the aspect ratio with
    no axis larger, or none smaller, than `sizes`. Integers between elements are cut off, or with
    `antialias` rounded (see `whole_number`).

    Once the input's sizes are known, `sizes` holds those of the result, `scales` is kept only where
    it differs from their ratio, and axes that do not change are dropped.
    """

    axes: tuple[int, ...]
    sizes: tuple[int, ...] | None = None
    scales: tuple[float, ...] | None = None
    roi: tuple[float, ...] | None = None
    mode: str = NEAREST
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0
    policy: str = STRETCH

    narrowing = Narrowing.ARITHMETIC
    linear = True
    samples = (
        sample("f32[1, 2, 3, 4]", axes=(2, 3), scales=(2.0, 2.0)),
        sample("f32[1, 2, 5, 4]", axes=(2, 3), sizes=(3, 7), mode=LINEAR),
        sample("f32[5, 4]", axes=(0, 1), sizes=(3, 7), mode=CUBIC, exclude_outside=True),
        sample("f32[7, 8]", axes=(0, 1), scales=(0.4, 0.6), mode=LINEAR, antialias=True),
        sample(
            "f32[4, 4]", axes=(0, 1), sizes=(3, 3), mode=LINEAR, coordinates=CROP,
            roi=(0.4, 0.6, 1.2, 0.8), extrapolation=10.0,
        ),
        sample("u8[4, 6]", axes=(1, 0), sizes=(3, 3), policy=NOT_LARGER, coordinates="asymmetric",
               rounding="floor"),
        sample("u8[4, 6]", axes=(0, 1), sizes=(3, 9), mode=LINEAR, coordinates="align_corners"),
        sample("u8[7, 5]", axes=(0, 1), sizes=(21, 15), mode=LINEAR),
        sample("i8[9, 8]", axes=(0, 1), sizes=(4, 5), mode=CUBIC, antialias=True),
    )  # fmt: skip

    def canonical(self, *types: Type) -> Op:
        if len(types) != 1:
            return self
        x = as_tensor(types[0])
        self._check(x)
        op = self._plain()._sorted(x.rank)
        if op.scales is not None and op.coordinates != CROP:
            op = op._select([i for i, s in enumerate(op.scales) if s != 1.0])
        if all(isinstance(x.dims[a], int) for a in op.axes):
            op = op._resolved(tuple(d for a in op.axes if isinstance(d := x.dims[a], int)))
        return op

    def _plain(self) -> Resize:
        """Without attributes that its mode does not read."""
        op = self if self.coordinates == CROP else replace(self, roi=None, extrapolation=0.0)
        if op.mode == NEAREST:
            return replace(op, cubic_a=-0.75, exclude_outside=False, antialias=False)
        return replace(
            op, rounding="round_prefer_floor", cubic_a=-0.75 if op.mode == LINEAR else op.cubic_a
        )

    def _sorted(self, rank: int) -> Resize:
        axes = tuple(normalise_axis(a, rank) for a in self.axes)
        if len(set(axes)) != len(axes):
            raise InferError("an axis is named twice", given=list(self.axes))
        order = sorted(range(len(axes)), key=lambda i: axes[i])
        return replace(self, axes=axes)._select(order)

    def _select(self, chosen: list[int]) -> Resize:
        """Return the axes at these places only, in this order."""

        def pick(given: Any) -> Any:
            return None if given is None else tuple(given[i] for i in chosen)

        n = len(self.axes)
        roi = self.roi and (*pick(self.roi[:n]), *pick(self.roi[n:]))
        return replace(
            self,
            axes=pick(self.axes),
            sizes=pick(self.sizes),
            scales=pick(self.scales),
            roi=roi,
        )

    def _resolved(self, given: tuple[int, ...]) -> Resize:
        """With the sizes of the result, for axes of these sizes."""
        sizes, scales = self.sizes, self.scales
        if sizes is None:
            sizes = tuple(map(_scaled, given, scales or ()))
        elif self.policy != STRETCH:
            choose = min if self.policy == NOT_LARGER else max
            ratio = choose((s / d for s, d in zip(sizes, given, strict=True) if d), default=1.0)
            sizes = tuple(int(np.floor(ratio * d + 0.5)) for d in given)
            scales = (ratio,) * len(sizes)
        if scales is not None and all(map(_is_ratio, scales, sizes, given)):
            scales = None
        op = replace(self, sizes=sizes, scales=scales, policy=STRETCH)
        if scales is None and self.coordinates != CROP:
            op = op._select(
                [i for i, (s, d) in enumerate(zip(sizes, given, strict=True)) if op._moves(s, d)]
            )
        return op

    def _moves(self, after: int, before: int) -> bool:
        """Return True if an axis changes; of open sizes, if it may: the same size is the same axis.

        Coordinates that are shifted would change it.
        """
        shifted = self.coordinates == "tf_half_pixel_for_nn"
        return after != before if shifted else not proven(after, "==", before)

    def _check(self, x: TensorType) -> None:
        if self.mode not in (NEAREST, LINEAR, CUBIC):
            raise InferError("unknown mode", expected=[NEAREST, LINEAR, CUBIC], given=self.mode)
        if self.coordinates not in COORDINATES:
            raise InferError(
                "unknown coordinates", expected=list(COORDINATES), given=self.coordinates
            )
        if self.rounding not in ROUNDINGS:
            raise InferError("unknown rounding", expected=list(ROUNDINGS), given=self.rounding)
        if self.policy not in (STRETCH, NOT_LARGER, NOT_SMALLER):
            raise InferError("unknown policy", given=self.policy)
        if self.mode != NEAREST:
            check_kinds(as_tensor(x).dtype, NUMERIC)
        n = len(self.axes)
        if self.sizes is None and self.policy != STRETCH:
            raise InferError("a policy needs sizes")
        if self.sizes is None and self.scales is None:
            raise InferError("sizes or scales are needed")
        lengths = (("sizes", self.sizes, n), ("scales", self.scales, n), ("roi", self.roi, 2 * n))
        for name, given, length in lengths:
            if given is not None and len(given) != length:
                raise InferError(f"{name} do not fit the axes", expected=length, given=list(given))
        if self.coordinates == CROP and self.roi is None:
            raise InferError("a crop needs a region of interest", given=self.coordinates)
        if any(d < 0 for d in self.sizes or ()):
            raise InferError("a size is negative", given=list(self.sizes or ()))
        if not all(0 < s < 1e9 for s in self.scales or ()):
            raise InferError("a scale is not positive", given=list(self.scales or ()))

    def infer(self, x: TensorType) -> TensorType:
        self._check(x)
        shape: list[Dim] = list(x.dims)
        for i, a in enumerate(self.axes):
            known = self.sizes is not None and self.policy == STRETCH
            shape[a] = self.sizes[i] if known and self.sizes is not None else UNKNOWN
        return x.with_shape(shape)

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return axis if index == 0 and axis not in self.axes and self.policy == "stretch" else None

    def reference(self, x: Array) -> Array:
        op = self.canonical(TensorType(from_numpy(x.dtype), x.shape))
        assert isinstance(op, Resize)
        sizes = op.sizes or ()
        result = list(x.shape)
        for i, a in enumerate(op.axes):
            result[a] = sizes[i]
            if x.shape[a] == 0 and sizes[i]:
                raise ExecutionError("nothing to interpolate between", given=list(x.shape))
        check_allocation(tuple(result), np.float64)
        if 0 in result:
            return np.zeros(result, x.dtype)
        axes = [op.axis_of(i, x.shape[a]) for i, a in enumerate(op.axes)]
        y = op._interpolate(x, axes)
        for a, axis in zip(op.axes, axes, strict=True):
            outside = axis.outside()
            if op.coordinates == CROP and outside.any():
                index = [slice(None)] * y.ndim
                index[a] = outside  # type: ignore[call-overload]
                y[tuple(index)] = op.beyond(from_numpy(x.dtype))
        return y

    def beyond(self, dtype: DType) -> float | int:
        """Return what stands beyond the edges; an integer is cut off, within its range."""
        if not dtype.is_integer:
            return self.extrapolation
        return int(np.clip(np.nan_to_num(self.extrapolation), *_limits(dtype)))

    def axis_of(self, i: int, size: int) -> Axis:
        """Return the coordinates of the i-th resized axis, of this size before."""
        n = len(self.axes)
        sizes = self.sizes or ()
        scale = None if self.scales is None else self.scales[i]
        roi = (0.0, 1.0) if self.roi is None else (self.roi[i], self.roi[n + i])
        return coordinates(self.coordinates, size, sizes[i], scale, roi)

    def _interpolate(self, x: Array, axes: list[Axis]) -> Array:
        if self.mode == NEAREST:
            for a, axis in zip(self.axes, axes, strict=True):
                x = np.take(x, nearest_places(axis, self.rounding), a)
            return x.copy() if not self.axes else x
        dtype = from_numpy(x.dtype)
        y = x.astype(np.float64)
        for a, axis in zip(self.axes, axes, strict=True):
            slope = None if self.mode == LINEAR else self.cubic_a
            # Kernels do not read taps that weigh nothing: NaN in them has to count on no target.
            places, weights = used_taps(*taps(axis, slope, self.antialias, self.exclude_outside))
            total: Any = 0.0
            shape = [-1 if i == a else 1 for i in range(y.ndim)]
            for place, weight in zip(places, weights, strict=True):
                total = total + np.take(y, place, a) * weight.reshape(shape)
            y = total
        return _rounded(y, dtype, self.antialias)

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        x = as_tensor(types[0])
        axes = static["axes"]
        for name, t in late.items():
            given, expected = as_tensor(t).dims, len(axes) * (2 if name == "roi" else 1)
            if given and isinstance(given[0], int) and given[0] != expected:
                raise InferError(f"{name} do not fit the axes", expected=expected, given=t)
        named = {normalise_axis(a, x.rank) for a in axes}
        return x.with_shape(UNKNOWN if i in named else d for i, d in enumerate(x.dims))

    def bound(self, value: Value, given: Sequence[float]) -> float:
        """Return the bound of values between elements; a cubic kernel overshoots them."""
        return math.inf if self.mode == CUBIC else max(given[0], abs(self.extrapolation))

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        return in_order(value, order, axes=stored_axes(order, self.axes))

    def accumulation_length(self, *types: TensorType) -> int:
        return int(TAPS.get(self.mode, 1) ** len(self.axes))


def _scaled(size: int, scale: float) -> int:
    """Return floor(size * scale), computed in f32."""
    if is_open(size):
        times, by = np.float32(scale).item().as_integer_ratio()
        if by <= SMALL_DIVISOR and size <= EXACT_IN_F32 // max(times, by):
            return size * times // by
    return int(np.floor(np.float32(size) * np.float32(scale)))


EXACT_IN_F32 = 1 << 24
"""The integers up to this are exact in f32."""


SMALL_DIVISOR = 64
"""Scales that are fractions with up to this divisor are exact for open sizes too."""


def _is_ratio(scale: float, after: int, before: int) -> bool:
    """Return True if a scale is the ratio of two sizes, for all sizes if these are open."""
    if (is_open(after) or is_open(before)) and not divides(before, after):
        return False
    ratio = after / before if before else 1.0
    return bool(np.float32(scale) == np.float32(ratio))


def _rounded(y: Array, dtype: DType, antialias: bool) -> Array:
    """Return the result in its element type; `whole_number` says which integer that is."""
    if not dtype.is_integer:
        return y.astype(dtype.numpy)
    grid = np.floor(y * GRID + 0.5) / GRID
    grid = np.floor(grid + 0.5) if antialias else grid
    return np.clip(grid, *_limits(dtype)).astype(dtype.numpy)


def whole_number(b: ScalarBuilder, y: Scalar, dtype: DType, antialias: bool) -> Scalar:
    """Return an interpolated number, an f64, as the integer that stands for it, still in f64.

    The standard does not say which one it is. ONNX Runtime cuts off, and rounds where it
    antialiases. The number is first rounded to a multiple of 1 / GRID: weights are not exact, and
    the order of a sum must not decide whether 3 comes out as 2.
    """
    half = b.constant(0.5, y.dtype)
    y = b.mul(
        b.floor(b.add(b.mul(y, b.constant(float(GRID), y.dtype)), half)),
        b.constant(1.0 / GRID, y.dtype),
    )
    if antialias:
        y = b.floor(b.add(y, half))
    lowest, highest = _limits(dtype)
    return b.min(b.max(y, b.constant(lowest, y.dtype)), b.constant(highest, y.dtype))


def _limits(dtype: DType) -> tuple[float, float]:
    """Return the smallest and the largest f64 that an integer type can hold."""
    lowest = -(2.0 ** (dtype.bits - 1)) if dtype.is_signed else 0.0
    beyond = 2.0 ** (dtype.bits - (1 if dtype.is_signed else 0))
    return lowest, min(beyond - 1, float(np.nextafter(beyond, 0)))
