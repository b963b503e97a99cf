"""Rules for views that keep every element: reshapes, transposes, broadcasts, and equivalents.

Where sizes are known, a chain of reshapes, squeezes, unsqueezes and transposes becomes the one
shortest chain of reshapes and transposes that does the same. An `Arrangement` states, for each
dimension of a result, the runs of the source (a length and a stride, in elements) that it covers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from monograph.ir import TensorType, Value
from monograph.ir.sizes import divides, hint_of, is_one, proven, same_sizes
from monograph.ops.pad_tile import Pad, Tile
from monograph.ops.shape import COPY, Broadcast, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.rewrite import ANY, Context, Reject, rewrite, variables

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
        if result and proven(result[-1][1], "==", length * stride):
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
        return Arrangement(source, tuple(() if n == 0 or is_one(n) else ((n, s),) for n, s in runs))

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
            while not is_one(size):
                if not left:
                    return None
                length, stride = left.pop()
                if divides(length, size):
                    taken.append((length, stride))
                    size //= length
                elif divides(size, length):
                    rest = length // size
                    taken.append((size, stride * rest))
                    if not is_one(rest):
                        left.append((rest, stride))
                    size = 1
                else:
                    return None
            dims.append(merged(taken))
        if not all(is_one(length) for length, _ in left):
            return None
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
        order = in_source_order(self.runs)
        split = reshaped(x, tuple(self.runs[i][0] for i in order))
        moved = transposed(split, inverse(order))
        return reshaped(moved, self.shape)

    def _as_transpose(self) -> Sizes | None:
        """Return the permutation of the source's dimensions that gives the result, or None."""
        if len(self.dims) != len(self.source):
            return None
        several = [i for i, n in enumerate(self.source) if not is_one(n)]
        ones = iter([i for i, n in enumerate(self.source) if is_one(n)])
        strides = strides_of(self.source)
        permutation: list[int] = []
        for runs in self.dims:
            if len(runs) > 1:
                return None
            places = (i for i in several if same_sizes((self.source[i], strides[i]), runs[0]))
            place = next(places if runs else ones, None)
            if place is None:
                return None
            permutation.append(place)
        return tuple(permutation)

    def _reshape_first(self, x: Value) -> Value:
        """Build a reshape to the result's dimensions in the source's order, and their transpose."""
        full = [axis for axis, runs in enumerate(self.dims) if runs]
        ones = [axis for axis, runs in enumerate(self.dims) if not runs]
        sequence = in_source_order([self.dims[axis][0] for axis in full])
        order = (*ones, *(full[i] for i in sequence))
        split = reshaped(x, tuple(self.shape[axis] for axis in order))
        return transposed(split, inverse(order))

    def _source_order(self) -> Sizes | None:
        """Return the source's dimensions in the order in which the result covers them, if whole."""
        order = [i for i, n in enumerate(self.source) if is_one(n)]
        for run in self.runs:
            inside = self._axes_of(run)
            if inside is None:
                return None
            order += inside
        return tuple(order)

    def _axes_of(self, run: Run) -> list[int] | None:
        """Return the dimensions of the source that a run covers; None if it covers part of one."""
        length, stride = run
        inside: list[int] = []
        covered = 1
        strides = strides_of(self.source)
        for axis in reversed(range(len(strides))):
            several = not is_one(self.source[axis])
            if several and (inside or proven(strides[axis], "==", stride)):
                inside.insert(0, axis)
                covered *= self.source[axis]
                if proven(covered, "==", length):
                    return inside
        return None


def in_source_order(runs: Sequence[Run]) -> Sizes:
    """Return the places of runs in the order in which their source has them.

    Each has several elements in the compiling run, so that the outer one of two has the larger
    stride there. Their order is the same at all sizes.
    """
    return tuple(sorted(range(len(runs)), key=lambda i: -hint_of(runs[i][1])))


def reshaped(x: Value, shape: Sizes) -> Value:
    """Reshape x; return x itself if it has that shape."""
    return x if same_sizes(x.tensor.dims, shape) else Reshape(shape)(x)


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
        while i < len(a) or j < len(b):
            ones = (i < len(a) and is_one(a[i])), (j < len(b) and is_one(b[j]))
            # Hints lead the search; what ends a group are products that are equal at all sizes.
            if not any(ones) and proven(left, "==", right) and not is_one(left):
                break
            behind = i < len(a) and hint_of(left) <= hint_of(right)
            if ones[0] or j == len(b) or (behind and not ones[1]):
                left *= a[i]
                i += 1
            else:
                right *= b[j]
                j += 1
        result.append((range(first, i), range(second, j)))
    return result


x, a, b = variables("x a b")

CHAIN = 16
"""The number of views examined above one; longer than a collapsed chain."""


def is_static(*values: Value) -> bool:
    """Return True if every size of these values is known."""
    return all(isinstance(v.type, TensorType) and v.type.is_static for v in values)


def same_types(a: Value, b: Value) -> bool:
    """Return True if two values have the same type, at all sizes."""
    if not is_static(a, b):
        return a.type == b.type
    return a.dtype == b.dtype and same_sizes(a.tensor.static, b.tensor.static)


@rewrite(Reshape(ANY)(x), exact=True)
def drop_reshape(x: Value, root: Value) -> Value | Reject:
    """reshape(x) -> x where x has the shape already"""
    if not same_types(root, x):
        return Reject("the shape changes", x.type, root.type)
    return x


@rewrite(Reshape(b)(Reshape(ANY)(x)), exact=True)
def merge_reshapes(x: Value, b: Sizes) -> Value | Reject:
    """reshape(reshape(x), b) -> reshape(x, b)"""
    if COPY in b:
        return Reject("a size is copied from the shape between", given=list(b))
    return Reshape(b)(x)


@rewrite(Squeeze(ANY)(x), exact=True)
def squeeze_as_reshape(x: Value, root: Value) -> Value | Reject:
    """squeeze(x) -> reshape(x)"""
    if not is_static(x):
        return Reject("the sizes are not known", "a static shape", x.type)
    return reshaped(x, root.tensor.static)


@rewrite(Unsqueeze(ANY)(x), exact=True)
def unsqueeze_as_reshape(x: Value, root: Value) -> Value | Reject:
    """unsqueeze(x) -> reshape(x)"""
    if not is_static(x):
        return Reject("the sizes are not known", "a static shape", x.type)
    return reshaped(x, root.tensor.static)


@rewrite(Squeeze(a)(Unsqueeze(b)(x)), exact=True)
def cancel_unsqueeze(x: Value, a: Sizes, b: Sizes) -> Value | Reject:
    """squeeze(unsqueeze(x, a), a) -> x"""
    return x if a == b else Reject("the axes differ", a, b)


@rewrite(Unsqueeze(a)(Squeeze(b)(x)), exact=True)
def cancel_squeeze(x: Value, a: Sizes, b: Sizes) -> Value | Reject:
    """unsqueeze(squeeze(x, a), a) -> x"""
    return x if a == b else Reject("the axes differ", a, b)


@rewrite(Transpose(a)(x), exact=True)
def drop_transpose(x: Value, a: Sizes) -> Value | Reject:
    """transpose(x) -> x where every dimension stays"""
    if a != tuple(range(len(a))):
        return Reject("dimensions move", list(range(len(a))), list(a))
    return x


@rewrite(Transpose(b)(Transpose(a)(x)), exact=True)
def merge_transposes(x: Value, a: Sizes, b: Sizes) -> Value:
    """transpose(transpose(x, a), b) -> transpose(x, a[b])"""
    return Transpose(tuple(a[p] for p in b))(x)


@rewrite(Reshape, exact=True)
def collapse_reshape(value: Value, context: Context) -> Value | Reject:
    """reshape(views(x)) -> the shortest chain of views of x that does the same"""
    return _collapse(value, context)


@rewrite(Transpose, exact=True)
def collapse_transpose(value: Value, context: Context) -> Value | Reject:
    """transpose(views(x)) -> the shortest chain of views of x that does the same"""
    return _collapse(value, context)


def _collapse(value: Value, context: Context) -> Value | Reject:
    """Collapse the views up to the furthest value that at most one transpose separates."""
    chain = [value]
    while len(chain) < CHAIN and isinstance(chain[-1].inputs[0].op, (Reshape, Transpose)):
        chain.append(chain[-1].inputs[0])
    if not is_static(*chain, chain[-1].inputs[0]):
        return Reject("the sizes are not known", "static shapes", chain[-1].inputs[0].type)
    if 0 in value.tensor.static:
        return reshaped(chain[-1].inputs[0], value.tensor.static)
    for last in range(len(chain), 0, -1):
        arrangement = arrange(chain[:last])
        if arrangement is None:
            continue
        made = arrangement.build(chain[last - 1].inputs[0])
        if made is not value and isinstance(value.op, Reshape):
            for between in chain[1:last]:
                if _is_shared(between, made, context):
                    return Reject("others read the transposed value", 1, context.use_count(between))
        return made if made is not value else Reject("the chain is as short as can be", near=False)
    return Reject("the sizes cut across one another", value.type, chain[-1].inputs[0].type)


def _is_shared(between: Value, made: Value, context: Context) -> bool:
    """Return True if a transpose stays for other readers and the new chain needs its own."""
    if not isinstance(between.op, Transpose) or context.use_count(between) <= 1:
        return False
    while made is not between and isinstance(made.op, Reshape):
        made = made.inputs[0]
    return made is not between and isinstance(made.op, Transpose)


def arrange(chain: list[Value]) -> Arrangement | None:
    """Return the arrangement that a chain of static views makes; the last view comes first."""
    arrangement: Arrangement | None = Arrangement.of(chain[-1].inputs[0].tensor.static)
    for view in reversed(chain):
        if arrangement is None:
            return None
        if isinstance(view.op, Transpose):
            arrangement = arrangement.transposed(view.op.permutation)
        else:
            arrangement = arrangement.reshaped(view.tensor.static)
    return arrangement


def _as_many(a: Value, b: Value) -> bool:
    """Return True if two values have as many elements, at all sizes."""
    return proven(a.tensor.size, "==", b.tensor.size)


@rewrite(Broadcast(ANY)(x), exact=True)
def drop_broadcast(x: Value, root: Value) -> Value | Reject:
    """broadcast(x) -> x where x has the shape already; a reshape where only ones are added"""
    if same_types(root, x):
        return x
    if not is_static(x) or 0 in x.tensor.static or not _as_many(x, root):
        return Reject("the broadcast repeats elements", x.type, root.type)
    return Reshape(root.tensor.static)(x)


@rewrite(Broadcast(b)(Broadcast(ANY)(x)), exact=True)
def merge_broadcasts(x: Value, root: Value) -> Value | Reject:
    """broadcast(broadcast(x)) -> broadcast(x)"""
    if not is_static(root):
        return Reject("the sizes are not known", "a static shape", root.type)
    return Broadcast(root.tensor.static)(x)


@rewrite(Broadcast(ANY)(Reshape(ANY)(x)), exact=True)
def broadcast_without_reshape(x: Value, root: Value) -> Value | Reject:
    """broadcast(reshape(x)) -> broadcast(x) where the reshape only adds or drops leading ones"""
    between = root.inputs[0]
    if not is_static(x, between, root):
        return Reject("the sizes are not known", "static shapes", x.type)
    shapes = (without_leading_ones(v.tensor.static) for v in (x, between))
    if not same_sizes(*shapes):
        return Reject("the reshape does more than add leading ones", x.type, between.type)
    if x.tensor.rank > root.tensor.rank:
        return Reject("the result has fewer dimensions", x.type, root.type)
    return Broadcast(root.tensor.static)(x)


def without_leading_ones(shape: Sizes) -> Sizes:
    """Return a shape as broadcasting sees it."""
    first = next((i for i, d in enumerate(shape) if not is_one(d)), len(shape))
    return shape[first:]


@rewrite(Tile(a)(x), exact=True)
def tile_as_broadcast(x: Value, a: Sizes, root: Value) -> Value | Reject:
    """tile(x) -> broadcast(x) where only dimensions of size 1 are repeated"""
    if all(r == 1 for r in a):
        return x
    if not is_static(x):
        return Reject("the sizes are not known", "a static shape", x.type)
    for size, repeat in zip(x.tensor.static, a, strict=True):
        if size != 1 and repeat != 1:
            return Reject("a dimension of several elements is repeated", 1, size)
    return Broadcast(root.tensor.static)(x)


@rewrite(Pad, exact=True)
def pad_as_slice(value: Value) -> Value | Reject:
    """pad(x) -> a slice of x where nothing is added, x itself where nothing is removed either"""
    op, x = value.op, value.inputs[0]
    assert isinstance(op, Pad)
    if not all(proven(n, "<=", 0) for n in (*op.before, *op.after)):
        return Reject("elements are added", "counts of at most 0", (op.before, op.after))
    if not any((*op.before, *op.after)):
        return x
    if not is_static(x):
        return Reject("the sizes are not known", "a static shape", x.type)
    starts = tuple(-b for b in op.before)
    stops = tuple(d + a for d, a in zip(x.tensor.static, op.after, strict=True))
    return Slice(starts, stops, (1,) * len(starts))(x)
