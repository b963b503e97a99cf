"""Slices along each dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from monograph.errors import InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    Dim,
    Op,
    TensorType,
    Type,
    Value,
    sample,
)
from monograph.ir.layout import (
    LayoutPlan,
    Need,
    Order,
)
from monograph.ir.sizes import any_open
from monograph.ir.traits import LENGTH, Demand
from monograph.ops.base import (
    ViewOp,
    as_tensor,
    known_sizes,
    unknown_like,
)

FAR = 2**31 - 1
"""A bound of a slice that lies beyond any size."""


def _is_whole(s: slice) -> bool:
    """Return True if a slice keeps every element of a dimension of any size."""
    if s.step == 1:
        return bool(s.start == 0 and s.stop >= FAR)
    return bool(s.step == -1 and (s.start == -1 or s.start >= FAR) and s.stop <= -FAR)


@dataclass(frozen=True)
class OpenRange:
    """A range whose bounds are known only at run time."""

    start: int
    stop: int
    step: int

    def __bool__(self) -> bool:
        return bool(self.count)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            end = -FAR if (at.step or 1) < 0 else FAR
            inner = sliced_places(
                slice(at.start, end if at.stop is None else at.stop, at.step), self.count
            )
            first, last = (self.start + n * self.step for n in (inner.start, inner.stop))
            return span(first, last, self.step * inner.step)
        return self.start + (at + self.count if at < 0 else at) * self.step

    @property
    def count(self) -> int:
        # The divisor of an open size is positive.
        if self.step < 0:
            return (self.start - self.stop - self.step - 1) // -self.step
        return (self.stop - self.start + self.step - 1) // self.step


Range: TypeAlias = "range | OpenRange"
"""The places that a slice takes of a dimension."""


def _open_places(s: slice, size: int) -> OpenRange:
    """Return the places that a slice takes of a dimension, where bounds or sizes are open."""

    def clamped(bound: int, low: int, high: int) -> int:
        bound = bound + size if bound < 0 else bound
        return low if bound < low else high if bound > high else bound

    if s.step > 0:
        start, stop = clamped(s.start, 0, size), clamped(s.stop, 0, size)
        return OpenRange(start, stop if stop > start else start, s.step)
    start = 0 if s.start < -size else clamped(s.start, -1, size - 1)
    stop = clamped(s.stop, -1, size - 1)
    return OpenRange(start, stop if stop < start else start, s.step)


def span(start: int, stop: int, step: int = 1) -> Range:
    """Return a range, whether its bounds are known or open."""
    return OpenRange(start, stop, step) if any_open((start, stop)) else range(start, stop, step)


def count_places(places: Range) -> int:
    """Return the number of places."""
    return places.count if isinstance(places, OpenRange) else len(places)


def sliced_places(s: slice, size: int) -> Range:
    """Return the places of a dimension of this size that a slice takes, in their order.

    ONNX clamps bounds as Python does, with one exception: a start that lies before the first
    element is that element, also where the step is negative.
    """
    if any_open((s.start, s.stop, size)):
        return _open_places(s, size)
    start, stop, step = s.indices(size)
    if step < 0 and s.start < -size and size:
        start = 0
    return range(start, stop, step)


@dataclass(frozen=True)
class Slice(ViewOp):
    """x[start:stop:step, ...], one triple a dimension; `sliced_places` says how bounds are clamped.

    Bounds are normalised once the size is known: a start within it, and for a negative step a stop
    of -1 - size where it runs to the beginning.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]

    samples = (
        sample("f32[5, 6]", starts=(1, 0), stops=(4, 6), steps=(1, 2)),
        sample("f32[5, 6]", starts=(-1, 0), stops=(-9, -2), steps=(-2, 1)),
        sample("i64[4]", starts=(3,), stops=(1,), steps=(1,)),
        sample("f32[4, 3]", starts=(-9, -9), stops=(-9, 2), steps=(-1, 1)),
        sample("f32[4, 3]", starts=(0, 1), stops=(FAR, 3), steps=(1, 1)),
    )

    def canonical(self, *types: Type) -> Op:
        x = as_tensor(types[0])
        if not len(self.starts) == len(self.stops) == len(self.steps) == x.rank:
            raise InferError(
                "a slice has a start, a stop and a step for each dimension",
                expected=x.rank,
                given=(len(self.starts), len(self.stops), len(self.steps)),
            )
        if 0 in self.steps:
            raise InferError("a slice's step is zero", given=self.steps)
        bounds = [self._bounds(i, d) for i, d in enumerate(x.dims)]
        starts, stops = (tuple(b) for b in zip(*bounds, strict=True)) if bounds else ((), ())
        return replace(self, starts=starts, stops=stops)

    def _bounds(self, axis: int, size: Dim) -> tuple[int, int]:
        start, stop, step = self.starts[axis], self.stops[axis], self.steps[axis]
        if not isinstance(size, int):
            return start, stop
        places = sliced_places(slice(start, stop, step), size)
        if not count_places(places):
            return 0, 0 if step > 0 else -size
        return places.start, places.stop if places.stop >= 0 else -1 - size

    def indexer(self) -> tuple[slice, ...]:
        return tuple(map(slice, self.starts, self.stops, self.steps))

    def infer(self, x: TensorType) -> TensorType:
        shape: list[Dim] = []
        for d, s in zip(x.dims, self.indexer(), strict=True):
            if isinstance(d, int):
                shape.append(count_places(sliced_places(s, d)))
            else:
                shape.append(d if _is_whole(s) else UNKNOWN)
        return x.with_shape(shape)

    def ranges(self, sizes: Sequence[int]) -> list[Range]:
        """Return the places that are taken of each dimension."""
        return [sliced_places(s, d) for s, d in zip(self.indexer(), sizes, strict=True)]

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        """Return the axis where it is kept whole, in its order: a flip begins at its end."""
        whole = self.starts[axis] == 0 and self.steps[axis] == 1 and self.stops[axis] >= FAR
        return axis if whole else None

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        whole = self.starts[axis] == 0 and self.steps[axis] == 1
        return axis if whole and self.stops[axis] in (types[0].dims[axis], FAR) else None

    def reference(self, x: Array) -> Array:
        ranges = self.ranges(x.shape)
        stops = (r.stop if r.stop >= 0 else None for r in ranges)
        return x[tuple(slice(r.start, stop, r.step) for r, stop in zip(ranges, stops, strict=True))]

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        return as_tensor(types[0]).with_shape(unknown_like(as_tensor(types[0])))

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        fields = (self.starts, self.stops, self.steps)
        op = Slice(*(tuple(f[d] for d in order) for f in fields))
        return LayoutPlan(op, (Need(order),), order)

    @classmethod
    def late_demand(cls, operand: int, name: str, first: Type) -> Demand:
        sizes = known_sizes(first)
        if not sizes:
            return super().late_demand(operand, name, first)
        low, high = (0, max(sizes) - 1) if name == "starts" else (1, max(sizes))
        why = f"a bound within {max(sizes)}"
        return Demand(operand, LENGTH, low, high, why, must=False)
