"""Loops whose count is known: as scans of their iteration numbers.

The sizes of what such a loop collects are known too, so that it can be compiled.
"""

from __future__ import annotations

import numpy as np

from monograph.ir import Graph, Value, constant, known
from monograph.ops.control import Loop, Scan
from monograph.ops.extend import Iota
from monograph.ops.subgraph import inline

MAX_TRIPS = 1 << 20


def as_scan(op: Loop, inputs: tuple[Value, ...]) -> Value | None:
    """A loop that is sure to run a number of times, as a scan; None where it is not sure."""
    trips, condition = known(inputs[0]), known(inputs[1])
    number, go, *formals = op.body.inputs
    if trips is None or condition is None or not condition.all() or not _goes_on(op):
        return None
    count = int(trips.reshape(-1)[0])
    if not 0 <= count <= MAX_TRIPS or number.tensor.shape != () or not go.tensor.is_static:
        return None
    going = constant(np.ones(go.tensor.static, bool))
    _, *results = inline(op.body, (number, going, *formals))
    named = tuple((f"y{i}", v) for i, v in enumerate(results))
    state, captures = formals[: op.carried], formals[op.carried :]
    body = Graph((*state, number, *captures), named, op.body.name, op.body.origins)
    collected = len(results) - op.carried
    scan = Scan(body, (0,), (False,), (0,) * collected, (False,) * collected)
    given = inputs[2:]
    return scan(*given[: op.carried], Iota(count)(), *given[op.carried :])


def _goes_on(op: Loop) -> bool:
    """Whether nothing in the body ends the loop."""
    ends = op.body.outputs[0][1]
    data = known(ends)
    return ends is op.body.inputs[1] or (data is not None and bool(data.all()))
