"""Registers, and the interface through which both code generators write instructions.

A register has the name that the text of a kernel gives it and an LLVM type. The Triton writer uses
the same type names, so that code in terms of registers serves both generators.

Arithmetic takes single numbers and vectors alike. A Python number among the operands is a literal
of the other's type. No fast-math flag is ever set: NaN, infinities and the sign of zero keep their
meaning. Integer arithmetic never traps, also where LLVM leaves the result undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from monograph.ir import DType
from monograph.ir.dtype import UINT

FLOATS = ("half", "bfloat", "float", "double")


@dataclass(frozen=True)
class Reg:
    """A value in a register (or a literal): its LLVM name and type."""

    name: str
    type: str

    def __str__(self) -> str:
        return self.name

    @property
    def lanes(self) -> int:
        """Elements of a vector; 0 for a scalar."""
        return int(self.type[1:].split(" ")[0]) if self.type.startswith("<") else 0

    @property
    def element(self) -> str:
        return self.type[1:-1].split(" x ")[1] if self.type.startswith("<") else self.type


def vector(lanes: int, element: str) -> str:
    """The type of so many lanes; the plain element type for none."""
    return f"<{lanes} x {element}>" if lanes else element


class Emitter(Protocol):
    """Writes single instructions into the body of a kernel."""

    @property
    def converts_half(self) -> bool:
        """True where the target converts between f16 and f32 by an instruction."""
        ...

    def set(self, type_: str, text: str) -> Reg:
        """Return a new register with the result of an instruction."""
        ...

    def number(self, number: float, element: str, lanes: int = 0) -> Reg:
        """Return a literal of an element type."""
        ...

    def intrinsic(self, stem: str, *arguments: Reg) -> Reg:
        """Call an intrinsic by its LLVM name; operands and result have one type."""
        ...

    def call(self, name: str, returns: str, *arguments: Reg) -> Reg:
        """Call a function of the mathematical library."""
        ...

    def compare(self, how: str, a: Reg, b: Reg) -> Reg:
        """Compare two registers by the LLVM name of the comparison."""
        ...


Operand: TypeAlias = "Reg | float | int"

BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}


class Arith:
    """Writes arithmetic; each code generator has its own instructions (`op`, `select`, ...)."""

    calls_by_lane = False
    """True if a function of the library takes one number, so that vectors call it for each lane."""

    def __init__(self, b: Emitter) -> None:
        self.b = b

    def number(self, value: float | int, like: Reg) -> Reg:
        """A literal of the type of a register."""
        return self.b.number(value, like.element, like.lanes)

    def operand(self, value: Operand, like: Reg) -> Reg:
        return value if isinstance(value, Reg) else self.number(value, like)

    def op(self, name: str, x: Reg, y: Operand) -> Reg:
        """An instruction of two operands of one type."""
        raise NotImplementedError

    def compare(self, how: str, x: Reg, y: Operand) -> Reg:
        return self.b.compare(how, x, self.operand(y, x))

    def select(self, condition: Reg, x: Operand, y: Operand) -> Reg:
        """x where the condition holds, else y; one of them is a register."""
        raise NotImplementedError

    def convert(self, how: str, x: Reg, element: str) -> Reg:
        """Convert a register (sext, fptrunc, ...); return it unchanged if it has that type."""
        raise NotImplementedError

    # Floats

    def add(self, x: Reg, y: Operand) -> Reg:
        return self.op("fadd", x, y)

    def sub(self, x: Reg, y: Operand) -> Reg:
        return self.op("fsub", x, y)

    def mul(self, x: Reg, y: Operand) -> Reg:
        return self.op("fmul", x, y)

    def div(self, x: Operand, y: Operand) -> Reg:
        like = x if isinstance(x, Reg) else y
        assert isinstance(like, Reg)
        return self.op("fdiv", self.operand(x, like), self.operand(y, like))

    def fma(self, x: Reg, y: Operand, z: Operand) -> Reg:
        """x * y + z: one instruction if the machine has it, else two."""
        return self.b.intrinsic("fmuladd", x, self.operand(y, x), self.operand(z, x))

    def polynomial(self, x: Reg, coefficients: Sequence[float]) -> Reg:
        """c[0] + c[1] x + c[2] x^2 + ...

        By Horner's rule: vectors follow each other closely enough to hide its long chain, and
        schemes with shorter chains have more multiplications.
        """
        *rest, last = coefficients
        total = self.number(last, x)
        for c in reversed(rest):
            total = self.fma(total, x, c)
        return total

    def neg(self, x: Reg) -> Reg:
        """-x, of floats."""
        raise NotImplementedError

    def abs(self, x: Reg) -> Reg:
        return self.b.intrinsic("fabs", x)

    def copysign(self, x: Reg, sign: Reg) -> Reg:
        return self.b.intrinsic("copysign", x, sign)

    def at_least(self, x: Reg, low: Operand) -> Reg:
        """max(x, low) for a low that is not NaN; NaN stays NaN. One instruction where possible."""
        least = self.operand(low, x)
        return self.select(self.compare("ogt", least, x), least, x)

    def at_most(self, x: Reg, high: Operand) -> Reg:
        """min(x, high) for a high that is not NaN; NaN stays NaN."""
        most = self.operand(high, x)
        return self.select(self.compare("olt", most, x), most, x)

    def clamp(self, x: Reg, low: float, high: float) -> Reg:
        return self.at_most(self.at_least(x, low), high)

    # Bits

    def bits(self, x: Reg) -> Reg:
        """The bits of floats as integers."""
        return self.convert("bitcast", x, f"i{BITS[x.element]}")

    def floats(self, x: Reg, element: str = "float") -> Reg:
        """Integers read as floats of the same width."""
        return self.convert("bitcast", x, element)

    def any(self, condition: Reg) -> Reg:
        """True where a condition holds in any lane."""
        raise NotImplementedError

    # Lanes and paths

    def each_lane(self, function: Callable[..., Reg], *operands: Reg) -> Reg:
        """A function of single numbers, applied lane by lane; it keeps the type."""
        raise NotImplementedError

    def unless(self, rare: Reg, usual: Reg, otherwise: Callable[[], Reg]) -> Reg:
        """A value, or its replacement on the path for a rare condition."""
        raise NotImplementedError


def negated(a: Arith, x: Reg) -> Reg:
    return a.op("sub", a.number(0, x), x)


def quotient(a: Arith, x: Reg, y: Reg, dtype: DType, literal: float | int | None = None) -> Reg:
    """x / y, rounded towards zero; 0 where y is 0; the smallest number over -1 is itself."""
    unsigned = dtype.kind == UINT
    if literal is not None and literal not in (0, -1):
        return a.op("udiv" if unsigned else "sdiv", x, y)
    is_zero = a.compare("eq", y, 0)
    if unsigned:
        return a.select(is_zero, 0, _divided(a, x, a.select(is_zero, 1, y), "u"))
    is_minus_one = a.compare("eq", y, -1)
    safe = a.select(a.op("or", is_zero, is_minus_one), 1, y)
    whole = a.select(is_minus_one, negated(a, x), _divided(a, x, safe, "s"))
    return a.select(is_zero, 0, whole)


def _divided(a: Arith, x: Reg, y: Reg, sign: str) -> Reg:
    """x / y for a harmless y, through floats up to 32 bits: only floats divide whole vectors.

    A quotient that is no whole number is at least 1 / y away from the next one. That is more than
    the rounding error if x has fewer bits than the float.
    """
    width = int(x.element[1:])
    if width == 64 or not x.lanes:
        return a.op(f"{sign}div", x, y)
    element = "double" if width == 32 else "float"
    to_float, to_integer = f"{sign}itofp", f"fpto{sign}i"
    whole = a.div(a.convert(to_float, x, element), a.convert(to_float, y, element))
    return a.convert("trunc", a.convert(to_integer, whole, "i32"), x.element)


def remainder(a: Arith, x: Reg, y: Reg, whole: Reg, dtype: DType, truncated: bool) -> Reg:
    """Return the remainder of x / y, with the sign of x if truncated, else of y; 0 if y is 0."""
    rest = a.op("sub", x, a.op("mul", whole, y))
    if dtype.kind != UINT and not truncated:
        differ = a.compare("slt", a.op("xor", rest, y), 0)
        wrong = a.op("and", differ, a.compare("ne", rest, 0))
        rest = a.select(wrong, a.op("add", rest, y), rest)
    return a.select(a.compare("eq", y, 0), 0, rest)


def shifted(a: Arith, how: str, x: Reg, y: Reg) -> Reg:
    """Shift by any amount: by more than the width, only the sign remains."""
    width = int(x.element[1:])
    left = a.op("ashr", x, width - 1) if how == "ashr" else a.number(0, x)
    return a.select(a.compare("ult", y, width), a.op(how, x, y), left)
