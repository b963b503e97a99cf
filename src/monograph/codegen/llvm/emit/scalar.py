"""Arithmetic, loads and stores of elements as LLVM instructions, for numbers and vectors alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monograph.codegen.common import types
from monograph.codegen.common.registers import Arith, Operand, Reg, vector
from monograph.codegen.common.scalars import RegisterScalars
from monograph.codegen.common.types import decode, encode, storage
from monograph.codegen.llvm.emit.builder import Builder
from monograph.codegen.llvm.module.features import Features
from monograph.ir import DType
from monograph.ir.dtype import UINT
from monograph.ops.scalar import Scalar


class LlvmArith(Arith):
    """Writes instructions whose operands and results have one number of lanes."""

    calls_by_lane = True

    def __init__(self, b: Builder) -> None:
        super().__init__(b)
        self.b: Builder = b

    def op(self, name: str, x: Reg, y: Operand) -> Reg:
        """An instruction of two operands of one type."""
        return self.b.set(x.type, f"{name} {x.type} {x}, {self.operand(y, x)}")

    def select(self, condition: Reg, x: Operand, y: Operand) -> Reg:
        """x where the condition holds, else y; one of them is a register."""
        like = x if isinstance(x, Reg) else y
        assert isinstance(like, Reg)
        a, b = self.operand(x, like), self.operand(y, like)
        text = f"select {condition.type} {condition}, {a.type} {a}, {b.type} {b}"
        return self.b.set(like.type, text)

    def convert(self, how: str, x: Reg, element: str) -> Reg:
        """Convert a register (sext, fptrunc, ...); return it unchanged if it has that type."""
        if x.element == element:
            return x
        to = vector(x.lanes, element)
        return self.b.set(to, f"{how} {x.type} {x} to {to}")

    def neg(self, x: Reg) -> Reg:
        return self.b.set(x.type, f"fneg {x.type} {x}")

    def any(self, condition: Reg) -> Reg:
        """Return True if a condition holds in any lane."""
        if not condition.lanes:
            return condition
        return self.b.call(f"llvm.vector.reduce.or.v{condition.lanes}i1", "i1", condition)

    def each_lane(self, function: Callable[..., Reg], *operands: Reg) -> Reg:
        """A function of single numbers, applied lane by lane; it keeps the type."""
        first = operands[0]
        if not first.lanes:
            return function(*operands)
        result = Reg("poison", first.type)
        for lane in range(first.lanes):
            one = function(*(self.b.extract(x, lane) for x in operands))
            result = self.b.insert(result, one, lane)
        return result

    def unless(self, rare: Reg, usual: Reg, otherwise: Callable[[], Reg]) -> Reg:
        """Return a value, or its replacement on the path for a rare condition."""
        b = self.b
        before, path, done = b.block, b.new_label("rare"), b.new_label("usual")
        b.branch(rare, path, done)
        b.label(path)
        other = otherwise()
        last = b.block
        b.jump(done)
        b.label(done)
        return b.set(usual.type, f"phi {usual.type} [ {usual}, %{before} ], [ {other}, %{last} ]")


def load_elements(b: Builder, dtype: DType, pointer: Reg, lanes: int = 0) -> Scalar:
    """An element of a type in memory, or adjacent elements as lanes."""
    stored = b.load(vector(lanes, storage(dtype)), pointer, dtype.itemsize)
    return Scalar(decode(LlvmArith(b), dtype, stored), dtype)


def store_elements(b: Builder, dtype: DType, x: Scalar, pointer: Reg) -> None:
    """Stores an element, or lanes as adjacent elements, in the form of its type."""
    b.store(encode(LlvmArith(b), dtype, x.reg), pointer, dtype.itemsize)


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
