"""The problem that a step is: what a measurement of its rivals is kept under."""

from __future__ import annotations

import hashlib

from monograph.ir import Value
from monograph.program.memory.buffer_assignment import CONSTANT
from monograph.program.program import Program, Step


def key(program: Program, step: Step) -> str:
    """Equal for steps whose kernels would be equal: ops, types, strides, what is constant."""
    numbers: dict[Value, int] = {}
    lines = []
    for value in (*step.region.inputs, *step.region.body):
        numbers[value] = len(numbers)
        operands = ",".join(str(numbers.get(v, "-")) for v in value.inputs)
        lines.append(f"{value.op!r}({operands}):{value.type}" if operands else str(value.type))
        place = program.places.storage.get(value)
        if place is not None:
            constant = place.buffer.kind == CONSTANT
            aligned = place.offset * value.dtype.itemsize % 16 == 0
            lines.append(f"{place.strides} {constant} {aligned}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:24]


def label(step: Step) -> str:
    """The problem in words, for people who read the cache."""
    region = step.region
    anchor = region.anchor
    if anchor is None:
        return f"pointwise -> {region.root.type}"
    operands = ", ".join(str(v.type) for v in anchor.inputs)
    rest = f" + {len(region.epilogue)} more" if region.epilogue else ""
    return f"{anchor.op.name}({operands}) -> {region.root.type}{rest}"
