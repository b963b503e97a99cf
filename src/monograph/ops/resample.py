"""The resampling of one axis: the places of the input that are read, and their weights.

Holds no op; `Resize` is made of this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from monograph.ir import Array

CROP = "tf_crop_and_resize"
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    CROP,
)
"""For a place of the output, the place of the input it stands for:

- half_pixel: centres of elements at halves, (i + 0.5) / scale - 0.5; "symmetric" keeps the centre
  of the input in the centre where a size was rounded; "pytorch" gives 0 for a single element;
- align_corners: the first and last elements fall together;
- asymmetric: i / scale;
- tf_half_pixel_for_nn: (i + 0.5) / scale;
- tf_crop_and_resize: from the start to the end of a region.
"""
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
"""Rules for the nearest element; "simple" is floor for an axis that grows, else ceil."""


@dataclass(frozen=True)
class Axis:
    """An axis of `size` elements, its scale, and the places of it that the output reads."""

    size: int
    scale: float
    places: Array

    def outside(self) -> Array:
        """Return the places beyond the edges."""
        return ~((self.places >= 0) & (self.places <= self.size - 1))


def coordinates(
    mode: str, size: int, count: int, scale: float | None, roi: tuple[float, float]
) -> Axis:
    """Return the places of `count` results on an axis; the default scale is the ratio of sizes."""
    steps = np.arange(count, dtype=np.float64)
    ratio = count / size if scale is None else scale

    def unscaled(x: Array) -> Array:
        if scale is None:
            return x * size / count
        # A scale is an f32. Dividing in f32 too makes 1 / (1/3) a whole number again.
        return (x.astype(np.float32) / np.float32(scale)).astype(np.float64)

    length = float(count) if scale is None else float(np.float32(scale) * np.float32(size))
    if mode == "align_corners":
        places = steps * (size - 1) / (length - 1) if length != 1 else steps * 0
    elif mode == "asymmetric":
        places = unscaled(steps)
    elif mode == "tf_half_pixel_for_nn":
        places = unscaled(steps + 0.5)
    elif mode == "pytorch_half_pixel" and count <= 1:
        places = steps * 0
    elif mode == CROP:
        start, end = roi
        first, last = start * (size - 1), end * (size - 1)
        places = first + steps * ((last - first) / (count - 1)) if count > 1 else steps
        places = places if count > 1 else steps * 0 + (first + last) / 2
    else:
        places = unscaled(steps + 0.5) - 0.5
        if mode == "half_pixel_symmetric":
            places = places + size / 2 * (1 - count / length)
    return Axis(size, ratio, places)


def nearest_places(axis: Axis, rounding: str) -> Array:
    """Return the elements nearest to the places, within the axis."""
    if rounding == "simple":
        rounding = "floor" if axis.scale >= 1 else "ceil"
    x = axis.places
    chosen: Array
    if rounding in ("floor", "round_prefer_ceil"):
        chosen = np.floor(x if rounding == "floor" else x + 0.5)
    else:
        chosen = np.ceil(x if rounding == "ceil" else x - 0.5)
    places: Array = np.clip(np.nan_to_num(chosen), 0, axis.size - 1).astype(np.int64)
    return places


def cubic_kernel(x: Array, a: float) -> Array:
    """Return the cubic convolution kernel with the slope a at distance 1."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def taps(axis: Axis, a: float | None, antialias: bool, exclude: bool) -> tuple[Array, Array]:
    """(places, weights), each [taps, count]: a linear kernel, or a cubic one with parameter a."""
    squeeze = min(1.0, axis.scale) if antialias else 1.0
    reach = math.ceil((1 if a is None else 2) / squeeze)
    # Beyond this distance every tap reads the edge.
    reach = min(reach, 2 * axis.size + 2)
    base = np.floor(np.nan_to_num(axis.places)).astype(np.int64)
    places = base + np.arange(1 - reach, reach + 1)[:, None]
    distance = (places - axis.places) * squeeze
    weights = np.maximum(0.0, 1 - np.abs(distance)) if a is None else cubic_kernel(distance, a)
    if exclude:
        weights = np.where((places >= 0) & (places < axis.size), weights, 0.0)
    if exclude or antialias:
        weights = weights / weights.sum(0)
    return np.clip(places, 0, axis.size - 1), weights


def used_taps(places: Array, weights: Array) -> tuple[Array, Array]:
    """Drop the taps whose weight is zero everywhere."""
    kept = (weights != 0).any(1)
    kept[0] |= not kept.any()
    return places[kept], weights[kept]
