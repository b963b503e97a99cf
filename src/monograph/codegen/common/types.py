"""Element types in memory and in registers, and conversions between them.

In memory an element is as numpy stores it: a bool is a byte of 0 or 1, and types of fewer than 8
bits take a byte each. In a register a bool is an i1, an integer has its own width, and floats
narrower than f32 are f32: they are widened when loaded, and rounded when stored or cast.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes

from monograph.codegen.common.element_types import storage as storage
from monograph.codegen.common.registers import Arith, Reg
from monograph.ir import DType
from monograph.ir.dtype import (
    BOOL,
    UINT,
    bf16,
    f4e2m1,
    f6e2m3,
    f6e3m2,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f16,
    f32,
    f64,
    i32,
)
from monograph.ops.cast import DOWN, SATURATING, UP

IEEE, ONE_NAN, UNSIGNED_ZERO, FINITE = "ieee", "one nan", "unsigned zero", "finite"
"""The codes that are no numbers: those of IEEE 754; only the last; that of -0; none."""


@dataclass(frozen=True)
class _Format:
    """A float of a sign, an exponent and a mantissa."""

    exponent: int
    mantissa: int
    bias: int
    special: str = IEEE

    @property
    def width(self) -> int:
        """Bits without the sign."""
        return self.exponent + self.mantissa

    @property
    def infinity(self) -> int:
        """The code of the largest exponent with an empty mantissa."""
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def last(self) -> int:
        """The largest code without a sign."""
        return (1 << self.width) - 1

    @property
    def rebias(self) -> int:
        """The difference of the exponent biases of f32 and this format."""
        return 127 - self.bias


_FORMATS = {
    f16: _Format(5, 10, 15),
    bf16: _Format(8, 7, 127),
    f8e4m3fn: _Format(4, 3, 7, ONE_NAN),
    f8e4m3fnuz: _Format(4, 3, 8, UNSIGNED_ZERO),
    f8e5m2: _Format(5, 2, 15),
    f8e5m2fnuz: _Format(5, 2, 16, UNSIGNED_ZERO),
    f6e2m3: _Format(2, 3, 1, FINITE),
    f6e3m2: _Format(3, 2, 3, FINITE),
    f4e2m1: _Format(2, 1, 1, FINITE),
}
_NAN_BITS = 0x7FC00000
_INFINITY_BITS = 0x7F800000


def register(dtype: DType) -> str:
    """The LLVM type of an element in a register."""
    if dtype.is_float:
        return "double" if dtype == f64 else "float"
    return "i1" if dtype.kind == BOOL else f"i{dtype.bits}"


def is_narrow(dtype: DType) -> bool:
    """Return True if registers hold a type as f32 that memory holds in fewer bits."""
    return dtype.is_float and dtype not in (f32, f64)


# Between memory and registers


def decode(a: Arith, dtype: DType, x: Reg) -> Reg:
    """Convert an element from memory to its register form."""
    if dtype.kind == BOOL:
        return a.compare("ne", x, 0)
    if not is_narrow(dtype):
        return a.convert("trunc", x, register(dtype))
    if dtype == f16 and a.b.converts_half:
        return a.convert("fpext", a.floats(x, "half"), "float")
    code = a.convert("zext", x, "i32")
    if dtype == bf16:
        return a.floats(a.op("shl", code, 16))
    if dtype == f8e8m0:
        return a.floats(_powers_of_two(a, code))
    return a.floats(_widened(a, _FORMATS[dtype], code))


def encode(a: Arith, dtype: DType, x: Reg) -> Reg:
    """Convert a register to its memory form; out of range like `Cast` without `saturate`."""
    if not dtype.is_float:
        how = "sext" if dtype.is_signed else "zext"
        return a.convert(how, x, storage(dtype))
    if not is_narrow(dtype):
        return x
    return _rounded(a, dtype, x, False, "")


def _rounded(a: Arith, dtype: DType, x: Reg, saturate: bool, rounding: str) -> Reg:
    """The code of the number nearest to an f32."""
    if dtype == f16 and a.b.converts_half:
        return a.convert("bitcast", a.convert("fptrunc", x, "half"), "i16")
    if dtype == f8e8m0:
        code = _power_of_two(a, x, saturate, rounding)
    else:
        if saturate and dtype in SATURATING:
            limit = float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]
            x = a.clamp(x, -limit, limit)
        code = _narrowed(a, _FORMATS[dtype], x)
    return a.convert("trunc", code, storage(dtype))


def _widened(a: Arith, form: _Format, code: Reg) -> Reg:
    """The bits of the f32 of the same value."""
    m = form.mantissa
    magnitude = a.op("and", code, form.last)
    shifted = a.op("shl", magnitude, 23 - m)
    bits = a.op("add", shifted, form.rebias << 23)
    # Without an exponent the mantissa is a multiple of the smallest step.
    few = a.mul(a.convert("sitofp", magnitude, "float"), 2.0 ** (1 - form.bias - m))
    bits = a.select(a.compare("ult", magnitude, 1 << m), a.bits(few), bits)
    if form.special == IEEE:
        special = a.op("or", shifted, _INFINITY_BITS)
        bits = a.select(a.compare("uge", magnitude, form.infinity), special, bits)
    elif form.special == ONE_NAN:
        bits = a.select(a.compare("eq", magnitude, form.last), _NAN_BITS, bits)
    sign = a.op("shl", a.op("lshr", code, form.width), 31)
    bits = a.op("or", bits, sign)
    if form.special == UNSIGNED_ZERO:
        return a.select(a.compare("eq", code, form.last + 1), _NAN_BITS, bits)
    return bits


def _narrowed(a: Arith, form: _Format, x: Reg) -> Reg:
    """The code of the nearest number of a format, a half to the even one."""
    m = form.mantissa
    bits = a.bits(x)
    magnitude = a.op("and", bits, 0x7FFFFFFF)
    even = a.op("and", a.op("lshr", magnitude, 23 - m), 1)
    halfway = a.op("add", a.op("add", magnitude, (1 << (22 - m)) - 1), even)
    code = a.op("sub", a.op("lshr", halfway, 23 - m), form.rebias << m)
    if form.rebias:
        # Adding a power of two whose step is the format's smallest rounds to that step.
        base = a.number(2.0 ** (24 - form.bias - m), x)
        few = a.op("sub", a.bits(a.add(a.floats(magnitude), base)), a.bits(base))
        code = a.select(a.compare("ult", magnitude, (form.rebias + 1) << 23), few, code)
    sign = a.op("shl", a.op("lshr", bits, 31), form.width)
    is_nan = a.compare("uno", x, x)
    if form.special == UNSIGNED_ZERO:
        nan = form.last + 1
        signed = a.select(a.compare("eq", code, 0), 0, a.op("or", code, sign))
        over = a.op("or", is_nan, a.compare("ugt", code, form.last))
        return a.select(over, nan, signed)
    largest = form.infinity if form.special == IEEE else form.last
    code = a.select(a.compare("ult", code, largest), code, largest)
    if form.special == FINITE:
        # The format has no NaN; ml_dtypes turns it into a negative zero.
        return a.select(is_nan, form.last + 1, a.op("or", code, sign))
    nan = form.infinity | 1 << (m - 1) if form.special == IEEE else form.last
    return a.op("or", a.select(is_nan, nan, code), sign)


def _powers_of_two(a: Arith, code: Reg) -> Reg:
    """The bits of 2^(code - 127); the last code is NaN, and the first is denormal as an f32."""
    bits = a.select(a.compare("eq", code, 0), 1 << 22, a.op("shl", code, 23))
    return a.select(a.compare("eq", code, 255), _NAN_BITS, bits)


def _power_of_two(a: Arith, x: Reg, saturate: bool, rounding: str) -> Reg:
    """The code of a power of two: above, below, or the nearest, a half to the one above.

    All in integers, because the smallest powers are denormal as f32.
    """
    bits = a.bits(x)
    magnitude = a.op("and", bits, 0x7FFFFFFF)
    # What carries into the exponent where the power above is meant; the first bits of the second
    # power; those of the first.
    carry, second, first = {
        UP: ((1 << 23) - 1, (1 << 22) + 1, (1 << 21) + 1),
        DOWN: (0, 1 << 23, 1 << 22),
    }.get(rounding, (1 << 22, 3 << 21, 3 << 20))
    code = a.op("lshr", a.op("add", magnitude, carry), 23)
    code = a.select(a.compare("ult", magnitude, second), 0, code)
    outside = a.op("or", a.compare("ult", magnitude, first), a.compare("ugt", code, 254))
    wrong = a.op("or", a.compare("uno", x, x), a.compare("ugt", bits, 1 << 31))
    if saturate:
        code = a.select(a.compare("ult", code, 254), code, 254)
        return a.select(wrong, 255, code)
    return a.select(a.op("or", wrong, outside), 255, code)


# Between element types


def convert(
    a: Arith,
    x: Reg,
    given: DType,
    to: DType,
    saturate: bool = True,
    rounding: str = UP,
) -> Reg:
    """The same value in another element type, by the rules of the op `Cast`."""
    if given == to:
        return x
    if to.kind == BOOL:
        return a.compare("une" if given.is_float else "ne", x, 0)
    if not to.is_float:
        return _to_integer(a, x, given, to)
    if not given.is_float:
        # After rounding to f32, a power of two below or above can no longer be determined.
        how, exact = "sitofp" if given.is_signed else "uitofp", to in (f64, f8e8m0)
        x, given = a.convert(how, x, "double" if exact else "float"), f64 if exact else f32
    if to == f64:
        return a.convert("fpext", x, "double")
    if given == f64:
        once = to in (f16, f8e8m0)
        x = to_odd_single(a, x) if once else a.convert("fptrunc", x, "float")
    if not is_narrow(to):
        return x
    return decode(a, to, _rounded(a, to, x, saturate, rounding))


def _to_integer(a: Arith, x: Reg, given: DType, to: DType) -> Reg:
    if not given.is_float:
        if register(given) == register(to):
            return x
        wider = to.bits > (1 if given.kind == BOOL else given.bits)
        how = ("sext" if given.is_signed else "zext") if wider else "trunc"
        return a.convert(how, x, register(to))
    # Through a wider signed integer, a number below zero wraps as an unsigned.
    if to.bits < 32 or to == i32:
        return a.convert("trunc", a.convert("fptosi", x, "i32"), register(to))
    if to.kind == UINT and to.bits == 64:
        big = a.compare("oge", x, 2.0**63)
        x = a.select(big, a.sub(x, 2.0**64), x)
    return a.convert("trunc", a.convert("fptosi", x, "i64"), register(to))


def to_odd_single(a: Arith, x: Reg) -> Reg:
    """An f64 as an f32 that is exact or has an odd last bit, so that rounding again is right."""
    near = a.convert("fptrunc", x, "float")
    back = a.convert("fpext", near, "double")
    bits = a.bits(near)
    even = a.compare("eq", a.op("and", bits, 1), 0)
    finite = a.compare("olt", a.abs(back), float("inf"))
    inexact = a.op("and", a.compare("one", back, x), a.op("and", even, finite))
    beyond = a.compare("ogt", a.abs(back), a.abs(x))
    odd = a.select(beyond, a.op("sub", bits, 1), a.op("or", bits, 1))
    return a.floats(a.select(inexact, odd, bits))


def bitcast(a: Arith, x: Reg, given: DType, to: DType) -> Reg:
    """The same bits read as another element type; NaNs narrower than f32 come out as one NaN."""
    code = encode(a, given, x)
    return decode(a, to, a.convert("bitcast", code, storage(to)))


def is_wide(dtype: DType) -> bool:
    """True where an element takes 64 bits in a register."""
    return dtype == f64 or (dtype.is_integer and dtype.bits == 64)
