"""Kernels that fail a run: a branch that contradicts its types, and conditions on sizes."""

from __future__ import annotations

from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import LlvmElements, Point
from monograph.codegen.llvm.emit.map_kernel import elements_of, emit_each
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmFault,
    kernel_for,
    report,
)
from monograph.ir import DType, Value, known
from monograph.ops.control import Fail
from monograph.ops.require import Require
from monograph.ops.scalar import Scalar
from monograph.program.fusion.access import Indices
from monograph.program.index import Index, flatten


@kernel_for(Fail)
def failing(context: KernelContext) -> Kernel:
    """Report that the branch was taken; return zeros for its results."""
    region = context.step.region
    anchor = region.anchor
    assert anchor is not None
    assert isinstance(anchor.op, Fail)
    for value in (*region.inputs, *region.outputs):
        context.argument(value)
    fault = context.argument(LlvmFault(anchor.op.reason, shows_data=False))
    b = context.builder(len(context.arguments))
    report(b, fault, Reg("true", "i1"), Reg("0", "i64"))
    emit_each(context, elements_of(context, b), partial(_Zeros, anchor.dtype), vectors=False)
    return context.finish(b)


@kernel_for(Require)
def require(context: KernelContext) -> Kernel:
    """Pass a value on, and report sizes that do not agree."""
    region = context.step.region
    anchor = region.anchor
    assert anchor is not None
    assert isinstance(anchor.op, Require)
    x, expected, given = anchor.inputs
    for value in (*region.inputs, *region.outputs):
        context.argument(value)
    sizes = known(expected)
    shown = "" if sizes is None else str(sizes.tolist())
    fault = context.argument(LlvmFault(anchor.op.rule, shown))
    b = context.builder(len(context.arguments))
    elements = elements_of(context, b)
    if expected.tensor.shape != given.tensor.shape:
        report(b, fault, Reg("true", "i1"), Reg(str(given.tensor.size), "i64"))
    else:
        _compare(elements, expected, given, fault)
    emit_each(context, elements, partial(_Same, x), vectors=True)
    return context.finish(b)


def _compare(elements: LlvmElements, expected: Value, given: Value, fault: int) -> None:
    """Report a size that differs from the expected one."""
    b, a = elements.b, elements.scalars.a
    how = "sext" if given.dtype.is_signed else "zext"

    def element(value: Value, i: Int) -> Reg:
        place = elements.storage[value]
        at = b.add(place.offset, b.mul(i, place.strides[0] if place.strides else 0))
        pointer = b.offset(elements.pointers[value], b.mul(at, value.dtype.itemsize))
        return a.convert(how, elements.scalars.load(value.dtype, pointer).reg, "i64")

    def one(i: Int, _: list[Reg]) -> None:
        wanted, found = element(expected, i), element(given, i)
        report(b, fault, b.compare("ne", wanted, found), found)

    b.loop(0, given.tensor.size, 1, one)


class _Same:
    """The elements of a value, unchanged."""

    def __init__(self, x: Value, elements: LlvmElements, at: Indices) -> None:
        self.e, self.x, self.at = elements, x, at

    def positions(self) -> list[Index]:
        return [flatten(self.at, self.e.storage[self.x].strides)]

    def enter(self, point: Point) -> None:
        """Do nothing: rows need no preparation."""

    def element(self, point: Point) -> Scalar:
        return self.e.load(self.x, self.at, point)


class _Zeros:
    """0 everywhere."""

    def __init__(self, dtype: DType, elements: LlvmElements, at: Indices) -> None:
        self.zero = elements.scalars.constant(0, dtype)

    def positions(self) -> list[Index]:
        return []

    def enter(self, point: Point) -> None:
        """Do nothing: rows need no preparation."""

    def element(self, point: Point) -> Scalar:
        return self.zero
