"""The elements of a kernel as LLVM registers: single numbers and vectors alike."""

from __future__ import annotations

from collections.abc import Sequence

from monograph.codegen.common import types
from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.scalars import RegisterScalars
from monograph.codegen.llvm.emit.arith import LlvmArith
from monograph.codegen.llvm.emit.builder import Builder
from monograph.codegen.llvm.emit.memory import load_elements, store_elements
from monograph.codegen.llvm.module.features import Features
from monograph.ir import DType
from monograph.ir.dtype import UINT
from monograph.ops.scalar import Scalar


class LlvmScalars(RegisterScalars):
    """Writes elements into the body of a function.

    Operands with and without lanes may be mixed: a single number is spread over the lanes of the
    others.
    """

    def __init__(self, b: Builder, features: Features) -> None:
        b.features = features
        self.b: Builder = b
        self.a: LlvmArith = LlvmArith(b)

    def load(self, dtype: DType, pointer: Reg, lanes: int = 0) -> Scalar:
        """Load an element, or contiguous elements as lanes."""
        return load_elements(self.b, dtype, pointer, lanes)

    def store(self, x: Scalar, pointer: Reg) -> None:
        """Store an element, or lanes as contiguous elements, in the memory form of its type."""
        store_elements(self.b, x.dtype, x, pointer)

    def decode(self, stored: Reg, dtype: DType) -> Scalar:
        """Convert a loaded value from the memory form of its type (see `types.storage`)."""
        return Scalar(types.decode(self.a, dtype, stored), dtype)

    def encode(self, x: Scalar) -> Reg:
        """Convert an element to the memory form of its type."""
        return types.encode(self.a, x.dtype, x.reg)

    def literal(self, number: float | int, dtype: DType, lanes: int) -> Scalar:
        """A number in every lane."""
        reg = self.b.number(number, types.register(dtype), lanes)
        return Scalar(reg, dtype, number)

    def splat(self, x: Scalar, lanes: int) -> Scalar:
        """Return a single number in every lane; a vector unchanged."""
        if x.reg.lanes or not lanes:
            return x
        if x.literal is not None:
            return self.literal(x.literal, x.dtype, lanes)
        return Scalar(self.b.splat(x.reg, lanes), x.dtype)

    def gathered(self, scalars: Sequence[Scalar]) -> Scalar:
        """Single numbers as the lanes of one vector."""
        first = scalars[0]
        whole = Reg("poison", vector(len(scalars), first.reg.type))
        for lane, x in enumerate(scalars):
            whole = self.b.insert(whole, x.reg, lane)
        return Scalar(whole, first.dtype)

    def lane(self, x: Scalar, lane: int) -> Scalar:
        """The number in one lane."""
        if x.literal is not None:
            return self.literal(x.literal, x.dtype, 0)
        return Scalar(self.b.extract(x.reg, lane), x.dtype) if x.reg.lanes else x

    def _same_lanes(self, *scalars: Scalar) -> list[Reg]:
        lanes = max(x.reg.lanes for x in scalars)
        return [self.splat(x, lanes).reg for x in scalars]

    def integer_power(self, x: Scalar, y: Scalar) -> Scalar:
        """x^y by repeated squaring in a loop; a negative power truncates towards zero."""
        base, exponent = self._same_lanes(x, y)
        return Scalar(_power(self.a, base, exponent, x.dtype), x.dtype)


def _power(a: LlvmArith, x: Reg, y: Reg, dtype: DType) -> Reg:
    """x^y by repeated squaring; a negative power truncates towards zero."""

    def step(_: object, carried: list[Reg]) -> list[Reg]:
        result, square, rest = carried
        odd = a.compare("ne", a.op("and", rest, 1), 0)
        return [
            a.select(odd, a.op("mul", result, square), result),
            a.op("mul", square, square),
            a.op("lshr", rest, 1),
        ]

    one = a.number(1, x)
    result, _, _ = a.b.loop(0, int(x.element[1:]), 1, step, [one, x, y])
    if dtype.kind == UINT:
        return result
    odd = a.compare("ne", a.op("and", y, 1), 0)
    alternating = a.select(odd, a.number(-1, x), 1)
    whole = a.select(a.compare("eq", x, -1), alternating, a.number(0, x))
    inverse = a.select(a.compare("eq", x, 1), 1, whole)
    return a.select(a.compare("slt", y, 0), inverse, result)
