"""How much work a step is: the floors that operations and bytes set."""

from __future__ import annotations

import math

from monograph.ir import TensorType, Value
from monograph.ops.conv import Conv
from monograph.ops.linear import Dot
from monograph.program.program import Program, Step
from monograph.program.recurrence import Recurrence
from monograph.rewrite import Work


def step_work(step: Step) -> Work:
    """One launch; the multiply-adds of its anchor, an operation an element of the rest; bytes."""
    region = step.region
    moved = sum(_bytes(v) for v in (*region.inputs, *region.outputs))
    flops = sum(_flops(v) for v in region.body)
    return Work(1, flops, moved)


def program_work(program: Program) -> Work:
    """What all steps do together."""
    return sum(map(step_work, program.steps), Work(0, 0, 0))


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
        return 2.0 * size * value.inputs[0].tensor.static[-1]
    if isinstance(value.op, Conv):
        return 2.0 * size * math.prod(value.inputs[1].tensor.static[1:])
    return size
