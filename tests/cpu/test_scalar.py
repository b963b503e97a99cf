"""Elementwise ops as native code: every op, element type and instruction set of this host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monograph.codegen.llvm.features import Features, host_features
from monograph.codegen.llvm.scalar import LlvmScalars
from monograph.codegen.llvm.types import is_narrow, storage
from monograph.ir import Array, DType, Op, Sample, from_numpy
from monograph.ir.dtype import ALL, COMPLEX, STRING, bf16, boolean, f8e8m0, f16, f32, f64, i8, i32
from monograph.ops import OPS
from monograph.ops.base import Binary, Comparison, Predicate, Unary
from monograph.ops.cast import SATURATING, BitCast, Cast
from monograph.ops.composite import Gelu
from monograph.ops.elementwise import Add, Cos, Div, Mul, Pow, Sin, Tanh, Where
from monograph.ops.quant import Dequantize, Quantize, spread
from monograph.ops.scalar import Scalar, is_pointwise
from tests.cpu.scalar_kernels import Case, instruction_sets, run, run_all
from tests.samples import make_input

SETS = [pytest.param(f, id=f.name) for f in instruction_sets()]
POINTWISE = {name: op for name, op in OPS.items() if is_pointwise(op)}
EXACT = "exact"
"""The same bits as the reference, but for the sign of a NaN."""

BOUNDS: dict[str, float] = {
    "exp": 1.5,
    "log": 1.0,
    "sin": 2.5,
    "cos": 2.5,
    "tanh": 2.5,
    "erf": 5.0,
    "sigmoid": 2.5,
    "silu": 2.5,
    "tan": 1.0,
    "asin": 1.0,
    "acos": 1.0,
    "atan": 1.0,
    "sinh": 1.0,
    "cosh": 1.0,
    "asinh": 1.0,
    "acosh": 1.0,
    "atanh": 1.0,
    "pow": 1.0,
}
"""Units in the last place that an f32 may be off; ops that are not here are exact."""
WITHOUT_FMA = {"erf": 6.5}
F64_BOUND = 4.0
"""Both sides come from libraries that are right to a few units."""
SMALLEST = 1.5 * 2.0**-126
"""Results below this may be zero, and zero may be anything below this."""


def within(name: str, features: Features) -> float:
    fused = "fma" in features.flags
    return BOUNDS[name] if fused else WITHOUT_FMA.get(name, BOUNDS[name])


def errors(given: Array, exact: Array) -> Array:
    """How far results are off, in units of the last place; infinite where a kind is wrong."""
    dtype = given.dtype
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    wide = given.astype(np.float64)
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype).astype(np.float64)
        exponent = np.floor(np.log2(np.maximum(np.abs(exact), float(info.smallest_normal))))
        unit = 2.0 ** (exponent - int(info.nmant))
        off = np.abs(wide - exact) / unit
    least = max(SMALLEST, float(info.smallest_normal)) if dtype != np.float64 else 0.0
    fine = (wide == rounded) | (np.isnan(wide) & np.isnan(rounded))
    fine |= (np.abs(exact) < least) & (np.abs(wide) < least)
    return np.where(fine, 0.0, np.where(np.isnan(off) | np.isinf(rounded), np.inf, off))


def same(given: Array, expected: Array) -> bool:
    """Equal, and NaN where the other is."""
    if given.dtype.kind in "biu" or from_numpy(given.dtype).is_integer:
        return bool((given == expected).all())
    a, b = given.astype(np.float64), expected.astype(np.float64)
    return bool(((a == b) | (np.isnan(a) & np.isnan(b))).all())


def check(name: str, case: Case, given: Array, op: Op, features: Features) -> None:
    """A result against the reference: equal, or within the bound of the op."""
    with np.errstate(all="ignore"):
        expected = op.reference(*case.operands)
    where = f"{op} of {[str(x.dtype) for x in case.operands]} in {case.lanes} lanes"
    if name not in BOUNDS or not case.to.is_float:
        if not same(given, expected):
            bad = np.flatnonzero(~(given == expected))
            shown = [(*(x[i] for x in case.operands), given[i], expected[i]) for i in bad[:5]]
            pytest.fail(f"{where}: (operands, given, expected) {shown}")
        return
    if case.to == f32:
        with np.errstate(all="ignore"):
            exact = op.compute(*(x.astype(np.float64) for x in case.operands))  # type: ignore[attr-defined]
    else:
        exact = expected.astype(np.float64)
    bound = {f32: within(name, features), f64: F64_BOUND}.get(case.to, 1.0)
    off = errors(given, exact)
    worst = int(off.argmax())
    operands = [x[worst] for x in case.operands]
    assert off[worst] <= bound, f"{where}: {operands} gave {given[worst]}, not {exact[worst]}"


# Which ops


def test_every_pointwise_op_has_a_scalar_form() -> None:
    elementwise = {n for n, op in OPS.items() if issubclass(op, (Unary, Binary))}
    others = {"where", "cast", "bit_cast", "quantize", "dequantize"}
    assert set(POINTWISE) == elementwise | others


# Samples of the ops


def flat(op: Op, arrays: Sequence[Array]) -> list[Array]:
    """Operands of one shape, in rows: what a loop over elements reads."""
    if isinstance(op, (Quantize, Dequantize)):
        x, *rest = arrays
        arrays = [x, *(spread(p, x.shape, op.axis, op.block) for p in rest)]
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    return [np.broadcast_to(x, shape).reshape(-1) for x in arrays]


def sample_cases(lanes: int) -> list[tuple[str, Op, Case, Array]]:
    found = []
    for name, kind in POINTWISE.items():
        for number, s in enumerate(kind.samples):
            made = _sample(kind, s, number)
            if made is not None:
                op, operands, expected = made
                to = from_numpy(expected.dtype)
                case = Case.of(op, to, flat(op, operands), lanes)
                found.append((name, op, case, expected.reshape(-1)))
    return found


def _sample(kind: type[Op], s: Sample, seed: int) -> tuple[Op, list[Array], Array] | None:
    operands = [make_input(x, seed + i) for i, x in enumerate(s.inputs)]
    op = kind(**s.attributes)
    expected = op.reference(*operands)
    kinds = {from_numpy(x.dtype).kind for x in (*operands, expected)}
    return None if kinds & {STRING, COMPLEX} else (op, operands, expected)


@pytest.mark.parametrize("features", SETS)
@pytest.mark.parametrize("vector", [False, True], ids=["single", "vector"])
def test_samples(features: Features, vector: bool) -> None:
    found = sample_cases(features.lanes(32) if vector else 0)
    results = run_all([case for _, _, case, _ in found], features)
    for (name, op, case, expected), given in zip(found, results, strict=True):
        if name in ("quantize", "dequantize"):
            assert same(given, expected), f"{op}: {given} is not {expected}"
        elif name != "gelu":
            check(name, case, given, op, features)


# Edge values of every element type


def edges(dtype: DType, seed: int = 0) -> Array:
    """Numbers where things go wrong, and some at random."""
    generator = np.random.default_rng(seed)
    if dtype == boolean:
        return np.array([False, True])
    if dtype.is_integer:
        low, high = _range(dtype)
        picked = [low, low + 1, high, high - 1, 0, 1, 2, 3, 5, 7, -1, -2, -3, 63, 64]
        picked += [
            int(v) for v in generator.integers(low, high, 6, endpoint=True, dtype=_wide(dtype))
        ]
        return np.array(sorted({v for v in picked if low <= v <= high}), _wide(dtype)).astype(
            dtype.numpy
        )
    info = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    numbers = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 0.3, 9.7, 100.0, 1e-3, 3e4, math.inf]
    numbers += [
        float(info.max),
        float(info.smallest_normal),
        float(info.eps),
        *generator.normal(size=4),
    ]
    with np.errstate(all="ignore"):
        return np.array([*numbers, *(-v for v in numbers), math.nan]).astype(dtype.numpy)


def _range(dtype: DType) -> tuple[int, int]:
    if dtype.kind == "uint":
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def _wide(dtype: DType) -> Any:
    return np.uint64 if dtype.kind == "uint" else np.int64


NUMBERS = [d for d in ALL if d.kind not in (STRING, COMPLEX) and d != f8e8m0]
"""All but the type that holds powers of two only, which nothing is computed in."""
FEWER = (f32, f64, f16, bf16, i8, i32, boolean)
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "clip": ({"lo": -1.0, "hi": 2.5}, {"hi": 3.0}, {"lo": 0.0}),
    "mod": ({}, {"truncated": True}),
    "is_inf": ({}, {"negative": False}, {"positive": False}),
}
SIMPLE = {n: op for n, op in POINTWISE.items() if issubclass(op, (Unary, Binary)) and n != "gelu"}


def edge_cases(
    name: str, kind: type[Op], dtypes: Sequence[DType], lanes: int
) -> list[tuple[Op, Case]]:
    found = []
    for dtype in dtypes:
        if dtype.kind not in kind.kinds:  # type: ignore[attr-defined]
            continue
        x = edges(dtype)
        operands = [x]
        if issubclass(kind, Binary):
            operands = [a.reshape(-1) for a in np.meshgrid(x, x)]
        answers_bool = issubclass(kind, (Predicate, Comparison))
        for attributes in VARIANTS.get(name, ({},)):
            op = kind(**attributes)
            found.append((op, Case.of(op, boolean if answers_bool else dtype, operands, lanes)))
    return found


@pytest.mark.parametrize("features", SETS)
@pytest.mark.parametrize("name", SIMPLE)
def test_edge_values(name: str, features: Features) -> None:
    kind, lanes = SIMPLE[name], features.lanes(32)
    found = edge_cases(name, kind, NUMBERS if features == host_features() else FEWER, lanes)
    found += edge_cases(name, kind, FEWER, 0)
    results = run_all([case for _, case in found], features)
    for (op, case), given in zip(found, results, strict=True):
        check(name, case, given, op, features)


@pytest.mark.parametrize("features", SETS)
def test_choice(features: Features) -> None:
    cases = []
    for dtype in NUMBERS:
        x, y, c = (a.reshape(-1) for a in np.meshgrid(edges(dtype), edges(dtype), [False, True]))
        cases.append(Case.of(Where(), dtype, [c, x, y], features.lanes(32)))
    for case, given in zip(cases, run_all(cases, features), strict=True):
        assert same(given, np.where(*case.operands))


# Conversions


def convertible(x: Array, to: DType) -> Array:
    """The numbers whose conversion is specified: to an integer, those in its range."""
    given = from_numpy(x.dtype)
    if not given.is_float or not to.is_integer:
        return x
    low, high = _range(to)
    wide = np.trunc(x.astype(np.float64))
    return x[(wide >= max(low, -(2.0**63))) & (wide <= high) & (wide < 2.0**to.bits)]


@pytest.mark.parametrize("features", SETS)
@pytest.mark.parametrize("to", [d for d in ALL if d.kind not in (STRING, COMPLEX)], ids=str)
def test_casts(to: DType, features: Features) -> None:
    options: list[dict[str, Any]] = [{}]
    if to in SATURATING:
        options.append({"saturate": False})
    if to == f8e8m0:
        options += [
            {"rounding": r, "saturate": s} for r in ("down", "nearest") for s in (True, False)
        ]
    found = []
    for given in [*NUMBERS, f8e8m0]:
        x = (
            np.concatenate([edges(given, seed) for seed in range(3)])
            if given != f8e8m0
            else codes(given)
        )
        for option in options if given in (f32, f64, i32) else [{}]:
            op = Cast(to, **option)
            found.append((op, Case.of(op, to, [convertible(x, to)], features.lanes(32))))
    results = run_all([case for _, case in found], features)
    for (op, case), given_ in zip(found, results, strict=True):
        with np.errstate(all="ignore"):
            expected = op.reference(*case.operands)
        assert same(given_, expected), f"{case.operands[0].dtype} to {to}: {given_} not {expected}"


def codes(dtype: DType) -> Array:
    """Every number of a type of at most 16 bits."""
    raw = np.arange(2**dtype.bits, dtype=np.uint16)
    return raw.astype(f"u{dtype.itemsize}").view(dtype.numpy)


NARROW = [d for d in ALL if d.is_float and d.bits <= 16]


@pytest.mark.parametrize("features", SETS)
@pytest.mark.parametrize("flush", [False, True], ids=["", "flush"])
def test_narrow_floats_widen_and_round(features: Features, flush: bool) -> None:
    """Every code, and numbers around every middle between two; with denormals off as well."""
    if flush and features.float_mode is None:
        pytest.skip("no way to switch denormals off is known")
    lanes = features.lanes(32)
    widen = [Case.of(Cast(f32), f32, [codes(d)], lanes) for d in NARROW]
    around = {d: between(d) for d in NARROW if d != f8e8m0}
    rounded = [Case.of(Cast(d, saturate=False), d, [x], lanes) for d, x in around.items()]
    results = run_all([*widen, *rounded], features, flush)
    for case, given in zip([*widen, *rounded], results, strict=True):
        (x,) = case.operands
        with np.errstate(all="ignore"):
            expected = x.astype(case.to.numpy)
        if flush:  # what is denormal as an f32 may be zero
            denormal = np.abs(x.astype(np.float64)) < 2.0**-126
            expected, given = (np.where(denormal, np.zeros_like(a), a) for a in (expected, given))
        assert same(given, expected), f"{x.dtype} to {case.to}"


def between(dtype: DType) -> Array:
    """f32 numbers at, just below and just above the middles between numbers of a type."""
    wide = np.unique(codes(dtype).astype(np.float32))
    wide = wide[np.isfinite(wide)]
    middle = ((wide[1:].astype(np.float64) + wide[:-1]) / 2).astype(np.float32)
    ends = np.array([math.inf, -math.inf, math.nan, 1e38, -1e38], np.float32)
    near = [np.nextafter(middle, np.float32(s * np.inf)) for s in (-1, 1)]
    return np.concatenate([wide, middle, *near, ends])


@pytest.mark.parametrize("features", SETS)
def test_f64_is_rounded_to_f16_once(features: Features) -> None:
    step = 2.0**-10
    middles = 1 + step * (np.arange(64) + 0.5)
    x = np.concatenate(
        [middles, middles + 2.0**-40, middles - 2.0**-40, -middles, [1e300, -65520.0]]
    )
    given = run(Case.of(Cast(f16), f16, [x], features.lanes(64)), features)
    with np.errstate(over="ignore"):
        assert same(given, x.astype(np.float16))


@pytest.mark.parametrize("features", SETS)
def test_bits_read_as_another_type(features: Features) -> None:
    cases = []
    for given in (d for d in ALL if d.kind not in (STRING, COMPLEX)):
        x = codes(given) if given.bits <= 8 and given != boolean else edges(given)
        cases += [
            Case.of(BitCast(to), to, [x], features.lanes(32))
            for to in ALL
            if to.bits == given.bits and to.kind not in (STRING, COMPLEX)
        ]
    for case, given_ in zip(cases, run_all(cases, features), strict=True):
        (x,) = case.operands
        expected = BitCast(case.to).reference(x)
        if is_narrow(from_numpy(x.dtype)):  # their NaNs come out as one NaN
            numbers = ~np.isnan(x.astype(np.float64))
            given_, expected = given_[numbers], expected[numbers]
        assert same(given_, expected), f"{x.dtype} as {case.to}"


def test_memory_holds_what_numpy_holds() -> None:
    for dtype in ALL:
        if dtype.kind not in (STRING, COMPLEX):
            bits = {"float": 32, "double": 64}.get(storage(dtype)) or int(storage(dtype)[1:])
            assert bits == 8 * dtype.itemsize


# Accuracy over whole ranges


def floats(low: float, high: float, count: int) -> Array:
    """f32 numbers of both signs, spread evenly over their bits, between two magnitudes."""
    ends = np.array([low, high], np.float32).view(np.uint32)
    positive = np.linspace(*ends, count).astype(np.uint32).view(np.float32)
    return np.concatenate([positive, -positive])


def spread_out(low: float, high: float, count: int = 100_000) -> Array:
    return np.linspace(low, high, count).astype(np.float32)


TINY, HUGE = 2.0**-126, 3.4e38
RANGES: dict[str, tuple[Array, ...]] = {
    "exp": (spread_out(-86.9, 88.72), floats(TINY, 86.0, 50_000)),
    "log": (np.abs(floats(TINY, HUGE, 50_000)), spread_out(0.5, 2)),
    "sin": (spread_out(-1e4, 1e4), floats(TINY, 1e4, 50_000)),
    "cos": (spread_out(-1e4, 1e4), floats(TINY, 1e4, 50_000)),
    "tanh": (spread_out(-10, 10), floats(TINY, HUGE, 50_000)),
    "erf": (spread_out(-4.5, 4.5, 30_000), floats(TINY, HUGE, 10_000)),
    "sigmoid": (spread_out(-87, 87), floats(TINY, 80.0, 50_000)),
    "silu": (spread_out(-80, 87), floats(2.0**-100, 80.0, 50_000)),
    "tan": (spread_out(-100, 100, 10_000),),
    "asin": (spread_out(-1, 1, 10_000),),
    "acos": (spread_out(-1, 1, 10_000),),
    "atan": (spread_out(-100, 100, 10_000),),
    "sinh": (spread_out(-80, 80, 10_000),),
    "cosh": (spread_out(-80, 80, 10_000),),
    "asinh": (floats(1e-9, 1e9, 5_000),),
    "acosh": (np.abs(floats(1, 1e9, 5_000)),),
    "atanh": (spread_out(-1, 1, 10_000),),
}


@pytest.mark.parametrize("features", SETS)
@pytest.mark.parametrize("name", RANGES)
def test_accuracy(name: str, features: Features, record_property: Any) -> None:
    op = POINTWISE[name]()
    assert isinstance(op, Unary)
    x = np.concatenate(RANGES[name])
    given = run(Case.of(op, f32, [x], features.lanes(32)), features)
    with np.errstate(all="ignore"):
        off = errors(given, op.compute(x.astype(np.float64)))
    worst = int(off.argmax())
    record_property("ulp", float(off[worst]))
    assert off[worst] <= within(name, features), f"{op} of {x[worst]} is {off[worst]:.2f} ulp off"


@pytest.mark.parametrize("features", SETS)
def test_pow(features: Features) -> None:
    generator = np.random.default_rng(0)
    x = generator.uniform(0, 20, 2000).astype(np.float32)
    y = generator.uniform(-9, 9, 2000).astype(np.float32)

    def by_literal(power: float) -> Case:
        def emit(s: LlvmScalars, v: Scalar) -> Scalar:
            return Pow().scalar(s, v, s.constant(power, v.dtype))

        return Case(emit, f32, (x,), features.lanes(32))

    powers = [1.0, 2.0, 3.0, 4.0, 0.5, -1.0]
    cases = [Case.of(Pow(), f32, [x, y], features.lanes(32)), *map(by_literal, powers)]
    results = run_all(cases, features)
    wide = x.astype(np.float64)
    assert errors(results[0], wide ** y.astype(np.float64)).max() <= 1.0
    for power, given in zip(powers, results[1:], strict=True):
        assert errors(given, wide**power).max() <= 1.5


@pytest.mark.parametrize("features", SETS)
@pytest.mark.parametrize("approximate", [False, True], ids=["erf", "tanh"])
def test_gelu_is_precise_relative_to_x(features: Features, approximate: bool) -> None:
    """x times what is left of 1: off by a few units of x, and exactly 0 or x far out."""
    op = Gelu(approximate)
    x = np.concatenate([spread_out(-8, 8), floats(1e-30, 1e30, 2_000)])
    given = run(Case.of(op, f32, [x], features.lanes(32)), features).astype(np.float64)
    wide = x.astype(np.float64)
    assert (np.abs(given - op.compute(wide)) <= 4 * 2.0**-24 * np.abs(wide)).all()
    far = np.abs(wide) > 8
    np.testing.assert_array_equal(given[far], np.maximum(wide[far], 0))


@pytest.mark.parametrize("features", SETS)
def test_tanh_never_exceeds_one(features: Features) -> None:
    near = np.arange(np.float32(7).view(np.uint32), np.float32(10).view(np.uint32), 3, np.uint32)
    x = near.view(np.float32)
    given = run(Case.of(Tanh(), f32, [x], features.lanes(32)), features)
    assert (given <= 1).all()
    assert (given[x > 9.1] == 1).all()


@pytest.mark.parametrize("features", SETS)
def test_large_angles(features: Features) -> None:
    """One lane that is far out takes its whole vector to the C library; the others stay right."""
    x = np.tile(
        np.array([1e4, 10001, 1e8, 3e38, -1e30, 0.5, -2.0, math.inf, math.nan], np.float32), 7
    )
    for op in (Sin(), Cos()):
        for lanes in (0, features.lanes(32)):
            given = run(Case.of(op, f32, [x], lanes), features)
            with np.errstate(invalid="ignore"):
                assert errors(given, op.compute(x.astype(np.float64))).max() <= 2.5


# Quantised numbers


@pytest.mark.parametrize("features", SETS)
def test_quantise_and_back(features: Features) -> None:
    generator = np.random.default_rng(0)
    lanes = features.lanes(32)
    found: list[tuple[Op, Case]] = []
    for to in (d for d in ALL if d.is_integer and d.bits <= 16):
        x = np.concatenate([edges(f32), generator.normal(0, 40, 500).astype(np.float32)])
        scale = generator.uniform(0.01, 2, x.size).astype(np.float32)
        zero = generator.integers(*_range(to), x.size, endpoint=True).astype(to.numpy)
        for precision in (None, f16):
            op = Quantize(to, precision=precision, axis=0)
            found.append((op, Case.of(op, to, [x, scale, zero], lanes)))
        found.append(
            (
                Dequantize(f32, axis=0),
                Case.of(Dequantize(f32), f32, [zero, scale, zero[::-1]], lanes),
            )
        )
        half = scale.astype(np.float16)
        found.append((Dequantize(f16, axis=0), Case.of(Dequantize(f16), f16, [zero, half], lanes)))
    whole = generator.integers(-(2**31), 2**31 - 1, 500).astype(np.int32)
    scale = generator.uniform(0.01, 2, 500).astype(np.float32)
    found.append((Dequantize(f32, axis=0), Case.of(Dequantize(f32), f32, [whole, scale], lanes)))
    for (op, case), given in zip(found, run_all([c for _, c in found], features), strict=True):
        with np.errstate(all="ignore"):
            assert same(given, op.reference(*case.operands)), f"{op} of {case.operands[0].dtype}"


# The builder itself


@pytest.mark.parametrize("features", SETS)
def test_single_numbers_spread_over_lanes(features: Features) -> None:
    """Operands without lanes, literal or not, mix with vectors on either side."""
    x = np.arange(1, 65, dtype=np.float32)

    def emit(s: LlvmScalars, v: Scalar) -> Scalar:
        first = s.lane(v, 0)
        three = s.constant(3.0, f32)
        mixed = s.add(s.mul(three, v), s.mul(first, three))
        chosen = s.select(s.less(v, s.constant(9.0, f32)), s.fma(first, v, three), mixed)
        return s.max(s.constant(-1.0, f32), chosen)

    lanes = features.lanes(32)
    given = run(Case(emit, f32, (x,), lanes), features)
    first = x.reshape(-1, lanes)[:, :1].repeat(lanes, 1).reshape(-1)
    np.testing.assert_array_equal(given, np.where(x < 9, first * x + 3, 3 * x + first * 3))


@pytest.mark.parametrize("features", SETS)
def test_integers_divided_by_literals(features: Features) -> None:
    cases = []
    for dtype in (d for d in ALL if d.is_integer):
        low, high = _range(dtype)
        for divisor in {d for d in (0, 1, 3, 5, -1, -2) if low <= d <= high}:

            def emit(s: LlvmScalars, v: Scalar, divisor: int = divisor) -> Scalar:
                return Div().scalar(s, v, s.constant(divisor, v.dtype))

            cases.append((divisor, Case(emit, dtype, (edges(dtype),), features.lanes(32))))
    for (divisor, case), given in zip(cases, run_all([c for _, c in cases], features), strict=True):
        (x,) = case.operands
        with np.errstate(all="ignore"):
            expected = Div().reference(x, np.full_like(x, divisor))
        assert same(given, expected), f"{x.dtype} / {divisor}"


def test_gathered_lanes_and_narrow_intermediates() -> None:
    features = host_features()
    lanes = features.lanes(32)

    def turned(s: LlvmScalars, v: Scalar) -> Scalar:
        return s.gathered([s.lane(v, lanes - 1 - k) for k in range(lanes)])

    x = np.arange(4 * lanes, dtype=np.float32)
    given = run(Case(turned, f32, (x,), lanes), features)
    np.testing.assert_array_equal(given, x.reshape(-1, lanes)[:, ::-1].reshape(-1))

    def twice(s: LlvmScalars, v: Scalar) -> Scalar:
        """f16 stays f32 between ops: 60000 + 60000 is no infinity until it is stored."""
        return Mul().scalar(s, Add().scalar(s, v, v), s.constant(0.5, f16))

    big = np.full(lanes, 60000, np.float16)
    np.testing.assert_array_equal(run(Case(twice, f16, (big,), lanes), features), big)
