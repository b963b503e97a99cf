"""The rearrangement that a chain of reshapes and transposes makes, and the shortest such chain.

This is arithmetic that rules over views share; it defines no rules. An arrangement states, for each
dimension of a result, the runs of the source (a length and a stride, in elements) that it covers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from monograph.ir import Value
from monograph.ops.shape import Reshape, Transpose

Sizes: TypeAlias = tuple[int, ...]
Run: TypeAlias = tuple[int, int]
"""A length above 1 and the stride between its elements."""


def strides_of(shape: Sizes) -> Sizes:
    """The row-major strides of a shape, in elements."""
    if not shape:
        return ()
    return tuple(accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1))[::-1]


def merged(runs: list[Run]) -> tuple[Run, ...]:
    """Join runs that continue one another."""
    result: list[Run] = []
    for length, stride in runs:
        if result and result[-1][1] == length * stride:
            length *= result.pop()[0]
        result.append((length, stride))
    return tuple(result)


@dataclass(frozen=True)
class Arrangement:
    """A result whose dimensions each cover runs of a source that is not empty."""

    source: Sizes
    dims: tuple[tuple[Run, ...], ...]

    @staticmethod
    def of(source: Sizes) -> Arrangement:
        """The identity arrangement of a source."""
        runs = zip(source, strides_of(source), strict=True)
        return Arrangement(source, tuple(((n, s),) if n > 1 else () for n, s in runs))

    @property
    def shape(self) -> Sizes:
        return tuple(math.prod(n for n, _ in runs) for runs in self.dims)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The whole result as runs of the source, as few as possible."""
        return merged([run for runs in self.dims for run in runs])

    def transposed(self, permutation: Sizes) -> Arrangement:
        return Arrangement(self.source, tuple(self.dims[p] for p in permutation))

    def reshaped(self, shape: Sizes) -> Arrangement | None:
        """Return the arrangement under another shape; None if a size cuts across a run."""
        left = list(reversed(self.runs))
        dims: list[tuple[Run, ...]] = []
        for size in shape:
            taken: list[Run] = []
            while size > 1:
                length, stride = left.pop()
                if size % length == 0:
                    taken.append((length, stride))
                    size //= length
                elif length % size == 0:
                    rest = length // size
                    taken.append((size, stride * rest))
                    left.append((rest, stride))
                    size = 1
                else:
                    return None
            dims.append(merged(taken))
        return Arrangement(self.source, tuple(dims))

    def build(self, x: Value) -> Value:
        """Build the shortest chain that gives this arrangement of x; ties always resolve alike.

        The chain is one reshape if the order stays. Otherwise it is one transpose, with a reshape
        before it, after it or both only where dimensions are split, joined or of size 1.
        """
        if len(self.runs) <= 1:
            return reshaped(x, self.shape)
        if (permutation := self._as_transpose()) is not None:
            return transposed(x, permutation)
        if all(len(runs) <= 1 for runs in self.dims):
            return self._reshape_first(x)
        if (permutation := self._source_order()) is not None:
            return reshaped(transposed(x, permutation), self.shape)
        middle = sorted(self.runs, key=lambda run: -run[1])
        split = reshaped(x, tuple(n for n, _ in middle))
        moved = transposed(split, tuple(middle.index(run) for run in self.runs))
        return reshaped(moved, self.shape)

    def _as_transpose(self) -> Sizes | None:
        """Return the permutation of the source's dimensions that gives the result, if there is
        one.
        """
        if len(self.dims) != len(self.source):
            return None
        sizes = enumerate(zip(self.source, strides_of(self.source), strict=True))
        places = {run: i for i, run in sizes if run[0] > 1}
        ones = iter([i for i, n in enumerate(self.source) if n == 1])
        permutation: list[int] = []
        for runs in self.dims:
            if len(runs) > 1:
                return None
            place = places.get(runs[0]) if runs else next(ones, None)
            if place is None:
                return None
            permutation.append(place)
        return tuple(permutation)

    def _reshape_first(self, x: Value) -> Value:
        """Build a reshape to the result's dimensions in the source's order, and their transpose."""

        def place(axis: int) -> int:
            return -self.dims[axis][0][1] if self.dims[axis] else -math.prod(self.source) - 1

        order = sorted(range(len(self.dims)), key=place)
        split = reshaped(x, tuple(self.shape[axis] for axis in order))
        return transposed(split, tuple(order.index(axis) for axis in range(len(order))))

    def _source_order(self) -> Sizes | None:
        """Return the source's dimensions in the order in which the result covers them, if whole."""
        strides = strides_of(self.source)
        order = [i for i, n in enumerate(self.source) if n == 1]
        for length, stride in self.runs:
            inside = [
                i
                for i, (n, s) in enumerate(zip(self.source, strides, strict=True))
                if n > 1 and stride <= s < stride * length
            ]
            if math.prod(self.source[i] for i in inside) != length or strides[inside[-1]] != stride:
                return None
            order += inside
        return tuple(order)


def reshaped(x: Value, shape: Sizes) -> Value:
    """Reshape x; return x itself if it has that shape."""
    return x if x.tensor.shape == shape else Reshape(shape)(x)


def transposed(x: Value, permutation: Sizes) -> Value:
    """Permute the dimensions of x; return x itself if they stay."""
    return x if permutation == tuple(range(len(permutation))) else Transpose(permutation)(x)


def inverse(permutation: Sizes) -> Sizes:
    return tuple(permutation.index(i) for i in range(len(permutation)))


def groups(a: Sizes, b: Sizes) -> list[tuple[range, range]]:
    """Return the finest split of two shapes of equal size into ranges of axes of equal size.

    Neither shape has a zero. Dimensions of size 1 join the range before them, or the first.
    """
    result: list[tuple[range, range]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        first, second = i, j
        left = right = 1
        while True:
            while i < len(a) and (a[i] == 1 or left < right or left == right == 1):
                left *= a[i]
                i += 1
            while j < len(b) and (b[j] == 1 or right < left):
                right *= b[j]
                j += 1
            if left == right and (left > 1 or (i == len(a) and j == len(b))):
                break
        result.append((range(first, i), range(second, j)))
    return result
