"""Image files as tensors, and arrays read between their elements at places that are data.

Grid sampling and deformable convolution share `sample_at`; `Resize` is made of the resampling of
one axis (`Axis`): the places of the input that are read, and their weights.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monograph.errors import ExecutionError, InferError, MonographError
from monograph.ir import UNKNOWN, Array, Dim, Op, TensorType, from_numpy, sample
from monograph.ir.dtype import FLOAT, u8
from monograph.ir.types import merge_dims
from monograph.ops.base import NUMERIC, as_tensor, check_allocation, check_kinds

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


@dataclass(frozen=True)
class GridSample(Op):
    """x[N, C, *S] read at the places in grid[N, *P, D]: [N, C, *P].

    A place is D coordinates, that of the last axis first, from -1 to 1 over the axis: between the
    centres of the first and last elements with `align_corners`, else between their outer edges.
    `outside` is "zeros", "border" or "reflect".
    """

    mode: str = LINEAR
    outside: str = ZEROS
    align_corners: bool = False

    costly = True
    samples = (
        sample("f32[1, 2, 4, 5]", "f32[1, 3, 2, 2] in -1.5..1.5"),
        sample("f32[2, 1, 4, 5]", "f32[2, 3, 2, 2] in -2..2", mode=NEAREST, outside=BORDER),
        sample("f32[1, 2, 4, 5]", "f32[1, 3, 2, 2] in -3..3", mode=CUBIC, outside=REFLECT),
        sample(
            "f32[1, 2, 3, 4, 2]", "f32[1, 2, 3, 2, 3] in -2..2",
            outside=REFLECT, align_corners=True,
        ),
    )  # fmt: skip

    def infer(self, x: TensorType, grid: TensorType) -> TensorType:
        check_kinds(as_tensor(x).dtype, NUMERIC)
        check_kinds(as_tensor(grid).dtype, (FLOAT,))
        if self.mode not in (NEAREST, LINEAR, CUBIC) or self.outside not in (
            ZEROS,
            BORDER,
            REFLECT,
        ):
            raise InferError("unknown mode", given=(self.mode, self.outside))
        if x.rank < 3 or grid.rank != x.rank:
            raise InferError("x[N, C, *S] and a grid of the same rank", expected=x, given=grid)
        count = grid.dims[-1]
        if isinstance(count, int) and count != x.rank - 2:
            raise InferError("one coordinate an axis", expected=x.rank - 2, given=grid)
        batch: Dim = merge_dims(x.dims[0], grid.dims[0])
        return x.with_shape((batch, x.dims[1], *grid.dims[1:-1]))

    def reference(self, x: Array, grid: Array) -> Array:
        shape = (*x.shape[:2], *grid.shape[1:-1])
        check_allocation(shape, np.float64)
        places = []
        for i, size in enumerate(x.shape[2:]):
            g = grid[..., x.ndim - 3 - i].astype(np.float64)[:, None]
            places.append(
                (g + 1) / 2 * (size - 1) if self.align_corners else ((g + 1) * size - 1) / 2
            )
        turned = MIRROR if self.align_corners and self.outside == REFLECT else self.outside
        y = sample_at(x.astype(np.float64)[:, None], places, self.mode, turned)
        return y.reshape(shape).astype(from_numpy(x.dtype).numpy)

    def accumulation_length(self, *types: TensorType) -> int:
        return int(TAPS.get(self.mode, 1) ** (types[0].rank - 2))

    def operand_gain(self, index: int, *types: TensorType) -> float:
        return sampling_gain(types[0]) if index == 1 else 1.0


RGB, BGR, GREY = "rgb", "bgr", "grey"
FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""The formats that ONNX names; a model's data cannot reach Pillow's other readers."""
_PNM = np.frombuffer(b"P6 2 1 255\n\x01\x02\x03\xff\x00\x80", np.uint8)


@dataclass(frozen=True)
class DecodeImage(Op):
    """The bytes of an image file as [height, width, channels]; the file says its own format.

    Only the reference computes it, by the decoders of Pillow (the extra `images`).
    """

    colours: str = RGB

    host_reason = "it decodes a file"
    costly = True
    samples = (sample(_PNM), sample(_PNM, colours=BGR), sample(_PNM, colours=GREY))

    def infer(self, x: TensorType) -> TensorType:
        if as_tensor(x).dtype != u8 or x.rank != 1:
            raise InferError("the bytes of a file are a vector of u8", given=x)
        if self.colours not in (RGB, BGR, GREY):
            raise InferError("unknown colours", expected=(RGB, BGR, GREY), given=self.colours)
        return x.with_shape((UNKNOWN, UNKNOWN, 1 if self.colours == GREY else 3))

    def reference(self, x: Array) -> Array:
        try:
            from PIL import Image
        except ImportError:
            raise ExecutionError(
                "decoding images needs Pillow",
                hint="pip install Pillow, or decode before feeding the model",
            ) from None
        try:
            with Image.open(io.BytesIO(x.tobytes()), formats=FORMATS) as image:
                check_allocation((image.height, image.width, 4), np.uint8)
                pixels = np.asarray(image.convert("L" if self.colours == GREY else "RGB"))
        except (MonographError, MemoryError):
            raise
        except Exception as e:
            # Broken files make the decoders raise nearly anything, SyntaxError included.
            raise ExecutionError(f"the bytes are not an image that can be decoded: {e}") from e
        if self.colours == GREY:
            return pixels[..., None]
        return pixels[..., ::-1] if self.colours == BGR else pixels
