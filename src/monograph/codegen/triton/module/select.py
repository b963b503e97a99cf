"""The choice of kernels for a region on a GPU, and the operands that they read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from monograph.codegen.common.registry import KernelEntry
from monograph.codegen.triton.control import subprograms
from monograph.codegen.triton.emit.tile import pointwise
from monograph.codegen.triton.matmul import product
from monograph.codegen.triton.module.kernel import KERNELS, Candidate, Candidates, GpuContext
from monograph.ir import Constant, Graph, Input, Value
from monograph.ir.sizes import is_open
from monograph.ops.attention import CacheUpdate
from monograph.ops.cast import Cast
from monograph.ops.composite import DecodeAttention
from monograph.ops.control import Loop
from monograph.ops.conv import Conv
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.program.dynamic.bounded import BoundedLoop
from monograph.program.fusion.fuse import merge_narrow
from monograph.program.fusion.op_classes import is_native, is_view
from monograph.program.fusion.region import Region
from monograph.program.lowering import GPU_LOWERING, LoweringTarget
from monograph.program.memory.buffer_assignment import product_ends


def family(anchor: Value) -> KernelEntry[Candidates] | None:
    """Return the kernels that compute an op; None where it has to run on the host."""
    return KERNELS.find(anchor)


def serves(region: Region) -> bool:
    """Return True if a region can be computed on the device."""
    if not all(map(is_native, (*region.inputs, *region.body))):
        return False
    return region.anchor is None or _is_empty(region) or family(region.anchor) is not None


def _is_empty(region: Region) -> bool:
    """Return True for a region without results, which needs no kernel.

    A kernel of open sizes has an empty grid where one of them is 0.
    """
    if len(region.outputs) > 1:
        return False
    return any(not is_open(d) and d == 0 for d in region.outputs[0].tensor.static)


def candidates(context: GpuContext) -> list[Candidate]:
    """Return the candidates of a step, the default first."""
    region = context.step.region
    anchor = region.anchor
    kernels = None if anchor is None else family(anchor)
    runs_empty = kernels is not None and kernels.runs_empty
    if _is_empty(region) and not runs_empty:
        return [Candidate("nothing", lambda: ())]
    if anchor is None:
        return pointwise(context)
    assert kernels is not None
    return kernels.make(context)


FEW_TAPS = 32
"""The most elements under a window for which conversion while reading beats a copy.

A 3x3 stem of 3 channels took equally long on an H200, a 7x7 one three times as long as a copy.
"""


def is_coded(value: Value) -> bool:
    """Return True if a value is constants of at most 8 bits, decoded."""
    if not isinstance(value.op, Dequantize) or not value.dtype.is_float:
        return False
    constant = all(isinstance(v.op, Constant) for v in value.inputs)
    return constant and value.inputs[0].dtype.bits <= 8


@dataclass(frozen=True)
class GpuTarget(LoweringTarget):
    """The rules of the GPU's kernels."""

    lowering = GPU_LOWERING
    holds_states = True

    def compiles(self, value: Value) -> bool:
        return subprograms.compiles(value)

    def host_reason(self, region: Region) -> str:
        return subprograms.host_reason(region)

    def readable(self, user: Value, index: int, operand: Value) -> bool:
        kernels = family(user)
        if kernels is None:
            return not is_view(operand)
        return bool(kernels.readable(user, index, operand))

    def computes(self, user: Value, index: int) -> bool:
        """Return True if products decode weights of few bits, or convert the caller's inputs."""
        if not isinstance(user.op, (Conv, Dot)):
            return False
        if product.normalises(user, index):
            return True
        operand = user.inputs[index]
        while is_view(operand):
            operand = operand.inputs[0]
        if index == 1:
            return isinstance(user.op, Dot) and is_coded(operand)
        if isinstance(user.op, Conv) and math.prod(user.inputs[1].tensor.static[1:]) > FEW_TAPS:
            return False
        source = operand.inputs[0] if isinstance(operand.op, Cast) else operand
        while is_view(source):
            source = source.inputs[0]
        return source is not operand and isinstance(source.op, Input) and user.dtype.is_float

    def gathers(self, anchor: Value, starts: tuple[int, ...], width: int) -> bool:
        """Return True if products of few rows hold the column blocks that their epilogue reads."""
        return product.gathers(anchor, starts, width)

    def merged(self, graph: Graph, regions: list[Region]) -> list[Region]:
        """Fuse a product of one column into the product before it."""
        return merge_narrow(graph, regions)

    def ends(self, graph: Graph) -> frozenset[Value]:
        """Return the outputs that products store in any order."""
        return product_ends(graph)

    def overwrites(self, region: Region) -> bool:
        """Return True for loops over elements, updates of own rows only, and state."""
        anchor = region.anchor
        if anchor is not None and isinstance(anchor.op, (Loop, BoundedLoop)):
            return serves(region)
        return anchor is None or isinstance(anchor.op, (CacheUpdate, DecodeAttention))
