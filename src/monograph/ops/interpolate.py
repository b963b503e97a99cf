"""Reading an array between its elements, at places that are data: what deformable convolutions
and sampling ops share.

Holds no op.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from monograph.ir import Array, TensorType
from monograph.ops.resample import cubic_kernel

NEAREST, LINEAR, CUBIC = "nearest", "linear", "cubic"
ZEROS, BORDER, REFLECT, MIRROR = "zeros", "border", "reflect", "mirror"
"""Padding beyond the edges: zeros, the last element, or the axis reflected, at the outer edge
of the last element (REFLECT) or at its centre (MIRROR)."""

TAPS = {LINEAR: 2, CUBIC: 4}
"""Elements along one axis that an interpolated element is made of."""
CUBIC_A = -0.75
FAR = 2.0**40
"""Places are limited to this, so that they convert to integers."""


def sampling_gain(x: TensorType) -> float:
    """Return the squared factor by which a difference of places counts in a sample.

    A place that is a fraction f of an axis of n pixels away gives a value up to 2 n f away.
    """
    sizes = (d for d in x.dims[2:] if isinstance(d, int))
    return float(max(sizes, default=1)) ** 2


def sample_at(x: Array, places: Sequence[Array], mode: str, outside: str) -> Array:
    """x[N, G, C, *S] read at places, one array [N, G, *P] an axis of S: [N, G, C, *P], in f64."""
    shape = (*x.shape[:3], *places[0].shape[2:])
    if 0 in x.shape[3:] or 0 in shape:
        return np.zeros(shape)
    taps = [
        _taps(np.clip(np.nan_to_num(p, nan=-1.0), -FAR, FAR), size, mode, outside)
        for p, size in zip(places, x.shape[3:], strict=True)
    ]
    total = np.zeros(shape)
    for chosen in itertools.product(*taps):
        weight = np.ones(places[0].shape)
        flat = np.zeros(places[0].shape, np.int64)
        for size, (place, part) in zip(x.shape[3:], chosen, strict=True):
            flat = flat * size + place
            weight = weight * part
        # A weight of zero also silences what is infinite beyond the edge.
        total += np.where(weight[:, :, None] == 0, 0.0, _read(x, flat) * weight[:, :, None])
    return total


def _read(x: Array, flat: Array) -> Array:
    """Elements of x[N, G, C, *S] at places [N, G, *P] counted over S."""
    data = x.reshape(*x.shape[:3], math.prod(x.shape[3:]))
    places = flat.reshape(*flat.shape[:2], 1, math.prod(flat.shape[2:]))
    taken = np.take_along_axis(data, places, axis=3)
    return taken.reshape(*x.shape[:3], *flat.shape[2:])


def _taps(place: Array, size: int, mode: str, outside: str) -> list[tuple[Array, Array]]:
    """Return the elements of one axis that a place reads, and the weight of each."""
    if mode == NEAREST:
        whole, steps = np.rint(place), [0]
    else:
        whole, steps = np.floor(place), [0, 1] if mode == LINEAR else [-1, 0, 1, 2]
    taps = []
    for step in steps:
        at = whole + step
        distance = np.abs(place - at)
        if mode == NEAREST:
            weight = np.ones(place.shape)
        else:
            weight = 1 - distance if mode == LINEAR else cubic_kernel(distance, CUBIC_A)
        if outside == ZEROS:
            weight = np.where((at >= 0) & (at < size), weight, 0.0)
        taps.append((_within(at.astype(np.int64), size, outside), weight))
    return taps


def _within(at: Array, size: int, outside: str) -> Array:
    """Places beyond the edges, brought back within an axis."""
    if outside == REFLECT:
        folded = np.mod(at, 2 * size)
        return np.where(folded < size, folded, 2 * size - 1 - folded)
    if outside == MIRROR and size > 1:
        folded = np.mod(at, 2 * size - 2)
        return np.where(folded < size, folded, 2 * size - 2 - folded)
    return np.clip(at, 0, size - 1)
