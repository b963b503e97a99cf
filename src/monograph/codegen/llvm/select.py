"""Which kernel computes a region, and what kernels ask of their operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from monograph.codegen.llvm import (
    attention,
    cache_update,
    control,
    det,
    dot_int,
    gather,
    generate,
    images,
    norm,
    recurrent,
    reduce,
    rope,
    scan,
    scatter,
    softmax,
    sort,
)
from monograph.codegen.llvm.dot import dot
from monograph.codegen.llvm.dot_quant import dot_quant
from monograph.codegen.llvm.kernel import Kernel, KernelContext
from monograph.codegen.llvm.pointwise import pointwise
from monograph.ir import Value
from monograph.ops.linear import Dot
from monograph.program.kinds import is_native, is_view, reads_codes
from monograph.program.place import Halo
from monograph.program.region import Region

Generator = Callable[[KernelContext], Kernel]


def generator(region: Region) -> Generator | None:
    """The kernel generator for a region; None where it has to run on the host."""
    if not all(map(is_native, (*region.inputs, *region.body))):
        return None
    if region.anchor is None:
        return pointwise
    if images.serves(region.anchor):
        return images.generator(region.anchor)
    if isinstance(region.anchor.op, Dot):
        return _dot
    return next((g for serves, g in (*_ROWS, *_STRIDED, *_MOVES) if serves(region.anchor)), None)


def _dot(context: KernelContext) -> Kernel:
    """The kernel of a dot, by the form of its weights."""
    anchor = context.step.region.anchor
    assert anchor is not None
    if reads_codes(anchor, 1):
        return dot_quant(context)
    if dot_int.serves(anchor, context.features):
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
    (gather.serves, gather.gather),
    (generate.serves, generate.generated),
    (recurrent.serves, recurrent.recurrent),
    (scatter.serves, scatter.scatter),
    (sort.serves, sort.top_k),
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
        if images.serves(user):
            return images.readable(user, index, operand)
        return not is_view(operand)

    def halo(self, user: Value, index: int) -> Halo | None:
        """Padded convolutions read zeros around their input."""
        return images.halo(user, index)
