"""Rules that move views below other work, so that the work can join the work before the views.

Views move one way: down, below elementwise work, concats and dots, until they meet others that they
merge with. Broadcasts are dropped before work that broadcasts by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from monograph.ir import Constant, Op, Value, constant, known
from monograph.ir.sizes import is_one, proven, same_sizes
from monograph.ops import OPS
from monograph.ops.base import Binary, Unary
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Where
from monograph.ops.linear import Dot
from monograph.ops.reduce import Reduction
from monograph.ops.shape import Broadcast, Concat, Reshape, Transpose
from monograph.rewrite import ANY, Context, Reject, Rule, rewrite, variables
from monograph.rules.views import (
    Sizes,
    groups,
    inverse,
    is_static,
    same_types,
    without_leading_ones,
)

x, y = variables("x y")

MAX_WORK = 16
"""The most elementwise ops moved together: enough for an activation that reads x twice."""
SHORT = 3
"""The views of the longest collapsed chain: a transpose between two reshapes."""
ELEMENTWISE: tuple[type[Op], ...] = tuple(
    op for op in OPS.values() if issubclass(op, (Unary, Binary, Where, Cast))
)
_WORK = frozenset(ELEMENTWISE)
REDUCTIONS: tuple[type[Op], ...] = tuple(op for op in OPS.values() if issubclass(op, Reduction))


@dataclass
class Expression:
    """Elementwise ops between a value and the views of one kind that they read."""

    root: Value
    work: list[Value] = field(default_factory=list)
    views: list[Value] = field(default_factory=list)
    small: list[Value] = field(default_factory=list)


def _is_small(value: Value) -> bool:
    """Return True for a constant or one element: it fits before and after the views."""
    if isinstance(value.op, Constant):
        return True
    return is_static(value) and proven(value.tensor.size, "==", 1)


def expression(root: Value, kind: type[Op], context: Context) -> Expression | Reject:
    """Collect the ops between views of a kind and a value; the views must have no other reader."""
    found = Expression(root, [root])
    operands = {v for v in root.inputs if not _is_small(v)}
    if len(operands) == 1 and not any(isinstance(v.op, kind) for v in operands):
        # All values between are read by this operand's own ops, so no other value needs a check.
        given = repr(operands.pop())
        return Reject(f"the operand is not a {kind.name}", kind.name, given, near=False)
    reads: dict[Value, int] = {}
    for value in found.work:  # grows as work is found
        for v in value.inputs:
            reads[v] = reads.get(v, 0) + 1
            if reads[v] > 1:
                continue
            if isinstance(v.op, kind) and is_static(v.inputs[0]):
                found.views.append(v)
            elif _is_small(v):
                found.small.append(v)
            elif type(v.op) not in _WORK or v.closed or not is_static(v):
                near = bool(found.views)
                return Reject(f"an operand is not a {kind.name}", kind.name, repr(v), near)
            elif len(found.work) == MAX_WORK:
                reason = "there are too many ops between the views and the value"
                return Reject(reason, MAX_WORK, near=bool(found.views))
            else:
                found.work.append(v)
    if not found.views:
        return Reject(f"no operand is a {kind.name}", near=False)
    if not all(map(_is_short, found.views)):
        return Reject("the views before the work do not collapse", SHORT)
    for v in (*found.views, *found.work[1:]):
        if context.use_count(v) > reads[v]:
            return Reject("others read an operand too", reads[v], context.use_count(v))
    return found


def _is_short(view: Value) -> bool:
    """Return True if the chain of views that ends here is short enough to be a collapsed one.

    A longer chain would be moved below every op, one view at a time, and never join anything.
    """
    for _ in range(SHORT):
        view = view.inputs[0]
        if not isinstance(view.op, (Reshape, Transpose)):
            return True
    return False


def _redone(found: Expression, moved: Callable[[Value], Value]) -> Value:
    """Apply the ops to the sources of the views, with the other operands moved there."""
    made = {v: v.inputs[0] for v in found.views}
    made |= {v: moved(v) for v in found.small}
    stack = [found.root]
    while stack:
        missing = [v for v in stack[-1].inputs if v not in made]
        if missing:
            stack += missing
        else:
            v = stack.pop()
            made[v] = v.op(*(made[i] for i in v.inputs))
    return made[found.root]


def sink_transpose(value: Value, context: Context) -> Value | Reject:
    """f(transpose(x), transpose(y)) -> transpose(f(x, y)), f elementwise"""
    found = expression(value, Transpose, context)
    if isinstance(found, Reject):
        return found
    permutations = {v.op.permutation for v in found.views if isinstance(v.op, Transpose)}
    if len(permutations) > 1:
        first, second, *_ = sorted(permutations)
        return Reject("the operands are not permuted alike", first, second)
    (permutation,) = permutations
    rank = len(permutation)
    if value.tensor.rank != rank:
        return Reject("an operand has more dimensions", rank, value.tensor.rank)

    def moved(small: Value) -> Value:
        data = known(small)
        if data is None or data.size == 1:
            return small
        full = data.reshape((1,) * (rank - data.ndim) + data.shape)
        return constant(np.transpose(full, inverse(permutation)))

    return Transpose(permutation)(_redone(found, moved))


def sink_reshape(value: Value, context: Context) -> Value | Reject:
    """f(reshape(x), reshape(y)) -> reshape(f(x, y)), f elementwise"""
    found = expression(value, Reshape, context)
    if isinstance(found, Reject):
        return found
    before = {v.inputs[0].tensor.static for v in found.views}
    after = {v.tensor.static for v in found.views}
    if len(before) > 1 or after != {value.tensor.static}:
        return Reject("the operands are not reshaped alike", sorted(before), sorted(after))
    (source,) = before
    if 0 in source:
        return Reject("there are no elements")
    shapes: dict[Value, Sizes] = {}
    for small in found.small:
        given = small.tensor.static
        shape = () if small.tensor.size == 1 else _unshaped(given, value.tensor.static, source)
        if shape is None:
            return Reject("a constant does not fit before the reshape", source, small.type)
        shapes[small] = shape

    def moved(small: Value) -> Value:
        data = known(small)
        if data is not None:
            return constant(data.reshape(shapes[small]))
        return small if small.tensor.rank <= len(source) else Reshape(())(small)

    return Reshape(value.tensor.static)(_redone(found, moved))


def _unshaped(given: Sizes, after: Sizes, before: Sizes) -> Sizes | None:
    """Return the shape of an operand that broadcasts to `after`, as one for `before`."""
    given = (1,) * (len(after) - len(given)) + given
    shape: list[int] = []
    for outer, inner in groups(before, after):
        if all(proven(given[i], "==", after[i]) for i in inner):
            shape += [before[i] for i in outer]
        elif all(is_one(given[i]) for i in inner):
            shape += [1] * len(outer)
        else:
            return None
    return tuple(shape)


def skip_broadcast(value: Value) -> Value | Reject:
    """f(broadcast(x), y) -> f(x, y), f elementwise, where y repeats x as far"""
    operands = tuple(_unrepeated(v) for v in value.inputs)
    if operands == value.inputs:
        return Reject("no operand is a broadcast", near=False)
    for chosen in (operands, *_one_by_one(value.inputs, operands)):
        made = value.op(*chosen)
        if same_types(made, value):
            return made
    return Reject("the result has another shape without", value.type, value.op(*operands).type)


def _unrepeated(v: Value) -> Value:
    """Return the source of a broadcast, or of a reshape that changes leading ones; else v."""
    if isinstance(v.op, Broadcast):
        return v.inputs[0]
    if isinstance(v.op, Reshape) and is_static(v, v.inputs[0]):
        source = v.inputs[0].tensor.static
        if same_sizes(without_leading_ones(source), without_leading_ones(v.tensor.static)):
            return v.inputs[0]
    return v


def _one_by_one(old: tuple[Value, ...], new: tuple[Value, ...]) -> list[tuple[Value, ...]]:
    """Return the operand lists in which one operand is replaced."""
    changed = [i for i in range(len(old)) if old[i] is not new[i]]
    return [(*old[:i], new[i], *old[i + 1 :]) for i in changed]


def sink_broadcast(value: Value, context: Context) -> Value | Reject:
    """f(broadcast(x), k) -> broadcast(f(x, k)), f elementwise and k of one element"""
    repeated = {v for v in value.inputs if isinstance(v.op, Broadcast)}
    if len(repeated) != 1 or not is_static(value, *value.inputs):
        near = bool(repeated)
        return Reject("no single operand is a broadcast of known sizes", 1, len(repeated), near)
    (wide,) = repeated
    others = [v for v in value.inputs if v is not wide]
    if any(not is_one(v.tensor.size) or v.tensor.rank > wide.tensor.rank for v in others):
        return Reject(
            "another operand has several elements", 1, ", ".join(str(v.type) for v in others)
        )
    if context.use_count(wide) > value.inputs.count(wide):
        return Reject("others read the broadcast", 1, context.use_count(wide))
    narrow = (wide.inputs[0] if v is wide else v for v in value.inputs)
    return Broadcast(value.tensor.static)(value.op(*narrow))


def keep_reduced(value: Value) -> Value | Reject:
    """reduce(x) -> reshape(reduce(x)) with the reduced dimensions kept, as ones"""
    assert isinstance(value.op, Reduction)
    if value.op.keep:
        return Reject("the reduced dimensions are kept already", near=False)
    if value.tensor.shape == ():
        return Reject("no dimension is left beside the reduced ones")
    if not is_static(value, value.inputs[0]):
        return Reject("the sizes are not known", "static shapes", value.inputs[0].type)
    kept = replace(value.op, keep=True)
    return Reshape(value.tensor.static)(kept(value.inputs[0]))


@rewrite(Concat, exact=True)
def sink_transpose_below_concat(value: Value, context: Context) -> Value | Reject:
    """concat(transpose(x), transpose(y)) -> transpose(concat(x, y))"""
    assert isinstance(value.op, Concat)
    permutations = {v.op.permutation for v in value.inputs if isinstance(v.op, Transpose)}
    if len(permutations) != 1 or not all(isinstance(v.op, Transpose) for v in value.inputs):
        given = [getattr(v.op, "permutation", v.op.name) for v in value.inputs]
        reason = "the pieces are not transposes alike"
        return Reject(reason, "one permutation", given, near=bool(permutations))
    for v in value.inputs:
        if context.use_count(v) > value.inputs.count(v):
            return Reject("others read a transpose", 1, context.use_count(v))
        if not _is_short(v):
            return Reject("the views before the concat do not collapse", SHORT)
    (permutation,) = permutations
    joined = Concat(permutation[value.op.axis])(*(v.inputs[0] for v in value.inputs))
    return Transpose(permutation)(joined)


# The next rule and `flatten_dot` keep the terms of every sum; but matrices of other shapes select
# other kernels, which may add in another order.
@rewrite(Dot(ANY, ANY)(Reshape(ANY)(x), y), exact=False)
def sink_reshape_below_dot(x: Value, y: Value, root: Value) -> Value | Reject:
    """dot(reshape(x), y) -> reshape(dot(x, y)), y one matrix and the rows of x kept"""
    if not is_static(root, x, y):
        return Reject("the sizes are not known", "static shapes", root.type)
    if y.tensor.rank != 2:
        return Reject("the second operand is not one matrix", "rank 2", f"rank {y.tensor.rank}")
    if x.tensor.rank < 2 or x.tensor.static[-1] != y.tensor.static[0]:
        return Reject("the rows before the reshape have another length", y.tensor.static[0], x.type)
    rows = root.inputs[0].tensor.static[:-1]
    if math.prod(x.tensor.static[:-1]) != math.prod(rows):
        return Reject("the reshape changes the number of empty rows", math.prod(rows), x.type)
    if not _is_short(root.inputs[0]):
        return Reject("the views before the dot do not collapse", SHORT)
    return Reshape(root.tensor.static)(root.op(x, y))


@rewrite(Dot(ANY, ANY)(Broadcast(ANY)(x), y), exact=True)
def share_left_of_dot(x: Value, y: Value, root: Value) -> Value | Reject:
    """dot(broadcast(x), y) -> dot(x, y), where y has as many matrices"""
    return _shared(root, 0, x, (x, y))


@rewrite(Dot(ANY, ANY)(x, Broadcast(ANY)(y)), exact=True)
def share_right_of_dot(x: Value, y: Value, root: Value) -> Value | Reject:
    """dot(x, broadcast(y)) -> dot(x, y), where x has as many matrices"""
    return _shared(root, 1, y, (x, y))


def _shared(
    root: Value, side: int, repeated: Value, operands: tuple[Value, Value]
) -> Value | Reject:
    """Return the dot with one matrix for many, if the broadcast repeats only whole matrices."""
    if not is_static(root, *operands):
        return Reject("the sizes are not known", "static shapes", root.type)
    whole = root.inputs[side]
    if repeated.tensor.static[-2:] != whole.tensor.static[-2:]:
        return Reject("the broadcast repeats inside the matrices", whole.type, repeated.type)
    made = root.op(*operands)
    if made.type != root.type:
        return Reject("the other operand has fewer matrices", root.type, made.type)
    return made


@rewrite(Dot(ANY, ANY)(x, y), exact=False)
def flatten_dot(x: Value, y: Value, root: Value) -> Value | Reject:
    """dot(x, y) -> reshape(dot(reshape(x), y)), y one matrix: one product of all rows of x"""
    if not is_static(root, x, y):
        return Reject("the sizes are not known", "static shapes", root.type)
    if y.tensor.rank != 2:
        return Reject("the second operand is not one matrix", "rank 2", f"rank {y.tensor.rank}")
    rows = x.tensor.static[:-1]
    if sum(not is_one(d) for d in rows) < 2:
        wanted = "two dimensions of several rows"
        return Reject("the rows of x are one matrix already", wanted, x.type, near=False)
    flat = Reshape((math.prod(rows), x.tensor.static[-1]))(x)
    return Reshape(root.tensor.static)(root.op(flat, y))


def for_each(kinds: Iterable[type[Op]], *functions: Callable[..., Value | Reject]) -> list[Rule]:
    """Return a rule for each function and op, named after the function."""
    return [rewrite(kind, exact=True)(f) for kind in kinds for f in functions]


SINKING: tuple[Rule, ...] = (
    *for_each(ELEMENTWISE, skip_broadcast, sink_broadcast, sink_transpose, sink_reshape),
    *for_each(REDUCTIONS, keep_reduced),
    sink_transpose_below_concat,
    sink_reshape_below_dot,
    share_left_of_dot,
    share_right_of_dot,
)
FLATTENING: tuple[Rule, ...] = (flatten_dot, *for_each(ELEMENTWISE, sink_reshape))
"""Rules that undo those that sink reshapes below dots: never run both together."""
