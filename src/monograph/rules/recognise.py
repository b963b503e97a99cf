"""Arithmetic that the rules for composite ops share.

Exporters write one formula in many orders: factors before or after, a division or a product with
the reciprocal, sizes kept or restored by a reshape. The rules therefore do not list spellings; they
take an expression apart and compare what it computes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import ml_dtypes

from monograph.ir import Constant, DType, Input, Value, known
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Div, Mul, Neg, Pow, Sub
from monograph.ops.shape import Broadcast, Reshape, Squeeze, Unsqueeze
from monograph.rewrite import Context, Reject

RELATIVE = 1e-6
"""The allowed relative error of a constant: the cost of writing it with seven digits."""
MAX_VALUES = 24
"""Larger expressions are not taken apart."""
MAX_DEGREE = 8
ARITHMETIC = (Add, Sub, Mul, Div, Neg, Pow)


def uniform(value: Value) -> float | None:
    """Return the number that all elements of a float constant equal, also if it is broadcast."""
    while isinstance(value.op, (Broadcast, Reshape, Squeeze, Unsqueeze)):
        value = value.inputs[0]
    data = known(value)
    if data is None or not data.size or not value.dtype.is_float:
        return None
    flat = data.reshape(-1)
    if data.size > 1 and (flat[0] != flat[-1] or not (flat == flat[0]).all()):
        return None
    return float(flat[0])


def is_close(given: float, wanted: float, dtype: DType) -> bool:
    """Return True if a constant equals a number up to seven digits or the rounding of its type."""
    eps = float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]
    return abs(given - wanted) <= max(RELATIVE, eps) * abs(wanted)


def before_widening(value: Value) -> Value:
    """Return the operand of a cast to a wider float, which changes no number."""
    if not isinstance(value.op, Cast) or not value.dtype.is_float:
        return value
    given = value.inputs[0]
    wider = given.dtype.is_float and given.dtype.bits < value.dtype.bits
    return given if wider else value


def core(value: Value) -> Value:
    """Return the value before views that keep its elements and their order."""
    while isinstance(value.op, (Reshape, Squeeze, Unsqueeze)) or (
        isinstance(value.op, Broadcast) and _as_many(value)
    ):
        value = value.inputs[0]
    return value


def _as_many(value: Value) -> bool:
    """Return True if a broadcast repeats nothing."""
    given, result = value.inputs[0].tensor.dims, value.tensor.dims
    return result[len(result) - len(given) :] == given and all(
        d == 1 for d in result[: len(result) - len(given)]
    )


@dataclass
class Product:
    """A value as number * factors / divisors."""

    number: float = 1.0
    factors: list[Value] = field(default_factory=list)
    divisors: list[Value] = field(default_factory=list)


def product_of(value: Value, whole: Collection[Value] = ()) -> Product:
    """Return a value as a product; values in `whole` are not taken apart."""
    result = Product()
    stack = [(value, False)]
    left = MAX_VALUES
    while stack:
        v, below = stack.pop()
        number = uniform(v)
        if number:
            result.number = result.number / number if below else result.number * number
        elif v in whole or not isinstance(v.op, (Mul, Div, Neg)) or not left:
            (result.divisors if below else result.factors).append(v)
        elif isinstance(v.op, Neg):
            result.number = -result.number
            stack.append((v.inputs[0], below))
        else:
            left -= 1
            stack.append((v.inputs[1], below != isinstance(v.op, Div)))
            stack.append((v.inputs[0], below))
    return result


def inside(value: Value) -> Iterator[Value]:
    """Yield a value and the values that its arithmetic reads, nearest first, without constants."""
    queue, seen = [value], {value}
    for v in queue:
        if isinstance(v.op, Constant):
            continue
        yield v
        if not isinstance(v.op, ARITHMETIC) or len(queue) > MAX_VALUES:
            continue
        fresh = [i for i in dict.fromkeys(v.inputs) if i not in seen]
        seen.update(fresh)
        queue += fresh


Polynomial = dict[tuple[int, ...], float]
"""Coefficients by the powers of the variables."""


def polynomial(value: Value, of: tuple[Value, ...]) -> Polynomial | None:
    """Return a value as a polynomial of others; None if it is none, or too large."""
    made: dict[Value, Polynomial | None] = {}
    for i, v in enumerate(of):
        made[v] = {tuple(int(i == j) for j in range(len(of))): 1.0}
    stack = [value]
    while stack:
        v = stack[-1]
        if v in made:
            stack.pop()
            continue
        number = uniform(v)
        if number is not None:
            made[v] = {(0,) * len(of): number}
        elif not isinstance(v.op, ARITHMETIC) or len(made) > MAX_VALUES:
            return None
        elif waiting := [i for i in v.inputs if i not in made]:
            stack += waiting
        else:
            made[v] = _combine(v, [p for i in v.inputs if (p := made[i]) is not None])
            if made[v] is None:
                return None
    return made[value]


def _combine(value: Value, parts: list[Polynomial]) -> Polynomial | None:
    """Combine the polynomials of the operands as the op of `value` does."""
    op = value.op
    if isinstance(op, Neg):
        return _scaled(parts[0], -1.0)
    if isinstance(op, (Add, Sub)):
        return _sum(parts[0], _scaled(parts[1], -1.0 if isinstance(op, Sub) else 1.0))
    if isinstance(op, Mul):
        return _times(*parts)
    number = uniform(value.inputs[1])
    if isinstance(op, Div):
        return _scaled(parts[0], 1 / number) if number else None
    if number not in (1.0, 2.0, 3.0):
        return None
    result: Polynomial | None = parts[0]
    for _ in range(int(number) - 1):
        result = _times(result, parts[0]) if result is not None else None
    return result


def _scaled(p: Polynomial, number: float) -> Polynomial:
    return {powers: c * number for powers, c in p.items()}


def _sum(p: Polynomial, q: Polynomial) -> Polynomial:
    return {powers: p.get(powers, 0.0) + q.get(powers, 0.0) for powers in p | q}


def _times(p: Polynomial, q: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for a, c in p.items():
        for b, d in q.items():
            powers = tuple(map(sum, zip(a, b, strict=True)))
            if sum(powers) > MAX_DEGREE:
                return None
            result[powers] = result.get(powers, 0.0) + c * d
    return result


def reject_shared(root: Value, leaves: Collection[Value], context: Context) -> Reject | None:
    """Decline if a value between root and leaves has a user elsewhere.

    The composite op would compute such a value a second time.
    """
    users: dict[Value, int] = {}
    stack, seen = [root], {root}
    while stack:
        for v in stack.pop().inputs:
            if v in leaves or v.closed or isinstance(v.op, Input):
                continue
            users[v] = users.get(v, 0) + 1
            if v not in seen:
                seen.add(v)
                stack.append(v)
    for v, here in users.items():
        if context.use_count(v) > here:
            return Reject(f"{v.op.name} has another user", here, context.use_count(v))
    return None
