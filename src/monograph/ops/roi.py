"""Regions of interest: pools over boxes of an image, and the choice among boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import UNKNOWN, Array, Op, TensorType, Type, from_numpy, sample
from monograph.ir.dtype import FLOAT, i64
from monograph.ir.types import merge_dims
from monograph.ops.base import as_tensor, check_allocation, check_kinds, same_dtype
from monograph.ops.image import sampling_gain

MAX_SAMPLES = 1 << 20
"""A region may be sampled this often along an axis: more is a box that cannot be meant."""
AVERAGE, MAX = "average", "max"


def _check_image(x: TensorType, rois: TensorType, columns: int, sizes: tuple[int, int]) -> None:
    check_kinds(same_dtype(x, rois), (FLOAT,))
    if x.rank != 4:
        raise InferError("regions are of an image [N, C, H, W]", given=x)
    if rois.rank != 2 or (isinstance(rois.dims[1], int) and rois.dims[1] != columns):
        raise InferError(f"a region is {columns} numbers", given=rois)
    if min(sizes) < 1:
        raise InferError("a region gives at least one element", given=sizes)


def _check_batch(batch: Array, count: int) -> None:
    if batch.size and not (batch.min() >= 0 and batch.max() < count):
        raise ExecutionError("a region of no image", expected=f"0..{count - 1}", given=batch.max())


@dataclass(frozen=True)
class RoiAlign(Op):
    """Each box of rois[R, 4] (x1, y1, x2, y2) of an image, as [R, C, *sizes] without rounding.

    A box times `scale` is divided into bins; each is the average, or the maximum, of x interpolated
    at ratio * ratio places (as many as the bin has elements, where `ratio` is 0). `half_pixel`
    takes coordinates to the centres of elements; without it a box is at least one element large.
    The maximum is over the four weighted neighbours of each place, as ONNX defines it.
    """

    sizes: tuple[int, int]
    ratio: int = 0
    scale: float = 1.0
    half_pixel: bool = True
    mode: str = AVERAGE

    costly = True
    samples = (
        sample("f32[2, 3, 6, 7]", [[0.5, 0.5, 4.0, 5.0], [2.0, 1.0, 6.5, 3.0]], np.array([0, 1]),
               sizes=(2, 3)),
        sample("f32[1, 2, 6, 6]", [[-2.0, -3.0, 8.0, 4.0]], np.array([0]),
               sizes=(2, 2), ratio=2, scale=0.5, half_pixel=False),
        sample("f32[1, 2, 6, 6]", [[1.0, 1.0, 5.0, 4.0]], np.array([0]),
               sizes=(2, 2), ratio=2, mode=MAX),
    )  # fmt: skip

    def infer(self, x: TensorType, rois: TensorType, batch: TensorType) -> TensorType:
        _check_image(x, rois, 4, self.sizes)
        if not as_tensor(batch).dtype.is_integer or batch.rank != 1:
            raise InferError("one image a region, by number", given=batch)
        merge_dims(rois.dims[0], batch.dims[0])
        if self.ratio < 0 or self.mode not in (AVERAGE, MAX):
            raise InferError("unknown mode", given=(self.mode, self.ratio))
        return x.with_shape((rois.dims[0], x.dims[1], *self.sizes))

    def reference(self, x: Array, rois: Array, batch: Array) -> Array:
        _check_batch(batch, x.shape[0])
        shape = (rois.shape[0], x.shape[1], *self.sizes)
        check_allocation(shape, np.float64)
        y = np.zeros(shape)
        shift = 0.5 if self.half_pixel else 0.0
        boxes = rois.astype(np.float64) * self.scale - shift
        for r in range(rois.shape[0]):
            image = x[int(batch[r])].astype(np.float64)
            rows = self._samples(boxes[r, 1], boxes[r, 3], self.sizes[0], x.shape[2])
            columns = self._samples(boxes[r, 0], boxes[r, 2], self.sizes[1], x.shape[3])
            y[r] = (
                self._average(image, rows, columns)
                if self.mode == AVERAGE
                else self._max(image, rows, columns)
            )
        return y.astype(from_numpy(x.dtype).numpy)

    def _samples(self, start: float, end: float, count: int, size: int) -> tuple[Array, Array]:
        """(places, weights), each [count, samples, 2]: the neighbours of each sample of an axis."""
        length = end - start if self.half_pixel else max(end - start, 1.0)
        step = length / count
        if not np.isfinite(step) or step > MAX_SAMPLES:
            raise ExecutionError("a region is not of this image", expected=size, given=length)
        samples = self.ratio or max(0, int(np.ceil(step)))
        at = (
            start
            + (np.arange(count)[:, None] + (np.arange(samples) + 0.5) / max(samples, 1)) * step
        )
        inside = (at >= -1) & (at <= size)
        at = np.clip(at, 0, size - 1)
        low = np.minimum(np.floor(at), size - 1)
        fraction = at - low
        places = np.stack([low, np.minimum(low + 1, size - 1)], -1).astype(np.int64)
        return places, np.stack([1 - fraction, fraction], -1) * inside[..., None]

    def _average(
        self, image: Array, rows: tuple[Array, Array], columns: tuple[Array, Array]
    ) -> Array:
        down, across = (
            _matrix(*axis, size)
            for axis, size in ((rows, image.shape[1]), (columns, image.shape[2]))
        )
        return down @ image @ across.T

    def _max(self, image: Array, rows: tuple[Array, Array], columns: tuple[Array, Array]) -> Array:
        (y, wy), (x, wx) = rows, columns
        if y.size == 0 or x.size == 0:
            return np.zeros((image.shape[0], *self.sizes))
        read = image[:, y[:, :, :, None, None, None], x[None, None, None]]
        weighted = read * wy[:, :, :, None, None, None] * wx
        result: Array = weighted.max((2, 3, 5, 6))
        return result

    def accumulation_length(self, *types: TensorType) -> int:
        return 4 * max(1, self.ratio) ** 2

    def operand_gain(self, index: int, *types: TensorType) -> float:
        return sampling_gain(types[0]) if index == 1 else 1.0


def _matrix(places: Array, weights: Array, size: int) -> Array:
    """Return the average of the samples of each bin, as a matrix over an axis of this size."""
    count, samples = places.shape[:2]
    matrix = np.zeros((count, size))
    bins = np.broadcast_to(np.arange(count)[:, None, None], places.shape)
    np.add.at(matrix, (bins, places), weights / max(1, samples))
    return matrix


@dataclass(frozen=True)
class MaxRoiPool(Op):
    """The maximum of each of `sizes` bins of each box of rois[R, 5] (image, x1, y1, x2, y2).

    A box times `scale` is rounded to whole elements; an empty bin gives 0.
    """

    sizes: tuple[int, int]
    scale: float = 1.0

    costly = True
    samples = (
        sample("f32[2, 3, 6, 7]", [[0.0, 1.0, 1.0, 4.0, 5.0], [1.0, 2.0, 1.0, 9.0, 3.0]],
               sizes=(2, 3)),
        sample("f32[1, 1, 4, 4]", [[0.0, 8.0, 8.0, 9.0, 9.0]], sizes=(2, 2), scale=0.5),
    )  # fmt: skip

    def infer(self, x: TensorType, rois: TensorType) -> TensorType:
        _check_image(x, rois, 5, self.sizes)
        return x.with_shape((rois.dims[0], x.dims[1], *self.sizes))

    def reference(self, x: Array, rois: Array) -> Array:
        shape = (rois.shape[0], x.shape[1], *self.sizes)
        check_allocation(shape, x.dtype)
        y = np.zeros(shape, x.dtype)
        batch = rois[:, 0].astype(np.int64)
        _check_batch(batch, x.shape[0])
        scaled = rois[:, 1:].astype(np.float64) * self.scale
        corners = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)
        for r in range(shape[0]):
            left, top, right, bottom = corners[r]
            rows = _bins(top, bottom, self.sizes[0], x.shape[2])
            columns = _bins(left, right, self.sizes[1], x.shape[3])
            for i, down in enumerate(rows):
                for j, across in enumerate(columns):
                    part = x[batch[r], :, down, across]
                    if part.size:
                        y[r, :, i, j] = part.max((1, 2))
        return y


def _bins(start: float, end: float, count: int, size: int) -> list[slice]:
    """Return a box along an axis as slices of it, which may overlap by one element."""
    step = max(end - start + 1, 1.0) / count
    places = np.arange(count + 1) * step
    lows = np.clip(np.nan_to_num(np.floor(places[:-1]) + start), 0, size).astype(int)
    highs = np.clip(np.nan_to_num(np.ceil(places[1:]) + start), 0, size).astype(int)
    return [slice(low, high) for low, high in zip(lows, highs, strict=True)]


@dataclass(frozen=True)
class NonMaxSuppression(Op):
    """Boxes by falling score, without those that overlap a chosen one by more than `iou`.

    boxes[B, n, 4] are two opposite corners (y1, x1, y2, x2), or with `centre` (x, y, width,
    height); scores[B, classes, n] must exceed `score`, where it is given. The result [k, 3] holds
    (batch, class, box) of at most `limit` boxes for each batch and class.
    """

    limit: int = 0
    iou: float = 0.0
    score: float | None = None
    centre: bool = False

    costly = True
    samples = (
        sample([[[0.0, 0.0, 1.0, 1.0], [0.0, 0.1, 1.0, 1.1], [0.0, 10.0, 1.0, 11.0]]],
               [[[0.9, 0.75, 0.6]]], limit=3, iou=0.5, score=0.0),
        sample([[[0.5, 0.5, 1.0, 1.0], [0.5, 0.6, 1.0, 1.0], [0.5, 10.0, 1.0, 1.0]]],
               [[[0.5, 0.75, 0.6], [0.1, 0.2, 0.3]]], limit=2, iou=0.5, centre=True),
        sample("f32[1, 4, 4]", "f32[1, 2, 4]"),
    )  # fmt: skip

    def infer(self, boxes: TensorType, scores: TensorType) -> TensorType:
        check_kinds(same_dtype(boxes, scores), (FLOAT,))
        if boxes.rank != 3 or scores.rank != 3:
            raise InferError("boxes[B, n, 4] and scores[B, classes, n]", given=(boxes, scores))
        pairs = (
            (boxes.dims[2], 4),
            (boxes.dims[0], scores.dims[0]),
            (boxes.dims[1], scores.dims[2]),
        )
        for a, b in pairs:
            if isinstance(a, int) and isinstance(b, int) and a != b:
                raise InferError("boxes and scores do not fit", expected=boxes, given=scores)
        return TensorType(i64, (UNKNOWN, 3))

    def reference(self, boxes: Array, scores: Array) -> Array:
        if (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2]):
            raise ExecutionError(
                "boxes and scores do not fit", expected=boxes.shape, given=scores.shape
            )
        chosen = [
            (b, c, i)
            for b, corners in enumerate(map(self._corners, boxes.astype(np.float64)))
            for c in range(scores.shape[1])
            for i in self._choose(corners, scores[b, c].astype(np.float64))
        ]
        return np.array(chosen, np.int64).reshape(-1, 3)

    def _corners(self, boxes: Array) -> Array:
        """Boxes as [n, 4]: the lower and the higher corner."""
        a, b = boxes[:, :2], boxes[:, 2:]
        low, high = (a - b / 2, a + b / 2) if self.centre else (np.minimum(a, b), np.maximum(a, b))
        return np.concatenate([low, high], 1)

    def _choose(self, corners: Array, scores: Array) -> list[int]:
        left = np.argsort(-scores, kind="stable")
        if self.score is not None:
            left = left[scores[left] > self.score]
        chosen: list[int] = []
        while left.size and len(chosen) < self.limit:
            best, left = left[0], left[1:]
            chosen.append(int(best))
            left = left[_overlap(corners[best], corners[left]) <= self.iou]
        return chosen

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        boxes, scores = map(as_tensor, types)
        return cls(**static).infer(boxes, scores)

    def most_rows(self, *types: TensorType) -> int | None:
        batch, classes, boxes = types[1].static
        return batch * classes * max(min(self.limit, boxes), 0)


def _overlap(one: Array, others: Array) -> Array:
    """The intersection of a box with others over their union; 0 for boxes without an area."""
    sides = np.minimum(one[2:], others[:, 2:]) - np.maximum(one[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0.0), axis=1)
    area, areas = np.prod(one[2:] - one[:2]), np.prod(others[:, 2:] - others[:, :2], axis=1)
    valid = (shared > 0) & (area > 0) & (areas > 0)
    return np.where(valid, shared / np.where(valid, area + areas - shared, 1.0), 0.0)
