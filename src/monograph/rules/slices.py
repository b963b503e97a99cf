"""Rules that merge slices, and move them above concats and other views."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

from monograph.ir import Value, known
from monograph.ir.sizes import is_one, proven
from monograph.ops.index import Gather
from monograph.ops.pad_tile import Pad
from monograph.ops.shape import FAR, Broadcast, Concat, Reshape, Slice, Transpose
from monograph.ops.slice import Range, count_places, sliced_places, span
from monograph.rewrite import ANY, Context, Reject, const, rewrite, variables
from monograph.rules.views import Sizes, groups, inverse, is_static, reshaped

x, a = variables("x a")
k = const("k")


def ranges_of(value: Value) -> list[Range]:
    """Return the indices that a static slice takes from each dimension."""
    assert isinstance(value.op, Slice)
    return value.op.ranges(value.inputs[0].tensor.static)


def take(value: Value, places: list[Range]) -> Value:
    """Slice these indices; return the value itself if that is all of it, in order."""
    sizes = value.tensor.static
    if not any(_cuts(r, d) for r, d in zip(places, sizes, strict=True)):
        return value
    bounds = [_bounds(r, d) for r, d in zip(places, sizes, strict=True)]
    starts, stops, steps = zip(*bounds, strict=True)
    return Slice(starts, stops, steps)(value)


def _bounds(places: Range, size: int) -> tuple[int, int, int]:
    """Return the canonical start, stop and step of some indices of a dimension."""
    count = count_places(places)
    if is_one(count) or (not proven(1, "<=", count) and count <= 1):
        return places.start, places.start + count, 1
    stop = places[-1] + (1 if places.step > 0 else -1)
    # A negative stop counts from the end, so a stop before index 0 is written as -1 - size.
    return places.start, stop if stop >= 0 else -1 - size, places.step


def whole(value: Value) -> list[Range]:
    """Return all indices of a value, for each dimension."""
    return [span(0, d) for d in value.tensor.static]


@rewrite(Slice(ANY, ANY, ANY)(x), exact=True)
def drop_slice(x: Value, root: Value) -> Value | Reject:
    """slice(x) -> x where it takes everything, in order"""
    assert isinstance(root.op, Slice)
    for size, s in zip(x.tensor.dims, root.op.indexer(), strict=True):
        if isinstance(size, int):
            places = sliced_places(s, size)
            all_taken = proven(count_places(places), "==", size)
            if not all_taken or _turns(places, size):
                return Reject("the slice drops or reverses elements", f"range(0, {size})", places)
        elif not (s.start == 0 and s.step == 1 and s.stop >= FAR):
            return Reject("the slice may drop elements", size, s)
    return x


@rewrite(Slice(ANY, ANY, ANY)(Slice(ANY, ANY, ANY)(x)), exact=True)
def merge_slices(x: Value, root: Value) -> Value | Reject:
    """slice(slice(x)) -> slice(x)"""
    if not is_static(x):
        return Reject("the sizes are not known", "a static shape", x.type)
    inner, outer = ranges_of(root.inputs[0]), ranges_of(root)
    places = [i[o.start : _stop(o) : o.step] for i, o in zip(inner, outer, strict=True)]
    return take(x, places)


def _stop(places: Range) -> int | None:
    """Return the stop of a range as an index; None for one before the beginning."""
    return places.stop if places.stop >= 0 else None


def _pieces(joined: Value, along: Range) -> tuple[list[int], list[int]]:
    """Return the pieces of a concat that contain some indices, and the start of each piece."""
    assert isinstance(joined.op, Concat)
    sizes = [p.tensor.static[joined.op.axis] for p in joined.inputs]
    starts = [0, *accumulate(sizes)]
    first, last = min(along[0], along[-1]), max(along[0], along[-1])
    taken = [i for i, d in enumerate(sizes) if d and starts[i] <= last and starts[i] + d > first]
    return taken, starts


@rewrite(Slice, exact=True)
def slice_of_concat(value: Value, context: Context) -> Value | Reject:
    """slice(concat(x, y, z)) -> slice(y), or concat(y, z): the pieces that it takes"""
    joined = value.inputs[0]
    if not isinstance(joined.op, Concat):
        return value
    if not is_static(value, *joined.inputs):
        return Reject("the sizes are not known", "static shapes", joined.type)
    axis, places = joined.op.axis, ranges_of(value)
    along = places[axis]
    if not along:
        return Reject("the slice is empty")
    taken, starts = _pieces(joined, along)
    start, stop = starts[taken[0]], starts[taken[-1] + 1]
    if len(taken) == 1:
        places[axis] = span(along.start - start, along.stop - start, along.step)
        return take(joined.inputs[taken[0]], places)
    if along != span(start, stop):
        return Reject("the slice cuts through pieces", span(start, stop), along)
    if context.use_count(joined) > 1:
        return Reject("others read the whole concat", 1, context.use_count(joined))
    places[axis] = span(0, count_places(along))
    return take(Concat(axis)(*(joined.inputs[i] for i in taken)), places)


def _gains(view: Value, places: list[Range], context: Context) -> bool:
    """Return True if moving a slice above a view saves work, or lets the slice merge."""
    source = view.inputs[0]
    if isinstance(source.op, Concat) and is_static(*source.inputs):
        along = places[source.op.axis]
        if along and len(_pieces(source, along)[0]) == 1:
            return True
    return context.use_count(view) <= 1 or isinstance(source.op, (Slice, Broadcast))


@rewrite(Slice(ANY, ANY, ANY)(Transpose(a)(x)), exact=True)
def slice_of_transpose(x: Value, a: Sizes, root: Value, context: Context) -> Value | Reject:
    """slice(transpose(x)) -> transpose(slice(x))"""
    if not is_static(x):
        return Reject("the sizes are not known", "a static shape", x.type)
    places = ranges_of(root)
    above = [places[p] for p in inverse(a)]
    if not _gains(root.inputs[0], above, context):
        return Reject("others read the transpose", 1, context.use_count(root.inputs[0]))
    return Transpose(a)(take(x, above))


@rewrite(Slice(ANY, ANY, ANY)(Reshape(ANY)(x)), exact=True)
def slice_of_reshape(x: Value, root: Value, context: Context) -> Value | Reject:
    """slice(reshape(x)) -> reshape(slice(x)), where the slice is one of x too"""
    view = root.inputs[0]
    if not is_static(x, root) or 0 in root.tensor.static:
        return Reject("the sizes are not known, or are zero", "a static shape", root.type)
    places, sizes = ranges_of(root), view.tensor.static
    above = whole(x)
    for outer, inner in groups(x.tensor.static, sizes):
        if not any(_cuts(places[i], sizes[i]) for i in inner):
            continue
        moved = _block(
            [x.tensor.static[i] for i in outer],
            [sizes[i] for i in inner],
            [places[i] for i in inner],
        )
        if moved is None:
            return Reject("the slice is not one of the value before the reshape", x.type, view.type)
        above[outer[moved[0]]] = moved[1]
    if not _gains(view, above, context):
        return Reject("others read the reshape", 1, context.use_count(view))
    return reshaped(take(x, above), root.tensor.static)


def _turns(places: Range, size: int) -> bool:
    """Return True if indices go backwards along a dimension of several elements."""
    return places.step < 0 and size != 0 and not is_one(size)


def _cuts(places: Range, size: int) -> bool:
    """Return True unless the indices are all of a dimension, in order."""
    return not proven(count_places(places), "==", size) or _turns(places, size)


def _block(sizes: list[int], view: list[int], places: list[Range]) -> tuple[int, Range] | None:
    """Return (axis, indices) of a slice of some dimensions, as seen before their reshape."""
    axis = next((i for i, d in enumerate(sizes) if not is_one(d)), None)
    cut = next((i for i, d in enumerate(view) if not is_one(d)), None)
    if axis is None or cut is None:
        return None
    if any(_cuts(places[i], view[i]) for i in range(cut + 1, len(view))):
        return None
    along = places[cut]
    if proven(sizes[axis], "==", view[cut]):
        return axis, along
    # Whole rows of the view must be whole rows of the reshaped value.
    row, step = math.prod(view[cut + 1 :]), math.prod(sizes[axis + 1 :])
    if along.step != 1 or along.start * row % step or along.stop * row % step:
        return None
    return axis, span(along.start * row // step, along.stop * row // step)


@rewrite(Slice(ANY, ANY, ANY)(Broadcast(ANY)(x)), exact=True)
def slice_of_broadcast(x: Value, root: Value) -> Value | Reject:
    """slice(broadcast(x)) -> broadcast(slice(x))"""
    if not is_static(x):
        return Reject("the sizes are not known", "a static shape", x.type)
    places = ranges_of(root)[root.tensor.rank - x.tensor.rank :]
    kept = [r if d > 1 else span(0, d) for r, d in zip(places, x.tensor.static, strict=True)]
    return Broadcast(root.tensor.static)(take(x, kept))


@rewrite(Slice, exact=True)
def slice_of_pad(value: Value) -> Value | Reject:
    """slice(pad(x)) -> slice(x), where it takes nothing that was added"""
    op = value.inputs[0].op
    if not isinstance(op, Pad):
        return value
    x = value.inputs[0].inputs[0]
    if not is_static(x) or 0 in value.tensor.static:
        return Reject("the sizes are not known, or are zero", "a static shape", value.type)
    places = []
    for along, before, size in zip(ranges_of(value), op.before, x.tensor.static, strict=True):
        moved = span(along.start - before, along.stop - before, along.step)
        first, last = min(moved[0], moved[-1]), max(moved[0], moved[-1])
        if first < 0 or last >= size:
            return Reject("the slice takes padding", f"0..{size}", f"{first}..{last + 1}")
        places.append(moved)
    return take(x, places)


@rewrite(Gather(a)(x, k), exact=True)
def gather_as_slice(x: Value, k: Value, a: int, root: Value) -> Value | Reject:
    """gather(x, k) -> slice(x), where the indices k are evenly spaced"""
    data = known(k)
    if data is None or not is_static(x) or k.tensor.rank > 1 or data.size == 0:
        return Reject("not a vector of indices into static sizes", "a static shape", x.type)
    size = x.tensor.static[a]
    indices = [n + size if n < 0 else n for n in data.reshape(-1).tolist()]
    if min(indices) < 0 or max(indices) >= size:
        return Reject("an index is out of range", size, max(indices))
    first, steps = indices[0], {b - a for a, b in pairwise(indices)}
    if len(steps) > 1 or 0 in steps:
        return Reject("the indices are not evenly spaced", given=sorted(steps))
    step = steps.pop() if steps else 1
    places = whole(x)
    places[a] = span(first, first + step * len(indices), step)
    return reshaped(take(x, places), root.tensor.static)
