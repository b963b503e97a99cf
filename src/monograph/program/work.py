"""The work of a step: its operations and its bytes.

A branch counts as its larger side, a loop as all its iterations. Where data decide how many
iterations there are, the operations are NaN: reports must not show them as a number.
"""

from __future__ import annotations

import math

from monograph.ir import Constant, Graph, Input, Item, TensorType, Value
from monograph.ops.control import If, Loop, Scan
from monograph.program.dynamic.bounded import BoundedLoop
from monograph.program.fusion.region import Region
from monograph.program.legalise.expand import expand
from monograph.program.program import Program, Step
from monograph.rewrite import Work


def step_work(step: Step) -> Work:
    """Return the work of a step: one launch, the multiply-adds of its anchor, one operation per
    other element, and bytes.
    """
    inside = (_inside(v) for v in step.region.body)
    return sum(inside, outer_work(step))


def outer_work(step: Step) -> Work:
    """Return the work of a step without its branches and loops, which depend on data."""
    region = step.region
    moved = sum(_read_bytes(region, v) for v in region.inputs)
    moved += sum(_bytes(v) for v in region.outputs)
    flops = sum(v.op.operations(v) for v in region.body)
    return Work(1, flops, moved)


def program_work(program: Program) -> Work:
    """Return the work of all steps."""
    return sum(map(step_work, program.steps), Work(0, 0, 0))


def _inside(value: Value) -> Work:
    """Return the work of the sub-graphs of a branch or loop."""
    op = value.op
    if isinstance(op, If):
        # An unknown side may be the larger one.
        sides = [_graph_work(op.then), _graph_work(op.orelse)]
        return max(sides, key=lambda w: math.inf if math.isnan(w.flops) else w.flops)
    if isinstance(op, Scan):
        length = value.inputs[op.carried].tensor.dims[op.axes[0]]
        turns = float(length) if isinstance(length, int) else math.nan
        return _repeated(op.body, turns)
    if isinstance(op, (Loop, BoundedLoop)):
        return _repeated(op.body, math.nan)
    return Work(0, 0, 0)


def _repeated(body: Graph, turns: float) -> Work:
    """Return the work of the iterations of a loop, which reads its weights once."""
    once = _graph_work(body)
    return Work(0, turns * once.flops, once.bytes)


def _graph_work(graph: Graph) -> Work:
    """The operations of a sub-graph, and the bytes of its weights."""
    total = Work(0, 0, 0)
    for value in expand(graph).values:
        if isinstance(value.op, Constant):
            total += Work(0, 0, _bytes(value))
        elif not isinstance(value.op, (Input, Item)):
            total += Work(0, value.op.operations(value), 0) + _inside(value)
    return total


def _read_bytes(region: Region, value: Value) -> float:
    """Return the bytes of an operand that a step reads: of a table, only the rows looked up."""
    anchor = region.anchor
    if anchor is None or not anchor.op.looks_up:
        return _bytes(value)
    return min(_bytes(value), _bytes(anchor)) if value is anchor.inputs[0] else _bytes(value)


def _bytes(value: Value) -> float:
    known = isinstance(value.type, TensorType) and value.type.is_static
    return float(value.tensor.nbytes) if known else 0.0
