"""How much work a step is: the floors that operations and bytes set."""

from __future__ import annotations

import math

from monograph.ir import TensorType, Value
from monograph.ops.conv import Conv
from monograph.ops.index import Gather, GatherElements, GatherNd
from monograph.ops.linear import Dot
from monograph.program.program import Program, Step
from monograph.program.recurrence import Recurrence
from monograph.program.region import Region
from monograph.rewrite import Work


def step_work(step: Step) -> Work:
    """One launch; the multiply-adds of its anchor, an operation an element of the rest; bytes."""
    region = step.region
    moved = sum(_read_bytes(region, v) for v in region.inputs)
    moved += sum(_bytes(v) for v in region.outputs)
    flops = sum(_flops(v) for v in region.body)
    return Work(1, flops, moved)


def program_work(program: Program) -> Work:
    """What all steps do together."""
    return sum(map(step_work, program.steps), Work(0, 0, 0))


def _read_bytes(region: Region, value: Value) -> float:
    """The bytes of an operand that a step reads: of a table, only what is looked up."""
    anchor = region.anchor
    if anchor is None or not isinstance(anchor.op, (Gather, GatherElements, GatherNd)):
        return _bytes(value)
    return min(_bytes(value), _bytes(anchor)) if value is anchor.inputs[0] else _bytes(value)


def _bytes(value: Value) -> float:
    known = isinstance(value.type, TensorType) and value.type.is_static
    return float(value.tensor.nbytes) if known else 0.0


def _flops(value: Value) -> float:
    if isinstance(value.op, Recurrence):
        return value.op.flops(value.inputs[1].tensor.static[1])
    if not isinstance(value.type, TensorType) or not value.type.is_static:
        return 0.0
    size = float(value.type.size)
    if isinstance(value.op, Dot):
        return 2.0 * size * value.inputs[0].tensor.static[-1] / _together(value)
    if isinstance(value.op, Conv):
        return 2.0 * size * math.prod(value.inputs[1].tensor.static[1:]) / _together(value)
    return size


def _together(layer: Value) -> int:
    """How many products are done in the time of one of floats: bytes go four at a time."""
    operands = [v.dtype for v in layer.inputs]
    return 4 if all(d.is_integer and d.bits <= 8 for d in operands) else 1
