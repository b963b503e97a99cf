"""Which kernel computes a region, and what kernels ask of their operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from monograph.codegen.llvm.attention import attention, cache_update, rope
from monograph.codegen.llvm.control import control, fail
from monograph.codegen.llvm.emit.pointwise import pointwise
from monograph.codegen.llvm.indexing import gather, index_kernels, pad, scatter
from monograph.codegen.llvm.matmul import dot_int
from monograph.codegen.llvm.matmul.dot import dot
from monograph.codegen.llvm.matmul.dot_quant import dot_quant
from monograph.codegen.llvm.misc import det, ngrams
from monograph.codegen.llvm.module import select_image
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext
from monograph.codegen.llvm.recurrent import recurrent
from monograph.codegen.llvm.rows import norm, reduce, scan, softmax
from monograph.codegen.llvm.sorting import nms, nonzero, topk, unique
from monograph.ir import Value
from monograph.ops.control import Loop
from monograph.ops.conv import Conv
from monograph.ops.index import GatherElements, GatherNd, ScatterElements, ScatterNd
from monograph.ops.linear import Dot
from monograph.program.dynamic.bounded import BoundedLoop
from monograph.program.fusion.op_classes import is_native, is_view, reads_codes
from monograph.program.fusion.region import Region
from monograph.program.memory.buffer_assignment import Halo

Generator = Callable[[KernelContext], Kernel]


def generator(region: Region) -> Generator | None:
    """The kernel generator for a region; None where it has to run on the host."""
    if not all(map(is_native, (*region.inputs, *region.body))):
        return None
    if region.anchor is None:
        return pointwise
    if select_image.serves(region.anchor):
        return select_image.generator(region.anchor)
    if isinstance(region.anchor.op, Dot):
        return _dot
    found = (g for serves, g in (*_ROWS, *_STRIDED, *_MOVES) if serves(region.anchor))
    return next(found, nothing if _is_empty(region) else None)


def compiles(value: Value) -> bool:
    """Whether a branch or a loop is compiled as it is: sizes known, and all inside too."""
    return all(map(is_native, (value, *value.inputs))) and control.serves(value)


def nothing(context: KernelContext) -> Kernel:
    """A kernel for results without elements."""
    return context.finish(context.builder(0))


def _is_empty(region: Region) -> bool:
    """Whether there is nothing to compute, and nothing to complain about."""
    assert region.anchor is not None
    indexed = (GatherElements, GatherNd, ScatterElements, ScatterNd)
    return all(0 in v.tensor.static for v in region.outputs) and not isinstance(
        region.anchor.op, indexed
    )


def _dot(context: KernelContext) -> Kernel:
    """The kernel of a dot, by the form of its weights."""
    anchor = context.step.region.anchor
    assert anchor is not None
    if 0 in anchor.tensor.static:
        return nothing(context)
    if reads_codes(anchor, 1):
        return dot_quant(context)
    if dot_int.serves(anchor):
        return dot_int.dot_int(context)
    return dot(context)


_ROWS: tuple[tuple[Callable[[Value], bool], Generator], ...] = (
    (reduce.serves, reduce.reduction),
    (softmax.serves, softmax.softmax),
    (norm.serves, norm.norm),
    (scan.serves, scan.scan),
)
"""Kernels that read all of their operands through views, and compute the first on the way."""
_STRIDED: tuple[tuple[Callable[[Value], bool], Generator], ...] = (
    (attention.serves, attention.attention),
    (rope.serves, rope.rope),
    (cache_update.serves, cache_update.cache_update),
)
"""Kernels that step through operands, views too where strides describe them."""
_MOVES: tuple[tuple[Callable[[Value], bool], Generator], ...] = (
    (control.serves, control.control),
    (det.serves, det.det),
    (fail.serves, fail.failing),
    (fail.serves_condition, fail.require),
    (gather.serves, gather.gather),
    (pad.serves, pad.pad),
    (index_kernels.serves, index_kernels.generated),
    (ngrams.serves, ngrams.ngrams),
    (nonzero.serves, nonzero.nonzero),
    (recurrent.serves, recurrent.recurrent),
    (scatter.serves, scatter.scatter),
    (topk.serves, topk.top_k),
    (nms.serves, nms.suppress),
    (unique.serves, unique.unique),
)
"""Kernels that move elements to and from places that are data, and other work of their own."""


@dataclass(frozen=True)
class CpuTarget:
    """What the CPU's kernels say of their operands while values are placed."""

    def readable(self, user: Value, index: int, operand: Value) -> bool:
        if reads_codes(user, index):
            return True
        if any(serves(user) for serves, _ in _ROWS):
            return True
        if isinstance(user.op, Dot) or any(serves(user) for serves, _ in _STRIDED):
            return attention.readable(operand)
        if select_image.serves(user):
            return select_image.readable(user, index, operand)
        return not is_view(operand)

    def halo(self, user: Value, index: int) -> Halo | None:
        """Padded convolutions read zeros around their input."""
        return select_image.halo(user, index)

    def overwrites(self, region: Region) -> bool:
        """Loops over elements, updates, state, tiles of dots and convolutions, which are apart."""
        if generator(region) is None:
            return False
        if region.anchor is None or region.anchor.op.updates_first:
            return True
        return isinstance(region.anchor.op, (Conv, Dot, Loop, BoundedLoop))
