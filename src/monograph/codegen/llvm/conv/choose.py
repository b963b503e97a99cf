"""The choice among the kernels of a convolution, and the operands that they read."""

from __future__ import annotations

from collections.abc import Callable

from monograph.codegen.llvm.conv import depthwise, direct, direct_variants, general, int8, winograd
from monograph.codegen.llvm.image import planes
from monograph.codegen.llvm.image.windows import STRIDED
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, kernel_for
from monograph.ir import Constant, Input, Value
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.shape import Slice
from monograph.program.fusion.op_classes import is_native, is_view
from monograph.program.memory.buffer_assignment import Halo


def _conv_3x3(context: KernelContext) -> Kernel:
    """Generate Winograd's convolution where it is estimated to be faster, else the direct one."""
    value = context.anchor
    fast = context.winograd and winograd.pays(value, context.features, context.threads)
    return winograd.winograd(context) if fast else direct.conv(context)


_KERNELS: tuple[tuple[Callable[[Value], bool], Callable[[KernelContext], Kernel]], ...] = (
    (planes.serves, planes.planes),
    (depthwise.serves, depthwise.depthwise),
    (winograd.serves, _conv_3x3),
    (direct_variants.serves_edges, direct_variants.conv_edges),
    (direct.serves, direct.conv),
    (direct_variants.serves_groups, direct_variants.conv_grouped),
    (int8.serves_depthwise, int8.conv_int_depthwise),
    (int8.serves, int8.conv_int),
    (general.serves, general.window_conv),
)
"""Kernels, the fastest first."""


def halo(user: Value, index: int) -> Halo | None:
    """Return the zeros that a kernel expects around an operand."""
    if index or not isinstance(user.op, Conv) or not all(map(is_native, (user, *user.inputs))):
        return None
    padded = (direct.serves, direct_variants.serves_groups, int8.serves, depthwise.serves)
    if not any(reads(user) for reads in padded):
        return None
    if direct_variants.serves_edges(user):
        return None
    ends = user.op.pads_end
    if winograd.serves(user):
        ends = tuple(map(int.__add__, ends, winograd.halo_end(user)))
    pads = tuple(zip(user.op.pads_begin, ends, strict=True))
    return ((0, 0), *pads, (0, 0)) if any(map(any, pads)) else None


def readable(user: Value, index: int, operand: Value) -> bool:
    """Return True if the kernel reads an operand through its views and from its buffer."""
    padded = halo(user, index) is not None
    while is_view(operand):
        if not isinstance(operand.op, STRIDED) or (padded and not _keeps_edges(operand)):
            return False
        operand = operand.inputs[0]
    return not (padded and isinstance(operand.op, (Input, Constant)))


def _keeps_edges(view: Value) -> bool:
    """Return True if a view keeps the spatial edges: it takes some channels, or some images."""
    if not isinstance(view.op, Slice):
        return False
    spatial = slice(1, -1)
    whole = view.inputs[0].tensor.dims[spatial] == view.tensor.dims[spatial]
    return whole and all(step == 1 for step in view.op.steps[spatial])


for _fits, _make in _KERNELS:
    kernel_for(Conv, ConvTranspose, when=_fits, readable=readable)(_make)
