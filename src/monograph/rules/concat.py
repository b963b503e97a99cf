"""Rules for concats of adjoining slices, of equal views and of repeated or empty pieces."""

from __future__ import annotations

import math
from itertools import pairwise

from monograph.ir import Value
from monograph.ir.sizes import proven, same_sizes
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Transpose
from monograph.ops.slice import Range, count_places, span
from monograph.rewrite import Context, Reject, rewrite
from monograph.rules.slices import ranges_of, take
from monograph.rules.views import Arrangement, Sizes, is_static, reshaped


def _axis(value: Value) -> int:
    assert isinstance(value.op, Concat)
    return value.op.axis


@rewrite(Concat, exact=True)
def drop_concat(value: Value) -> Value | Reject:
    """concat(x) -> x; concat(x, nothing, y) -> concat(x, y)"""
    if len(value.inputs) == 1:
        return value.inputs[0]
    axis = _axis(value)
    kept = tuple(v for v in value.inputs if v.tensor.shape is None or v.tensor.dims[axis] != 0)
    if len(kept) == len(value.inputs):
        reason = "there are several pieces, none of them empty"
        return Reject(reason, "an empty piece", near=False)
    if not is_static(value):
        return Reject("the sizes are not known", "a static shape", value.type)
    return Concat(axis)(*kept) if kept else value.inputs[0]


@rewrite(Concat, exact=True)
def merge_concats(value: Value, context: Context) -> Value | Reject:
    """concat(x, concat(y, z)) -> concat(x, y, z), along one axis"""
    axis = _axis(value)
    user = context.only_user.get(value)
    if user is not None and isinstance(user.op, Concat) and user.op.axis == axis:
        # The concat that reads this one flattens the whole chain once; level by level it would be
        # copied once per level.
        return Reject("the concat that reads this one takes its pieces")
    pieces: list[Value] = []
    reason = Reject("no piece is a concat along this axis", near=False)
    stack = [(v, value) for v in reversed(value.inputs)]
    while stack:
        piece, reader = stack.pop()
        same = isinstance(piece.op, Concat) and piece.op.axis == axis
        if same and context.use_count(piece) > reader.inputs.count(piece):
            # It stays for its other readers, and can be computed in place as a part of this one.
            reason = Reject("others read the inner concat", 1, context.use_count(piece))
            same = False
        if same:
            stack.extend((v, piece) for v in reversed(piece.inputs))
        else:
            pieces.append(piece)
    return Concat(axis)(*pieces) if len(pieces) > len(value.inputs) else reason


@rewrite(Concat, exact=True)
def repeat_as_broadcast(value: Value) -> Value | Reject:
    """concat(x, x, x) -> broadcast(x), where x has size 1 along the axis"""
    first = value.inputs[0]
    if any(v is not first for v in value.inputs) or not is_static(value):
        return Reject("the pieces differ, or their sizes are not known", near=False)
    if first.tensor.static[_axis(value)] != 1:
        size = first.tensor.static[_axis(value)]
        return Reject("repeating several elements takes more than a broadcast", 1, size)
    return Broadcast(value.tensor.static)(first)


@rewrite(Concat, exact=True)
def join_slices(value: Value) -> Value | Reject:
    """concat(x[a:b], x[b:c]) -> x[a:c]; the whole of x where they are all of it"""
    if not is_static(value, *value.inputs):
        return Reject("the sizes are not known", "static shapes", value.type)
    axis = _axis(value)
    pieces = [value.inputs[0]]
    reason = Reject("no neighbours are slices of one value", near=False)
    for piece in value.inputs[1:]:
        made = _joined(pieces[-1], piece, axis)
        if isinstance(made, Value):
            pieces[-1] = made
        else:
            reason = made or reason
            pieces.append(piece)
    if len(pieces) == len(value.inputs):
        return reason
    return Concat(axis)(*pieces) if len(pieces) > 1 else pieces[0]


def _joined(a: Value, b: Value, axis: int) -> Value | Reject | None:
    """Return two neighbours as one slice of their common source; None if they have none."""
    if not isinstance(a.op, Slice) or not isinstance(b.op, Slice) or a.inputs != b.inputs:
        return None
    first, second = ranges_of(a), ranges_of(b)
    for i, (r, s) in enumerate(zip(first, second, strict=True)):
        if i != axis and r != s:
            return Reject("the slices differ on another axis", r, s)
    r, s = first[axis], second[axis]
    if not r or not s or (r.step != s.step and min(count_places(r), count_places(s)) > 1):
        return Reject("the slices have different steps", r, s)
    step = s.step if count_places(s) > 1 else r.step if count_places(r) > 1 else 1
    if r[-1] + step != s[0]:
        return Reject("the slices do not adjoin", f"a start at {r[-1] + step}", s[0])
    first[axis] = span(r[0], s[-1] + step, step)
    return take(a.inputs[0], first)


@rewrite(Concat, exact=True)
def concat_of_slices(value: Value) -> Value | Reject:
    """concat(view(x[0]), view(x[1]), ...) -> one rearrangement of x

    The pieces are equal slices of x, in order, each under the same reshapes and transposes (an
    unsqueeze, say, or a squeeze and an unsqueeze): the index of the slice becomes a dimension of
    its own, which a transpose brings to where the concat has it.
    """
    if not is_static(value, *value.inputs) or 0 in value.tensor.static or len(value.inputs) < 2:
        return Reject("the sizes are not known, or are zero", "static shapes", value.type)
    chains = [_views(piece) for piece in value.inputs]
    first = chains[0]
    cuts = [chain[-1] for chain in chains]
    if any(not isinstance(v.op, Slice) or v.inputs != first[-1].inputs for v in cuts):
        return Reject("the pieces are not views of slices of one value", near=False)
    if any([v.op for v in c[:-1]] != [v.op for v in first[:-1]] for c in chains):
        return Reject("the slices are not under the same views")
    tiling = _tiling([ranges_of(v) for v in cuts])
    if isinstance(tiling, Reject):
        return tiling
    axis, source = tiling[0], take(first[-1].inputs[0], tiling[1])
    made = _stacked(source, axis, len(cuts), first[:-1], _axis(value))
    return made or Reject("one transpose does not bring the slices together", given=value.type)


def _views(piece: Value) -> list[Value]:
    """Return the reshapes and transposes that a piece ends with, last first, and the source."""
    chain = [piece]
    while isinstance(chain[-1].op, (Reshape, Transpose)) and is_static(chain[-1].inputs[0]):
        chain.append(chain[-1].inputs[0])
    return chain


def _tiling(cuts: list[list[Range]]) -> tuple[int, list[Range]] | Reject:
    """Return the axis along which equal slices follow one another, and the range of each."""
    varying = [i for i in range(len(cuts[0])) if any(c[i] != cuts[0][i] for c in cuts)]
    if len(varying) != 1:
        return Reject("the slices do not follow one axis", 1, len(varying))
    (axis,) = varying
    along = [c[axis] for c in cuts]
    for r, s in pairwise(along):
        if count_places(r) != count_places(s) or r.step != 1 or s.step != 1:
            return Reject("the slices are not of one width", r, s)
        if r.stop != s.start:
            return Reject("the slices do not adjoin", f"a start at {r.stop}", s.start)
    places = list(cuts[0])
    places[axis] = span(along[0].start, along[-1].stop)
    return axis, places


def _stacked(source: Value, axis: int, count: int, views: list[Value], at: int) -> Value | None:
    """Apply the views to all `count` slices of `source` along `axis`, side by side on axis `at`."""
    sizes = source.tensor.static
    split: Sizes = (*sizes[:axis], count, sizes[axis] // count, *sizes[axis + 1 :])
    arrangement = Arrangement.of(sizes).reshaped(split)
    assert arrangement is not None
    order = (axis, *(i for i in range(len(split)) if i != axis))
    stacked: Arrangement | None = arrangement.transposed(order)
    for view in reversed(views):
        if stacked is None:
            return None
        if isinstance(view.op, Transpose):
            stacked = stacked.transposed((0, *(p + 1 for p in view.op.permutation)))
        else:
            stacked = stacked.reshaped((count, *view.tensor.static))
    if stacked is None:
        return None
    rank = len(stacked.dims)
    order = (*range(1, at + 1), 0, *range(at + 1, rank))
    shape = stacked.shape
    joined = stacked.transposed(order).reshaped(
        (*shape[1 : at + 1], count * shape[at + 1], *shape[at + 2 :])
    )
    return None if joined is None else joined.build(source)


@rewrite(Concat, exact=True)
def concat_of_reshapes(value: Value) -> Value | Reject:
    """concat(reshape(x), reshape(y)) -> reshape(concat(x, y))"""
    if not all(isinstance(v.op, Reshape) for v in value.inputs):
        near = any(isinstance(v.op, Reshape) for v in value.inputs)
        given = [v.op.name for v in value.inputs]
        return Reject("not every piece is a reshape", "reshapes", given, near)
    sources = [v.inputs[0] for v in value.inputs]
    if not is_static(value, *value.inputs, *sources) or 0 in value.tensor.static:
        return Reject("the sizes are not known, or are zero", "static shapes", value.type)
    # A concat writes, for every index before its axis, the rest of each piece: only the number of
    # those indices counts.
    before = math.prod(value.tensor.static[: _axis(value)])
    first = sources[0].tensor.static
    for axis in range(len(first)):
        off = first[:axis] + first[axis + 1 :]
        shapes = (s.tensor.static for s in sources if s.tensor.rank == len(first))
        alike = [s for s in shapes if same_sizes(s[:axis] + s[axis + 1 :], off)]
        if len(alike) == len(sources) and proven(math.prod(first[:axis]), "==", before):
            return reshaped(Concat(axis)(*sources), value.tensor.static)
    return Reject("no axis before the reshapes leads as far", before, first)
