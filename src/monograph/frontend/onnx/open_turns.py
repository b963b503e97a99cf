"""Loops that count up to an open size: their number of turns is an open size too.

The condition of such a loop compares a counter, which every turn moves by the same number, with a
limit that no turn changes. The two may be converted to other types on the way.
"""

from __future__ import annotations

from collections.abc import Sequence

from monograph.frontend.onnx.size_search import known_sizes
from monograph.ir import Graph, Value, known
from monograph.ir.sizes import is_open, proven
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, And, Less, LessEqual
from monograph.ops.shape import Reshape, Squeeze, Unsqueeze

EXACT = 1 << 24
"""The largest number up to which f32 holds every integer: counters may be compared as floats."""
_SAME = (Cast, Reshape, Squeeze, Unsqueeze)


def count_open_turns(
    body: Graph, carried: int, trips: Value, condition: Value, operands: Sequence[Value]
) -> int | None:
    """Return the number of turns, which may be an open size; None if data decide it."""
    limit = known(trips)
    if limit is None or not condition.tensor.is_static or not _holds(condition):
        return None
    counts = [_turns_until(part, body, carried, operands) for part in _all_of(body.outputs[0][1])]
    found = [n for n in counts if n is not None]
    if len(found) < len(counts):
        return None
    turns = found[0]
    for other in (*found[1:], limit.reshape(-1)[0]):
        other = other if is_open(other) else int(other)
        turns = other if other < turns else turns
    return turns


def _all_of(condition: Value) -> list[Value]:
    """Return the conditions that hold together where one does."""
    value = _plain(condition)
    if isinstance(value.op, And):
        return [part for v in value.inputs for part in _all_of(v)]
    return [value]


def _plain(value: Value) -> Value:
    """Return what a number is converted from."""
    while isinstance(value.op, _SAME) and value.tensor.is_static and value.tensor.size == 1:
        value = value.inputs[0]
    return value


def _number(value: Value) -> int | None:
    """Return a single integer that is known, or an open size."""
    data = known(_plain(value))
    if data is not None and data.size == 1 and data.dtype.kind == "f":
        number = float(data.reshape(-1)[0])
        return int(number) if number.is_integer() else None
    found = known_sizes(_plain(value))
    if found is None or len(found) != 1 or not isinstance(found[0], int):
        return None
    return found[0]


def _holds(condition: Value) -> bool:
    """Return True if a condition of the first turn is known to hold."""
    data = known(condition)
    if data is not None:
        return bool(data.all())
    value = _plain(condition)
    if not isinstance(value.op, (Less, LessEqual)):
        return _number(value) == 1
    low, high = map(_number, value.inputs)
    if low is None or high is None or not high <= EXACT:
        return False
    return low < high if isinstance(value.op, Less) else low <= high


def _turns_until(part: Value, body: Graph, carried: int, operands: Sequence[Value]) -> int | None:
    """Return the number of turns after which `counter < limit` does not hold any more."""
    if not isinstance(part.op, (Less, LessEqual)):
        return None
    counter, limit = map(_plain, part.inputs)
    place = {v: i for i, v in enumerate(body.inputs[2:])}
    if place.get(limit, carried) < carried or not isinstance(counter.op, Add):
        return None
    most = _number(operands[place[limit]] if limit in place else limit)
    if most is None or not most <= EXACT:
        return None
    pairs = [tuple(map(_plain, counter.inputs)), tuple(map(_plain, counter.inputs[::-1]))]
    for state, by in pairs:
        at, step = place.get(state, carried), _number(by)
        if at >= carried or step is None or is_open(step) or not 0 < step <= EXACT:
            continue
        start = _number(operands[at])
        if start is None or _plain(body.outputs[1 + at][1]) is not counter:
            continue
        # The condition is asked behind a turn, so that there is one in any case.
        left = most - start + (0 if isinstance(part.op, Less) else 1)
        several = proven(1, "<=", left) or left > step
        return (left + step - 1) // step if several else 1
    return None
