"""Which kernel serves an op on images (convolutions, pools, resizing), and what it asks for."""

from __future__ import annotations

from collections.abc import Callable

from monograph.codegen.llvm.conv import (
    depthwise,
    direct,
    edges,
    general,
    grouped,
    int8,
    int8_depthwise,
    winograd,
)
from monograph.codegen.llvm.image import grid_sample, pool, resize, roi_pool, unpool
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext
from monograph.ir import Constant, Input, Value
from monograph.ops.conv import Conv
from monograph.ops.shape import Broadcast, Slice, Squeeze, Transpose, Unsqueeze
from monograph.program.fusion.op_classes import is_native, is_view
from monograph.program.memory.buffer_assignment import Halo

STRIDED = (Broadcast, Slice, Squeeze, Transpose, Unsqueeze)
"""Views that strides can always describe."""


def _conv_3x3(context: KernelContext) -> Kernel:
    """Winograd's convolution where it is estimated to be faster, else the direct one."""
    value = context.step.region.anchor
    assert value is not None
    fast = context.winograd and winograd.pays(value, context.features, context.threads)
    return winograd.winograd(context) if fast else direct.conv(context)


TABLE: tuple[tuple[Callable[[Value], bool], Callable[[KernelContext], Kernel]], ...] = (
    (depthwise.serves, depthwise.depthwise),
    (winograd.serves, _conv_3x3),
    (edges.serves, edges.conv_edges),
    (direct.serves, direct.conv),
    (grouped.serves, grouped.conv_grouped),
    (int8_depthwise.serves, int8_depthwise.conv_int_depthwise),
    (int8.serves, int8.conv_int),
    (general.serves, general.window_conv),
    (pool.serves, pool.pool),
    (resize.serves, resize.resize),
    (grid_sample.serves, grid_sample.sampling),
    (roi_pool.serves, roi_pool.regions),
    (unpool.serves, unpool.unpool),
)
"""Kernels, the fastest first."""


def serves(value: Value) -> bool:
    """Whether some kernel here computes a value."""
    if not all(map(is_native, (value, *value.inputs))):
        return False
    return any(fits(value) for fits, _ in TABLE)


def generator(value: Value) -> Callable[[KernelContext], Kernel]:
    """The kernel generator of a value that is served here."""
    return next(make for fits, make in TABLE if fits(value))


def halo(user: Value, index: int) -> Halo | None:
    """The zeros that a kernel expects around an operand."""
    padded = (direct.serves, grouped.serves, int8.serves, depthwise.serves)
    if index or not serves(user) or not any(reads(user) for reads in padded):
        return None
    assert isinstance(user.op, Conv)
    if edges.serves(user):
        return None
    ends = user.op.pads_end
    if winograd.serves(user):
        ends = tuple(map(int.__add__, ends, winograd.halo_end(user)))
    pads = tuple(zip(user.op.pads_begin, ends, strict=True))
    return ((0, 0), *pads, (0, 0)) if any(map(any, pads)) else None


def readable(user: Value, index: int, operand: Value) -> bool:
    """Whether a kernel can read an operand where and as it is."""
    padded = halo(user, index) is not None
    while is_view(operand):
        if not isinstance(operand.op, STRIDED) or (padded and not _keeps_edges(operand)):
            return False
        operand = operand.inputs[0]
    return not (padded and isinstance(operand.op, (Input, Constant)))


def _keeps_edges(view: Value) -> bool:
    """Whether a view has the same spatial edges as what it is of: some channels, or some images."""
    if not isinstance(view.op, Slice):
        return False
    spatial = slice(1, -1)
    whole = view.inputs[0].tensor.dims[spatial] == view.tensor.dims[spatial]
    return whole and all(step == 1 for step in view.op.steps[spatial])
