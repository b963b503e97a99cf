"""The work of a step: its operations and its bytes.

A branch counts as its larger side, a loop as all its iterations. Where data decide how many
iterations there are, the operations are NaN: reports must not show them as a number.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from monograph.errors import some_of
from monograph.ir import Constant, Graph, Input, Item, TensorType, Value
from monograph.ir.graph import all_values
from monograph.ir.sizes import hint_of
from monograph.ops.cast import Cast
from monograph.ops.control import If, Loop, Scan
from monograph.ops.quant import Dequantize
from monograph.program.dynamic.bounded import BoundedLoop
from monograph.program.fusion.region import Region
from monograph.program.legalise.expand import expand
from monograph.program.program import Program, Step
from monograph.rewrite import Work

_log = logging.getLogger("monograph")
EXPANDED_BYTES = 1 << 14
"""Fewer bytes are not worth a report: scales and small tables."""


def step_work(program: Program, step: Step) -> Work:
    """Return the work of a step: one launch, the multiply-adds of its anchor, one operation per
    other element, and bytes.
    """
    inside = (_inside(v) for v in step.region.body)
    return sum(inside, outer_work(program, step))


def outer_work(program: Program, step: Step) -> Work:
    """Return the work of a step without its branches and loops, which depend on data."""
    region = step.region
    updated = program.updated(step)
    unread = {v for v in updated.values() if region.anchor and region.anchor.op.updates_first}
    moved = sum(_read_bytes(region, v) for v in region.inputs if v not in unread)
    moved += sum(_part_bytes(region, v) if v in updated else _bytes(v) for v in region.outputs)
    flops = sum(hint_of(v.op.operations(v)) for v in region.body)
    return Work(1, flops, moved)


def program_work(program: Program) -> Work:
    """Return the work of all steps."""
    return sum((step_work(program, s) for s in program.steps), Work(0, 0, 0))


@dataclass(frozen=True)
class ExpandedWeights:
    """Constant codes that a step turns into numbers again in every run."""

    nodes: list[str]
    bytes: int
    """The bytes of the numbers that each run writes."""


def expanded_weights(program: Program) -> list[ExpandedWeights]:
    """Return the weights that a program decodes or casts in every run, largest first."""
    found = []
    for step in program.steps:
        region = step.region
        decodes = any(isinstance(v.op, (Dequantize, Cast)) for v in region.body)
        made = int(sum(map(_bytes, region.outputs)))
        if decodes and made >= EXPANDED_BYTES and all(v.closed for v in region.outputs):
            found.append(ExpandedWeights(step.nodes, made))
    return sorted(found, key=lambda w: -w.bytes)


def holds_codes(graph: Graph) -> bool:
    """Return True if a graph decodes or casts constants of some size, before any rewrite."""
    return any(
        isinstance(v.op, (Dequantize, Cast)) and v.closed and _bytes(v) >= EXPANDED_BYTES
        for v in all_values(graph)
        if isinstance(v.type, TensorType) and v.type.is_static
    )


def warn_of_expansion(program: Program) -> None:
    """Log a warning if a program decodes or casts weights in every run."""
    if not (found := expanded_weights(program)):
        return
    total = sum(w.bytes for w in found) / 1e6
    nodes = some_of([node for w in found for node in w.nodes[:1]])
    _log.warning("each run decodes constant weights into %.1f MB: %s", total, nodes)


def _inside(value: Value) -> Work:
    """Return the work of the sub-graphs of a branch or loop."""
    op = value.op
    if isinstance(op, If):
        # An unknown side may be the larger one.
        sides = [_graph_work(op.then), _graph_work(op.orelse)]
        return max(sides, key=lambda w: math.inf if math.isnan(w.flops) else w.flops)
    if isinstance(op, Scan):
        length = value.inputs[op.carried].tensor.dims[op.axes[0]]
        turns = float(hint_of(length)) if isinstance(length, int) else math.nan
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
            total += Work(0, hint_of(value.op.operations(value)), 0) + _inside(value)
    return total


def _read_bytes(region: Region, value: Value) -> float:
    """Return the bytes of an operand that a step reads: of a table, only the rows looked up."""
    anchor = region.anchor
    if anchor is None or not anchor.op.looks_up:
        return _bytes(value)
    return min(_bytes(value), _bytes(anchor)) if value is anchor.inputs[0] else _bytes(value)


def _part_bytes(region: Region, result: Value) -> float:
    """Return the bytes that a step writes into an operand which it updates in place."""
    anchor = region.anchor
    assert anchor is not None
    if isinstance(result.op, Item):  # a step of decoding: results 1 and 2 take operands 1 and 2
        return _bytes(anchor.inputs[result.op.index])
    return max((_bytes(v) for v in anchor.inputs[1:] if _same_dtype(v, result)), default=0.0)


def _same_dtype(a: Value, b: Value) -> bool:
    return isinstance(a.type, TensorType) and a.dtype == b.dtype


def _bytes(value: Value) -> float:
    known = isinstance(value.type, TensorType) and value.type.is_static
    return float(hint_of(value.tensor.nbytes)) if known else 0.0
