"""The elements of a kernel: their arithmetic on registers, and the walk over a fused expression."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from monograph.codegen.common import mathlib, registers, types
from monograph.codegen.common.registers import Arith, Emitter, Reg
from monograph.ir import DType, Value
from monograph.ir.dtype import UINT, boolean
from monograph.ops.cast import UP
from monograph.ops.scalar import Indexed, Scalar, ScalarBuilder
from monograph.program.fusion.op_classes import is_view
from monograph.program.fusion.region import Element, Indices, Resolved, resolve
from monograph.program.index import Index, flatten, strides_of


class RegisterScalars(ScalarBuilder):
    """Writes the scalar lowering of ops as instructions on registers.

    A code generator defines literals, the common number of lanes of operands, and integer powers.
    """

    b: Emitter
    a: Arith

    def literal(self, number: float | int, dtype: DType, lanes: int) -> Scalar:
        """A number in every lane."""
        raise NotImplementedError

    def _same_lanes(self, *scalars: Scalar) -> list[Reg]:
        """The registers of scalars, each with the largest number of lanes among them."""
        raise NotImplementedError

    def integer_power(self, x: Scalar, y: Scalar) -> Scalar:
        """x^y of integers; a negative power truncates towards zero."""
        raise NotImplementedError

    def constant(self, number: float | int, dtype: DType) -> Scalar:
        return self.literal(number, dtype, 0)

    # Arithmetic

    def _binary(self, of_floats: str, of_integers: str, x: Scalar, y: Scalar) -> Scalar:
        p, q = self._same_lanes(x, y)
        return Scalar(self.a.op(of_floats if x.dtype.is_float else of_integers, p, q), x.dtype)

    def add(self, x: Scalar, y: Scalar) -> Scalar:
        return self._binary("fadd", "add", x, y)

    def sub(self, x: Scalar, y: Scalar) -> Scalar:
        return self._binary("fsub", "sub", x, y)

    def mul(self, x: Scalar, y: Scalar) -> Scalar:
        return self._binary("fmul", "mul", x, y)

    def div(self, x: Scalar, y: Scalar) -> Scalar:
        p, q = self._same_lanes(x, y)
        if x.dtype.is_float:
            return Scalar(self.a.div(p, q), x.dtype)
        return Scalar(registers.quotient(self.a, p, q, x.dtype, y.literal), x.dtype)

    def mod(self, x: Scalar, y: Scalar, truncated: bool = False) -> Scalar:
        p, q = self._same_lanes(x, y)
        if not x.dtype.is_float:
            whole = registers.quotient(self.a, p, q, x.dtype, y.literal)
            return Scalar(registers.remainder(self.a, p, q, whole, x.dtype, truncated), x.dtype)
        rest = self.a.each_lane(lambda s, t: self.a.op("frem", s, t), p, q)
        return Scalar(rest if truncated else mathlib.floored(self.a, rest, q), x.dtype)

    def pow(self, x: Scalar, y: Scalar) -> Scalar:
        if not x.dtype.is_float:
            return self.integer_power(x, y)
        if y.literal in (1, 2, 3):
            result = x
            for _ in range(int(y.literal) - 1):
                result = self.mul(result, x)
            return result
        p, q = self._same_lanes(x, y)
        return Scalar(mathlib.power(self.a, p, q), x.dtype)

    def min(self, x: Scalar, y: Scalar) -> Scalar:
        return self._extreme("min", "olt", x, y)

    def max(self, x: Scalar, y: Scalar) -> Scalar:
        return self._extreme("max", "ogt", x, y)

    def _extreme(self, name: str, how: str, x: Scalar, y: Scalar) -> Scalar:
        if x.literal is not None:
            x, y = y, x
        p, q = self._same_lanes(x, y)
        if not x.dtype.is_float:
            sign = "u" if x.dtype.kind == UINT else "s"
            return Scalar(self.b.intrinsic(sign + name, p, q), x.dtype)
        # If the comparison fails, the second operand is taken: NaN if it is NaN.
        if y.literal is not None and not math.isnan(y.literal):
            return Scalar(self.a.select(self.a.compare(how, q, p), q, p), x.dtype)
        chosen = self.a.select(self.a.compare(how, p, q), p, q)
        return Scalar(self.a.select(self.a.compare("uno", p, p), p, chosen), x.dtype)

    def fma(self, x: Scalar, y: Scalar, z: Scalar) -> Scalar:
        if not x.dtype.is_float:
            return self.add(self.mul(x, y), z)
        return Scalar(self.a.fma(*self._same_lanes(x, y, z)), x.dtype)

    def neg(self, x: Scalar) -> Scalar:
        if x.dtype.is_float:
            return Scalar(self.a.neg(x.reg), x.dtype)
        return Scalar(registers.negated(self.a, x.reg), x.dtype)

    def abs(self, x: Scalar) -> Scalar:
        if x.dtype.kind == UINT:
            return x
        if x.dtype.is_float:
            return Scalar(self.a.abs(x.reg), x.dtype)
        return Scalar(self.b.intrinsic("abs", x.reg, Reg("false", "i1")), x.dtype)

    def sign(self, x: Scalar) -> Scalar:
        a, less, more = self.a, "slt", "sgt"
        if x.dtype.kind == UINT:
            return Scalar(a.convert("zext", a.compare("ne", x.reg, 0), x.reg.element), x.dtype)
        rest = x.reg
        if x.dtype.is_float:
            less, more = "olt", "ogt"
            rest = a.add(x.reg, 0.0)  # -0 becomes 0, and NaN stays
        below = a.select(a.compare(less, x.reg, 0), a.number(-1, x.reg), rest)
        return Scalar(a.select(a.compare(more, x.reg, 0), 1, below), x.dtype)

    # Functions of floats

    def _intrinsic(self, name: str, x: Scalar) -> Scalar:
        return Scalar(self.b.intrinsic(name, x.reg), x.dtype)

    def sqrt(self, x: Scalar) -> Scalar:
        return self._intrinsic("sqrt", x)

    def floor(self, x: Scalar) -> Scalar:
        return self._intrinsic("floor", x)

    def ceil(self, x: Scalar) -> Scalar:
        return self._intrinsic("ceil", x)

    def round(self, x: Scalar) -> Scalar:
        return self._intrinsic("rint", x)

    def _function(self, name: str, x: Scalar) -> Scalar:
        return Scalar(mathlib.function(self.a, name, x.reg), x.dtype)

    def exp(self, x: Scalar) -> Scalar:
        return self._function("exp", x)

    def log(self, x: Scalar) -> Scalar:
        return self._function("log", x)

    def sin(self, x: Scalar) -> Scalar:
        return self._function("sin", x)

    def cos(self, x: Scalar) -> Scalar:
        return self._function("cos", x)

    def tan(self, x: Scalar) -> Scalar:
        return self._function("tan", x)

    def asin(self, x: Scalar) -> Scalar:
        return self._function("asin", x)

    def acos(self, x: Scalar) -> Scalar:
        return self._function("acos", x)

    def atan(self, x: Scalar) -> Scalar:
        return self._function("atan", x)

    def sinh(self, x: Scalar) -> Scalar:
        return self._function("sinh", x)

    def cosh(self, x: Scalar) -> Scalar:
        return self._function("cosh", x)

    def tanh(self, x: Scalar) -> Scalar:
        return self._function("tanh", x)

    def asinh(self, x: Scalar) -> Scalar:
        return self._function("asinh", x)

    def acosh(self, x: Scalar) -> Scalar:
        return self._function("acosh", x)

    def atanh(self, x: Scalar) -> Scalar:
        return self._function("atanh", x)

    def erf(self, x: Scalar) -> Scalar:
        return self._function("erf", x)

    def normal(self, x: Scalar) -> Scalar:
        return self._function("normal", x)

    def sigmoid(self, x: Scalar) -> Scalar:
        return self._function("sigmoid", x)

    # Questions

    def is_nan(self, x: Scalar) -> Scalar:
        return Scalar(self.a.compare("uno", x.reg, x.reg), boolean)

    def is_inf(self, x: Scalar, positive: bool = True, negative: bool = True) -> Scalar:
        if positive and negative:
            return Scalar(self.a.compare("oeq", self.a.abs(x.reg), math.inf), boolean)
        if not positive and not negative:
            return self.literal(0, boolean, x.reg.lanes)
        sought = math.inf if positive else -math.inf
        return Scalar(self.a.compare("oeq", x.reg, sought), boolean)

    def _compared(self, how: str, x: Scalar, y: Scalar) -> Scalar:
        """A comparison by its name for floats, without the "o" for integers."""
        p, q = self._same_lanes(x, y)
        if not x.dtype.is_float:
            order = "" if how == "oeq" else "s" if x.dtype.is_signed else "u"
            how = order + how[1:]
        return Scalar(self.a.compare(how, p, q), boolean)

    def equal(self, x: Scalar, y: Scalar) -> Scalar:
        return self._compared("oeq", x, y)

    def less(self, x: Scalar, y: Scalar) -> Scalar:
        return self._compared("olt", x, y)

    def less_equal(self, x: Scalar, y: Scalar) -> Scalar:
        return self._compared("ole", x, y)

    # Bits

    def and_(self, x: Scalar, y: Scalar) -> Scalar:
        return self._binary("", "and", x, y)

    def or_(self, x: Scalar, y: Scalar) -> Scalar:
        return self._binary("", "or", x, y)

    def xor(self, x: Scalar, y: Scalar) -> Scalar:
        return self._binary("", "xor", x, y)

    def not_(self, x: Scalar) -> Scalar:
        return self.xor(x, self.constant(1 if x.dtype == boolean else -1, x.dtype))

    def shift_left(self, x: Scalar, y: Scalar) -> Scalar:
        p, q = self._same_lanes(x, y)
        return Scalar(registers.shifted(self.a, "shl", p, q), x.dtype)

    def shift_right(self, x: Scalar, y: Scalar) -> Scalar:
        p, q = self._same_lanes(x, y)
        how = "ashr" if x.dtype.is_signed else "lshr"
        return Scalar(registers.shifted(self.a, how, p, q), x.dtype)

    # Choice and conversion

    def select(self, condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
        c, p, q = self._same_lanes(condition, x, y)
        return Scalar(self.a.select(c, p, q), x.dtype)

    def cast(self, x: Scalar, to: DType, saturate: bool = True, rounding: str = UP) -> Scalar:
        if x.dtype == to:
            return x
        reg = types.convert(self.a, x.reg, x.dtype, to, saturate, rounding)
        return Scalar(reg, to)

    def bitcast(self, x: Scalar, to: DType) -> Scalar:
        return Scalar(types.bitcast(self.a, x.reg, x.dtype, to), to)


P = TypeVar("P")
"""The position in a generator's loops, from which it computes addresses."""


class Walk(Generic[P]):
    """Emits elements of a region's values, operands first, each once."""

    scalars: ScalarBuilder
    inputs: frozenset[Value]
    given: dict[Value, Scalar]
    """Values that are in registers already, such as an anchor's result."""

    def plan(self, values: Sequence[Value], at: Indices) -> list[Resolved]:
        """Return the loads and ops that some values need at an index, in order."""
        wanted = [Element(v, at) for v in values]
        return resolve(wanted, lambda v: v in self.inputs or v in self.given, is_view)

    def emit(
        self, order: Iterable[Resolved], point: P, known: Mapping[Element, Scalar] | None = None
    ) -> dict[Element, Scalar]:
        """Compute resolved elements at a point, except those that are known."""
        made = dict(known or {})
        for item in order:
            if item.element not in made:
                made[item.element] = self._one(item, made, point)
        return made

    def _one(self, item: Resolved, made: dict[Element, Scalar], point: P) -> Scalar:
        value = item.element.value
        if value in self.given:
            return self.given[value]
        if not item.operands:
            return self.load(value, item.element.at, point)
        operands = [made[o] for o in item.operands]
        if is_view(value):
            return operands[0]
        if isinstance(value.op, Indexed):
            place = flatten(item.element.at, strides_of(value.tensor.static))
            operands.append(self.count(place, point))
        result: Scalar = value.op.scalar(self.scalars, *operands)
        return result

    @abstractmethod
    def count(self, index: Index, point: P) -> Scalar:
        """An index as a number, an i64."""

    @abstractmethod
    def load(self, value: Value, at: Indices, point: P) -> Scalar:
        """An element from memory, or a literal."""
