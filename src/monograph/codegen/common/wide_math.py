"""Functions of f32 by arithmetic in f64, for targets whose library computes vectors lane by lane.

Operands and results are f64 that come from f32 and become f32. Polynomials are fitted to the least
maximal relative error; all errors are far below half a unit in the last place of an f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from monograph.codegen.common.registers import Arith, Reg

_ROUNDER = 1.5 * 2.0**52
"""Adding this to a float below 2^51 leaves its nearest whole number in the low bits."""
_ROUNDER_BITS = 0x4338 << 48
_ONE_BITS = 1023 << 52
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""ln 2 in two parts; the first has so few bits that its product with an exponent is exact."""
_FAR = 200.0
"""Beyond e^200 and e^-200 an f32 is infinite and 0."""

# e^r - 1 = r + r^2 R(r) for |r| <= ln(2) / 2; relative error 2^-60, and 2^-37
EXP_REST = (
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
_EXP_REST = (
    0.49999999999736094,
    0.16666666754542525,
    0.04166666695523284,
    0.008333288956847654,
    0.0013888809292840296,
    0.0001990495929386894,
    2.488250693875348e-05,
)
# log((1 + s) / (1 - s)) = 2 s + s z P(z), where z = s^2, from sqrt(1/2) to sqrt(2); error 2^-44
_LOG = (
    0.6666666667584658,
    0.39999995604627875,
    0.28572111147901547,
    0.2217609912604409,
    0.1958552772830389,
)
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
# Between -pi/4 and pi/4, with z = x^2: sin x = x + x z S(z), error 2^-37;
# cos x = 1 - z / 2 + z^2 C(z), error 2^-43
_SIN = (
    -0.16666666641526928,
    0.008333329374128829,
    -0.0001983933099909175,
    2.7182744923724087e-06,
)
_COS = (
    0.04166666662265292,
    -0.0013888883738050048,
    2.479951589414274e-05,
    -2.7209893300294074e-07,
)
_TURN_END = 2.0**18
_QUARTER_TURN = (1.5707963267341256, 6.077100506506192e-11)
"""pi/2 as a sum; the first part has 33 bits, so that counting turns by it is exact."""
_SMALL = 2.0**-12
"""Below this two terms of a series are exact enough, and sums with 1 lose bits."""


def reduced(a: Arith, x: Reg) -> tuple[Reg, Reg]:
    """2^n and r such that e^x = 2^n e^r, where n is the nearest to x / ln 2."""
    # The low bits of the sum are a biased exponent, as in a float.
    shifted = a.fma(x, 1 / math.log(2), _ROUNDER + 1023)
    n = a.sub(shifted, _ROUNDER + 1023)
    r = a.fma(n, -_LN2_LOW, a.fma(n, -_LN2_HIGH, x))
    return a.floats(a.op("shl", a.bits(shifted), 52), "double"), r


def _exp(a: Arith, x: Reg, less: float = 0.0) -> Reg:
    """e^x; less 1 without cancellation near 0."""
    power, r = reduced(a, a.clamp(x, -_FAR, _FAR))
    rest = a.fma(a.mul(r, r), a.polynomial(r, _EXP_REST), r)
    return a.fma(power, rest, a.sub(power, less))


def _log(a: Arith, x: Reg) -> Reg:
    """log x for x > 0; infinity and NaN stay."""
    bits = a.bits(x)
    # Exponents are counted from sqrt(1/2), so that the quotient stays in its range.
    biased = a.op("lshr", a.op("add", bits, _ONE_BITS - _ROOT_HALF_BITS), 52)
    counted = a.floats(a.op("add", biased, _ROUNDER_BITS), "double")
    exponent = a.sub(counted, _ROUNDER + 1023)
    scale = a.op("sub", a.op("shl", biased, 52), _ONE_BITS)
    f = a.sub(a.floats(a.op("sub", bits, scale), "double"), 1.0)
    s = a.div(f, a.add(f, 2.0))
    z = a.mul(s, s)
    found = a.fma(a.mul(s, z), a.polynomial(z, _LOG), a.add(s, s))
    found = a.fma(exponent, math.log(2), found)
    return a.select(a.compare("olt", x, math.inf), found, x)


def power(a: Arith, x: Reg, y: Reg) -> Reg:
    """x^y, with all special cases of the C library's `pow`."""
    size = a.abs(x)
    logarithm = a.select(a.compare("oeq", size, 0.0), a.number(-math.inf, x), _log(a, size))
    grown = _exp(a, a.mul(y, logarithm))
    grown = a.select(a.compare("oeq", size, 1.0), a.number(1.0, x), grown)
    half = a.mul(y, 0.5)
    whole = a.compare("oeq", a.b.intrinsic("rint", y), y)
    even = a.compare("oeq", a.b.intrinsic("rint", half), half)
    # Only a whole number that is odd keeps the sign of x.
    result = a.select(even, grown, a.copysign(grown, x))
    result = a.select(whole, result, grown)
    unreal = a.op("and", a.compare("olt", x, 0.0), a.compare("ogt", x, -math.inf))
    number = a.select(whole, result, a.number(math.nan, x))
    result = a.select(unreal, number, result)
    return a.select(a.compare("oeq", y, 0.0), a.number(1.0, x), result)


def tan(a: Arith, x: Reg, otherwise: Callable[[], Reg]) -> Reg:
    """tan x of an f32; if a lane is too large for the reduction, `otherwise` computes all."""
    wide = a.convert("fpext", x, "double")
    shifted = a.fma(wide, 2 / math.pi, _ROUNDER)
    n = a.sub(shifted, _ROUNDER)
    r = wide
    for part in _QUARTER_TURN:
        r = a.fma(n, -part, r)
    z = a.mul(r, r)
    sine = a.fma(a.mul(r, z), a.polynomial(z, _SIN), r)
    cosine = a.fma(a.mul(z, z), a.polynomial(z, _COS), a.fma(z, -0.5, 1.0))
    odd = a.compare("ne", a.op("and", a.bits(shifted), 1), 0)
    over = a.select(odd, a.neg(cosine), sine)
    found = a.convert("fptrunc", a.div(over, a.select(odd, sine, cosine)), "float")
    usual = a.select(a.compare("oeq", x, 0.0), x, found)  # -0 stays
    far = a.any(a.compare("ogt", a.abs(x), _TURN_END))
    return a.unless(far, usual, otherwise)


def sinh(a: Arith, x: Reg) -> Reg:
    """(e^x - e^-x) / 2."""
    less_one = _exp(a, a.abs(x), less=1.0)
    twice = a.add(less_one, a.div(less_one, a.add(less_one, 1.0)))
    return a.copysign(a.mul(twice, 0.5), x)


def cosh(a: Arith, x: Reg) -> Reg:
    """(e^x + e^-x) / 2."""
    grown = _exp(a, a.abs(x))
    return a.mul(a.add(grown, a.div(1.0, grown)), 0.5)


def asinh(a: Arith, x: Reg) -> Reg:
    """log(x + sqrt(x^2 + 1))."""
    y = a.abs(x)
    root = a.b.intrinsic("sqrt", a.fma(y, y, 1.0))
    return a.copysign(_unless_small(a, y, -1 / 6, _log(a, a.add(y, root))), x)


def acosh(a: Arith, x: Reg) -> Reg:
    """log(x + sqrt(x^2 - 1)); NaN below 1."""
    root = a.b.intrinsic("sqrt", a.fma(x, x, -1.0))
    return _log(a, a.select(a.compare("olt", x, 1.0), a.number(math.nan, x), a.add(x, root)))


def atanh(a: Arith, x: Reg) -> Reg:
    """log((1 + x) / (1 - x)) / 2; NaN beyond 1."""
    y = a.abs(x)
    ratio = a.div(a.add(y, 1.0), a.sub(a.number(1.0, y), y))
    ratio = a.select(a.compare("ogt", y, 1.0), a.number(math.nan, y), ratio)
    return a.copysign(_unless_small(a, y, 1 / 3, a.mul(_log(a, ratio), 0.5)), x)


def _unless_small(a: Arith, y: Reg, third: float, found: Reg) -> Reg:
    """A function of y >= 0 that begins y + third * y^3, by these terms where y is small."""
    series = a.fma(a.mul(a.mul(y, y), y), third, y)
    return a.select(a.compare("olt", y, _SMALL), series, found)


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
    """asin x; beyond 1/2 it is pi/2 - 2 asin(sqrt((1 - x) / 2))."""
    large, angle = _half_angle(a, a.abs(x))
    found = a.select(large, a.fma(angle, -2.0, math.pi / 2), angle)
    return a.copysign(found, x)


def acos(a: Arith, x: Reg) -> Reg:
    """acos x; beyond 1/2 it is 2 asin(sqrt((1 - x) / 2))."""
    large, angle = _half_angle(a, a.abs(x))
    above = a.select(large, a.add(angle, angle), a.sub(a.number(math.pi / 2, x), angle))
    below = a.sub(a.number(math.pi, x), above)
    return a.select(a.compare("olt", x, 0.0), below, above)


def _half_angle(a: Arith, y: Reg) -> tuple[Reg, Reg]:
    """Return whether y > 1/2, and asin y, or asin(sqrt((1 - y) / 2)) there. NaN beyond 1."""
    large = a.compare("ogt", y, 0.5)
    z = a.select(large, a.fma(y, -0.5, 0.5), a.mul(y, y))
    s = a.select(large, a.b.intrinsic("sqrt", z), y)
    return large, a.fma(a.mul(s, z), a.polynomial(z, _ASIN), s)


def atan(a: Arith, x: Reg) -> Reg:
    """atan x; beyond 1 it is pi/2 - atan(1 / x)."""
    y = a.abs(x)
    large = a.compare("ogt", y, 1.0)
    s = a.select(large, a.div(1.0, y), y)
    z = a.mul(s, s)
    angle = a.fma(a.mul(s, z), a.polynomial(z, _ATAN), s)
    found = a.select(large, a.sub(a.number(math.pi / 2, x), angle), angle)
    return a.copysign(found, x)


IN_F64 = {
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "sinh": sinh,
    "cosh": cosh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
}
"""Functions of one number that need no library."""
