"""Functions of floats, written into kernels.

Common functions are inline and work on all lanes at once: a reduction of the argument and a
polynomial (or a quotient of two) fitted to the least maximal relative error, with coefficients
rounded to f32. All others use f64 and the C library, lane by lane.

Inline functions treat denormal arguments as zero, and results below 2^-125 may be zero. Maximal
errors in units in the last place, measured over tens of millions of arguments each and checked by
tests:

exp 1.5   log 1   sigmoid 2.5   tanh 3   erf 5.5 (7 without FMA)   sin, cos 2.5 to |x| = 10000
asin, acos, atan 0.51 (polynomials in f64)   tanh of f64 2.5

`normal` has an absolute error of at most 3 * 2^-24; its relative error is 10^-4 down to x = -4, and
2 * 10^-3 to -6.
"""

from __future__ import annotations

import math

from monograph.codegen.common.registers import Arith, Reg

# Adding this to a float below 2^22 leaves its nearest whole number in the low bits.
_ROUNDER = 1.5 * 2.0**23
_LN2_HIGH, _LN2_LOW = 0.693359375, math.log(2) - 0.693359375
"""ln 2 in two parts; the first has so few bits that its product with an exponent is exact."""
_SMALLEST = 2.0**-126
_WIDE_ROUNDER = 1.5 * 2.0**52
_WIDE_LN2_HIGH, _WIDE_LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""The same for f64."""

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
    wide = x.element == "double"
    # The low bits of the sum are a biased exponent, as in a float.
    rounder = (_WIDE_ROUNDER + 1023 if wide else _ROUNDER + 127) + offset
    high, low = (_WIDE_LN2_HIGH, _WIDE_LN2_LOW) if wide else (_LN2_HIGH, _LN2_LOW)
    shifted = a.fma(x, 1 / math.log(2), rounder)
    n = a.sub(shifted, rounder)
    r = a.fma(n, -low, a.fma(n, -high, x))
    return a.floats(a.op("shl", a.bits(shifted), 52 if wide else 23), x.element), r


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
# The same in f64; relative error 2^-60
_WIDE_EXP_REST = (
    0.5,
    0.1666666666666667,
    0.04166666666666667,
    0.008333333333326141,
    0.0013888888888883752,
    0.00019841269874800493,
    2.4801587325533363e-05,
    2.7557255425746435e-06,
    2.7557273661348637e-07,
    2.510520637395701e-08,
    2.0914679376583935e-09,
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
    power, r = _reduced(a, a.add(y, y), 0)
    rest = a.fma(a.mul(r, r), a.polynomial(r, _WIDE_EXP_REST if wide else _EXP_REST), r)
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


# With z = s^2: asin s = s + s z P(z) for s <= 1/2, error 2^-31; atan s = s + s z P(z) for s <= 1,
# error 2^-34
_ASIN = (
    0.166666598718861,
    0.07500510916969128,
    0.04451572049490973,
    0.03181760932376247,
    0.014402614970061817,
    0.03756518838065807,
)
_ATAN = (
    -0.3333333223521501,
    0.19999932192679906,
    -0.14284250787301905,
    0.11095201804408304,
    -0.08988788987789714,
    0.07269375168524062,
    -0.054704316126920824,
    0.03470445263930446,
    -0.016471304324597,
    0.004999252817694899,
    -0.0007112932174419404,
)


def asin(a: Arith, x: Reg) -> Reg:
    """asin x in f64; beyond 1/2 it is pi/2 - 2 asin(sqrt((1 - x) / 2))."""
    wide = a.convert("fpext", x, "double")
    large, angle = _half_angle(a, a.abs(wide))
    found = a.select(large, a.fma(angle, -2.0, math.pi / 2), angle)
    return a.convert("fptrunc", a.copysign(found, wide), "float")


def acos(a: Arith, x: Reg) -> Reg:
    """acos x in f64; beyond 1/2 it is 2 asin(sqrt((1 - x) / 2))."""
    wide = a.convert("fpext", x, "double")
    large, angle = _half_angle(a, a.abs(wide))
    above = a.select(large, a.add(angle, angle), a.sub(a.number(math.pi / 2, wide), angle))
    below = a.sub(a.number(math.pi, wide), above)
    return a.convert("fptrunc", a.select(a.compare("olt", wide, 0.0), below, above), "float")


def _half_angle(a: Arith, y: Reg) -> tuple[Reg, Reg]:
    """Return whether y > 1/2, and asin y, or asin(sqrt((1 - y) / 2)) there. NaN beyond 1."""
    large = a.compare("ogt", y, 0.5)
    z = a.select(large, a.fma(y, -0.5, 0.5), a.mul(y, y))
    s = a.select(large, a.b.intrinsic("sqrt", z), y)
    return large, a.fma(a.mul(s, z), a.polynomial(z, _ASIN), s)


def atan(a: Arith, x: Reg) -> Reg:
    """atan x in f64; beyond 1 it is pi/2 - atan(1 / x)."""
    wide = a.convert("fpext", x, "double")
    y = a.abs(wide)
    large = a.compare("ogt", y, 1.0)
    s = a.select(large, a.div(1.0, y), y)
    z = a.mul(s, s)
    angle = a.fma(a.mul(s, z), a.polynomial(z, _ATAN), s)
    found = a.select(large, a.sub(a.number(math.pi / 2, wide), angle), angle)
    return a.convert("fptrunc", a.copysign(found, wide), "float")


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
BY_LANE = {
    ("asin", "float"): asin,
    ("acos", "float"): acos,
    ("atan", "float"): atan,
    ("tanh", "double"): tanh,
}
"""Further functions that are inline where calls go lane by lane; all others are the library's."""


def libm(a: Arith, name: str, *operands: Reg) -> Reg:
    """A function of the C library, lane by lane in f64."""
    wide = [a.convert("fpext", x, "double") for x in operands]
    result = a.each_lane(lambda *one: a.b.call(name, "double", *one), *wide)
    return a.convert("fptrunc", result, operands[0].element)


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
    if a.calls_by_lane and (name, x.element) in BY_LANE:
        return BY_LANE[name, x.element](a, x)
    if name == "sigmoid":
        return a.div(1.0, a.add(libm(a, "exp", a.neg(x)), 1.0))
    if name == "normal":
        return a.fma(libm(a, "erf", a.mul(x, math.sqrt(0.5))), 0.5, 0.5)
    return libm(a, name, x)
