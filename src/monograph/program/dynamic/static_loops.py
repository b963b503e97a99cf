"""Loops of known trip count, as scans over their iteration numbers.

The sizes that such a loop collects are known too, so that it can be compiled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from monograph.ir import Graph, TensorType, Value, constant, known
from monograph.ops.control import Loop, Scan
from monograph.ops.pad_tile import Iota
from monograph.ops.shape import Concat, Unsqueeze
from monograph.ops.subgraph import inline

Inline = Callable[[Graph, tuple[Value, ...]], tuple[Value, ...]]
"""A function that returns the results of a graph on arguments."""
MAX_TRIPS = 1 << 20
MAX_UNROLLED = 1 << 12
"""The most values of an unrolled loop, and the most iterations whose numbers are a constant."""


def as_scan(op: Loop, inputs: tuple[Value, ...]) -> Value | None:
    """Return a loop of known trip count as a scan; None if the count is not certain."""
    trips, condition = known(inputs[0]), known(inputs[1])
    number, go, *formals = op.body.inputs
    if trips is None or condition is None or not condition.all() or not never_breaks(op):
        return None
    count = int(trips.reshape(-1)[0])
    if not 0 <= count <= MAX_TRIPS or number.tensor.shape != () or not go.tensor.is_static:
        return None
    if any(isinstance(v.type, TensorType) and not v.type.is_static for v in formals[: op.carried]):
        return None  # its state may change size
    going = constant(np.ones(go.tensor.static, bool))
    _, *results = inline(op.body, (number, going, *formals))
    named = tuple((f"y{i}", v) for i, v in enumerate(results))
    state, captures = formals[: op.carried], formals[op.carried :]
    body = Graph((*state, number, *captures), named, op.body.name, op.body.origins)
    collected = len(results) - op.carried
    scan = Scan(body, (0,), (False,), (0,) * collected, (False,) * collected)
    given = inputs[2:]
    numbers = constant(np.arange(count)) if count <= MAX_UNROLLED else Iota(count)()
    return scan(*given[: op.carried], numbers, *given[op.carried :])


def never_breaks(op: Loop) -> bool:
    """Return True if nothing in the body ends the loop."""
    ends = op.body.outputs[0][1]
    data = known(ends)
    return ends is op.body.inputs[1] or (data is not None and bool(data.all()))


def unrolled(
    op: Loop, inputs: tuple[Value, ...], inlined: Inline = inline
) -> tuple[Value, ...] | None:
    """Unroll a loop with a small known trip count.

    Sizes may change on the way: each iteration is a graph of its own. None if the count is not
    certain, or if the graph would become large.
    """
    trips, condition = known(inputs[0]), known(inputs[1])
    if trips is None or condition is None or not condition.all() or not never_breaks(op):
        return None
    if not op.pure:  # a random op advances its state once per iteration, but would occur only once
        return None
    count = int(trips.reshape(-1)[0])
    if not 0 < count <= MAX_UNROLLED // max(len(op.body.values), 1):
        return None
    number, go = (t for t in op.body.input_types[:2] if isinstance(t, TensorType))
    state, captures = inputs[2 : 2 + op.carried], inputs[2 + op.carried :]
    collected: list[tuple[Value, ...]] = []
    for i in range(count):
        at = constant(np.full(number.static, i, np.int64))
        going = constant(np.ones(go.static, bool))
        _, *results = inlined(op.body, (at, going, *state, *captures))
        state = tuple(results[: op.carried])
        collected.append(tuple(results[op.carried :]))
    stacks = (Concat(0)(*map(Unsqueeze((0,)), parts)) for parts in zip(*collected, strict=True))
    return (*state, *stacks)
