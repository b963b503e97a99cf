"""Functions of floats, written into kernels.

Common functions are inline and work on all lanes at once: a reduction of the argument and a
polynomial (or a quotient of two) fitted to the least maximal relative error, with coefficients
rounded to f32. Others use polynomials in f64 (`wide_math`), or the C library, lane by lane.

Inline functions treat denormal arguments as zero, and results below 2^-125 may be zero. Maximal
errors in units in the last place, measured over tens of millions of arguments each and checked by
tests:

exp 1.5   log 1   sigmoid 2.5   tanh 3   erf 5.5 (7 without FMA)   sin, cos 2.5 to |x| = 10000
functions of `wide_math` 0.51   tanh of f64 2.5

`normal` has an absolute error of at most 3 * 2^-24; its relative error is 10^-4 down to x = -4, and
2 * 10^-3 to -6.
"""

from __future__ import annotations

import math

from monograph.codegen.common import wide_math
from monograph.codegen.common.registers import Arith, Reg

# Adding this to a float below 2^22 leaves its nearest whole number in the low bits.
_ROUNDER = 1.5 * 2.0**23
_LN2_HIGH, _LN2_LOW = 0.693359375, math.log(2) - 0.693359375
"""ln 2 in two parts; the first has so few bits that its product with an exponent is exact."""
_SMALLEST = 2.0**-126

# e^r for |r| <= ln(2) / 2; relative error 2^-28.2
_EXP = (
    1.0,
    1.0,
    0.4999999403953552,
    0.1666652113199234,
    0.04166825860738754,
    0.008368666283786297,
    0.0013821173924952745,
)
_EXP_LOW, _EXP_HIGH = -87.5, 89.0
"""Beyond these e^x is 0 and infinite."""


def exp(a: Arith, x: Reg) -> Reg:
    # n may be 128, and 2^n would overflow: half of it is used, and the polynomial is doubled.
    power, r = _reduced(a, a.clamp(x, _EXP_LOW, _EXP_HIGH), -1)
    return a.mul(a.polynomial(r, [2 * c for c in _EXP]), power)


def _reduced(a: Arith, x: Reg, offset: int) -> tuple[Reg, Reg]:
    """2^(n + offset) and r such that e^x = 2^n e^r, where n is the nearest to x / ln 2.

    The power is right while its exponent is, or 0 where that is -127.
    """
    # The low bits of the sum are a biased exponent, as in a float.
    rounder = _ROUNDER + 127 + offset
    shifted = a.fma(x, 1 / math.log(2), rounder)
    n = a.sub(shifted, rounder)
    r = a.fma(n, -_LN2_LOW, a.fma(n, -_LN2_HIGH, x))
    return a.floats(a.op("shl", a.bits(shifted), 23)), r


# log(1 + f) = f - f^2 / 2 + f^3 P(f) for sqrt(1/2) <= 1 + f <= sqrt(2); relative error 2^-27.3
_LOG = (
    0.3333333134651184,
    -0.2500081956386566,
    0.20001226663589478,
    -0.16623356938362122,
    0.14201757311820984,
    -0.13160182535648346,
    0.1276157796382904,
    -0.07634497433900833,
)
_ROOT_HALF_BITS = 0x3F3504F3


def log(a: Arith, x: Reg) -> Reg:
    """log x = e log 2 + log(1 + f), where x = 2^e (1 + f)."""
    bits = a.bits(x)
    # Exponents are counted from sqrt(1/2), so that 1 + f stays in its range.
    e = a.op("ashr", a.op("sub", bits, _ROOT_HALF_BITS), 23)
    f = a.sub(a.floats(a.op("sub", bits, a.op("shl", e, 23))), 1.0)
    exponent = a.convert("sitofp", e, "float")
    square = a.mul(f, f)
    tail = a.mul(a.mul(square, f), a.polynomial(f, _LOG))
    tail = a.fma(square, -0.5, a.fma(exponent, _LN2_LOW, tail))
    result = a.fma(exponent, _LN2_HIGH, a.add(f, tail))
    result = a.select(a.compare("olt", x, math.inf), result, x)
    below = a.select(a.compare("olt", x, 0.0), a.number(math.nan, x), -math.inf)
    return a.select(a.compare("olt", x, _SMALLEST), below, result)


def sigmoid(a: Arith, x: Reg) -> Reg:
    """1 / (1 + e^-x)."""
    return a.div(1.0, a.add(exp(a, a.neg(x)), 1.0))


# e^r - 1 = r + r^2 R(r) for |r| <= ln(2) / 2; relative error 2^-26.2
_EXP_REST = (
    0.4999999701976776,
    0.1666654348373413,
    0.04166720062494278,
    0.008366533555090427,
    0.0013882518978789449,
)
_TANH_END, _WIDE_TANH_END = 9.1, 22.0
"""From here on tanh is 1: e^2x + 1 and e^2x - 1 are the same number."""

# erf x = x P(x^2) / Q(x^2) for |x| <= 3.83; relative error 2^-25.9
_ERF_P = (
    1.8404057025909424,
    0.3047047257423401,
    0.08539565652608871,
    0.0059245890006423,
    0.0004658382968045771,
    3.472034222795628e-06,
)
_ERF_Q = (
    1.6310170888900757,
    0.8137094378471375,
    0.18381762504577637,
    0.02397940680384636,
    0.001854456146247685,
    6.350965850288048e-05,
)
_ERF_END = 4.2
"""Here the quotient exceeds 1 by more than its rounding error."""


def tanh(a: Arith, x: Reg) -> Reg:
    """(e^2x - 1) / (e^2x + 1); exactly 1 for large x, because GELU multiplies the rest by x."""
    wide = x.element == "double"
    y = a.at_most(a.abs(x), _WIDE_TANH_END if wide else _TANH_END)
    # Near 0 the power is 1, so that subtracting 1 cancels nothing.
    power, r = wide_math.reduced(a, a.add(y, y)) if wide else _reduced(a, a.add(y, y), 0)
    rest = a.fma(a.mul(r, r), a.polynomial(r, wide_math.EXP_REST if wide else _EXP_REST), r)
    less_one = a.fma(power, rest, a.sub(power, 1.0))
    return a.copysign(a.div(less_one, a.add(less_one, 2.0)), x)


def erf(a: Arith, x: Reg) -> Reg:
    """x P(x^2) / Q(x^2), clamped to -1 and 1; exactly 1 for large x, like tanh."""
    x = a.clamp(x, -_ERF_END, _ERF_END)
    z = a.mul(x, x)
    quotient = a.div(a.mul(x, a.polynomial(z, _ERF_P)), a.polynomial(z, _ERF_Q))
    return a.clamp(quotient, -1.0, 1.0)


# The fourth root of (1 - erf(t / sqrt 2)) / 2 for 0 <= t <= 6: its fourth power is off by 2^-24 at
# most near 0, and by ever less further out, where it is small itself. Beyond it falls below 0.
_NORMAL = (
    0.8408964276313782,
    -0.16773471236228943,
    -0.050187770277261734,
    0.004600657150149345,
    0.003910894505679607,
    -0.00018425879534333944,
    -0.0001937784400070086,
    5.829828751302557e-06,
    1.1311204616504256e-05,
    -2.38431925936311e-06,
    2.000107741650936e-07,
    -6.3577227926714386e-09,
)


def normal(a: Arith, x: Reg) -> Reg:
    """(1 + erf(x / sqrt 2)) / 2, the distribution function of the normal distribution.

    That sum cancels for negative x; this computation does not. Exactly 0 for very negative x.
    """
    root = a.at_least(a.polynomial(a.abs(x), _NORMAL), 0.0)
    square = a.mul(root, root)
    beyond = a.mul(square, square)
    below = a.compare("slt", a.bits(x), 0)
    return a.select(below, beyond, a.sub(a.number(1.0, x), beyond))


# Between -pi/4 and pi/4, with z = x^2: sin x = x + x^3 S(z), error 2^-28;
# cos x = 1 - z / 2 + z^2 C(z), error 2^-33
_SIN = (-0.16666655242443085, 0.00833216030150652, -0.0001951520098373294)
_COS = (0.04166664555668831, -0.0013887315290048718, 2.4433062208117917e-05)
_TURN_END = 10000.0
_QUARTER_TURN = (
    1.5703125,
    0.0004837512969970703,
    7.549533620476723e-08,
    2.563344151594519e-12,
)
"""pi/2 as a sum; parts before the last have 11 bits, so that counting turns by them is exact."""


def sin(a: Arith, x: Reg) -> Reg:
    return _wave(a, x, "sin", 0)


def cos(a: Arith, x: Reg) -> Reg:
    return _wave(a, x, "cos", 1)


def _wave(a: Arith, x: Reg, name: str, quarters: int) -> Reg:
    """sin(x + quarters * pi/2); if a lane is too large for the reduction, all use the C library."""
    shifted = a.fma(x, 2 / math.pi, _ROUNDER)
    n = a.sub(shifted, _ROUNDER)
    r = x
    for part in _QUARTER_TURN:
        r = a.fma(n, -part, r)
    z = a.mul(r, r)
    sine = a.fma(a.mul(r, z), a.polynomial(z, _SIN), r)
    cosine = a.fma(a.mul(z, z), a.polynomial(z, _COS), a.fma(z, -0.5, 1.0))
    quarter = a.op("add", a.bits(shifted), quarters)
    odd = a.compare("ne", a.op("and", quarter, 1), 0)
    sign = a.op("shl", a.op("and", quarter, 2), 30)
    usual = a.floats(a.op("xor", a.bits(a.select(odd, cosine, sine)), sign))
    if not quarters:  # the polynomial turns -0 into 0
        usual = a.select(a.compare("oeq", x, 0.0), x, usual)
    far = a.any(a.compare("ogt", a.abs(x), _TURN_END))
    return a.unless(far, usual, lambda: libm(a, name, x))


INLINE = {
    "exp": exp,
    "log": log,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "erf": erf,
    "normal": normal,
    "sin": sin,
    "cos": cos,
}
"""The functions of f32 that are inline."""


def libm(a: Arith, name: str, *operands: Reg) -> Reg:
    """A function of the C library, lane by lane in f64."""
    wide = [a.convert("fpext", x, "double") for x in operands]
    result = a.each_lane(lambda *one: a.b.call(name, "double", *one), *wide)
    return a.convert("fptrunc", result, operands[0].element)


def power(a: Arith, x: Reg, y: Reg) -> Reg:
    """x^y of floats."""
    if not a.calls_by_lane or x.element != "float":
        return libm(a, "pow", x, y)
    wide = wide_math.power(a, *(a.convert("fpext", z, "double") for z in (x, y)))
    return a.convert("fptrunc", wide, "float")


def floored(a: Arith, rest: Reg, y: Reg) -> Reg:
    """The remainder with the sign of y, from the one with the sign of x."""
    differ = a.compare("slt", a.op("xor", a.bits(rest), a.bits(y)), 0)
    is_zero = a.compare("oeq", rest, 0.0)
    moved = a.select(differ, a.add(rest, y), rest)
    return a.select(is_zero, a.copysign(rest, y), moved)


def function(a: Arith, name: str, x: Reg) -> Reg:
    """A function of one float, inline where that is possible."""
    if x.element == "float" and name in INLINE:
        return INLINE[name](a, x)
    if a.calls_by_lane and (name, x.element) == ("tanh", "double"):
        return tanh(a, x)
    if a.calls_by_lane and x.element == "float" and name in wide_math.IN_F64:
        wide = wide_math.IN_F64[name](a, a.convert("fpext", x, "double"))
        return a.convert("fptrunc", wide, "float")
    if a.calls_by_lane and (name, x.element) == ("tan", "float"):
        return wide_math.tan(a, x, lambda: libm(a, name, x))
    if name == "sigmoid":
        return a.div(1.0, a.add(libm(a, "exp", a.neg(x)), 1.0))
    if name == "normal":
        return a.fma(libm(a, "erf", a.mul(x, math.sqrt(0.5))), 0.5, 0.5)
    return libm(a, name, x)
