"""Integer arithmetic that never traps, also where LLVM leaves the result undefined."""

from __future__ import annotations

from monograph.codegen.common.arith import Arith
from monograph.codegen.common.registers import Reg
from monograph.ir import DType
from monograph.ir.dtype import UINT


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
