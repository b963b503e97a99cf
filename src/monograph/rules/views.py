"""Rules for views that keep every element: reshapes, transposes, broadcasts, and equivalents.

Where sizes are known, a chain of reshapes, squeezes, unsqueezes and transposes becomes the one
shortest chain of reshapes and transposes that does the same.
"""

from __future__ import annotations

from monograph.ir import TensorType, Value
from monograph.ops.pad_tile import Pad, Tile
from monograph.ops.shape import COPY, Broadcast, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.rewrite import ANY, Context, Reject, rewrite, variables
from monograph.rules.arrangement import Arrangement, Sizes, reshaped

x, a, b = variables("x a b")

CHAIN = 16
"""The number of views examined above one; longer than a collapsed chain."""


def is_static(*values: Value) -> bool:
    """Return True if every size of these values is known."""
    return all(isinstance(v.type, TensorType) and v.type.is_static for v in values)


@rewrite(Reshape(ANY)(x), exact=True)
def drop_reshape(x: Value, root: Value) -> Value | Reject:
    """reshape(x) -> x where x has the shape already"""
    if root.type != x.type:
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
    """Collapse the views up to the furthest value that one transpose at most separates from
    here.
    """
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
        return made if made is not value else Reject("the chain is as short as can be")
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


@rewrite(Broadcast(ANY)(x), exact=True)
def drop_broadcast(x: Value, root: Value) -> Value | Reject:
    """broadcast(x) -> x where x has the shape already; a reshape where only ones are added"""
    if root.type == x.type:
        return x
    if not is_static(x) or x.tensor.size != root.tensor.size or x.tensor.size == 0:
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
    if without_leading_ones(x.tensor.static) != without_leading_ones(between.tensor.static):
        return Reject("the reshape does more than add leading ones", x.type, between.type)
    if x.tensor.rank > root.tensor.rank:
        return Reject("the result has fewer dimensions", x.type, root.type)
    return Broadcast(root.tensor.static)(x)


def without_leading_ones(shape: Sizes) -> Sizes:
    """Return a shape as broadcasting sees it."""
    first = next((i for i, d in enumerate(shape) if d != 1), len(shape))
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
    if max((*op.before, *op.after), default=0) > 0:
        return Reject("elements are added", "counts of at most 0", (op.before, op.after))
    if not any((*op.before, *op.after)):
        return x
    if not is_static(x):
        return Reject("the sizes are not known", "a static shape", x.type)
    starts = tuple(-b for b in op.before)
    stops = tuple(d + a for d, a in zip(x.tensor.static, op.after, strict=True))
    return Slice(starts, stops, (1,) * len(starts))(x)
