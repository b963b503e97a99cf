"""Which kernels can compute a region on a GPU, and what they ask of their operands."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from monograph.codegen.triton import (
    attention,
    conv,
    dot,
    gather,
    norm,
    pool,
    reduce,
    rope,
    scan,
    softmax,
)
from monograph.codegen.triton.kernel import Candidate, GpuContext
from monograph.codegen.triton.pointwise import pointwise
from monograph.ir import Value
from monograph.program.kinds import is_native, is_view
from monograph.program.place import Halo
from monograph.program.region import Region

FAMILIES: tuple[ModuleType, ...] = (
    dot,
    conv,
    attention,
    rope,
    pool,
    gather,
    reduce,
    softmax,
    norm,
    scan,
)
"""Modules of kernels, each with

    serves(anchor) -> bool                       whether its kernels compute an op
    candidates(context) -> list[Candidate]       the ways to do it, the default first
    readable(user, index, operand) -> bool       whether they read an operand through its views
"""


def family(anchor: Value) -> ModuleType | None:
    """The kernels that compute an op; None where it has to run on the host."""
    return next((f for f in FAMILIES if f.serves(anchor)), None)


def serves(region: Region) -> bool:
    """Whether a region can be computed on the device."""
    if not all(map(is_native, (*region.inputs, *region.body))):
        return False
    return region.anchor is None or family(region.anchor) is not None


def candidates(context: GpuContext) -> list[Candidate]:
    """The ways to compute a step, the default first."""
    anchor = context.step.region.anchor
    if 0 in context.step.region.outputs[0].tensor.static and len(context.step.region.outputs) == 1:
        return [Candidate("nothing", lambda: ())]
    if anchor is None:
        return pointwise(context)
    kernels = family(anchor)
    assert kernels is not None
    found: list[Candidate] = kernels.candidates(context)
    return found


@dataclass(frozen=True)
class GpuTarget:
    """What the GPU's kernels say of their operands while values are placed."""

    def readable(self, user: Value, index: int, operand: Value) -> bool:
        kernels = family(user)
        if kernels is None:
            return not is_view(operand)
        return bool(kernels.readable(user, index, operand))

    def halo(self, user: Value, index: int) -> Halo | None:
        """None: windows are masked at the edges instead."""
        return None
