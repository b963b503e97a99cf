"""Elementwise ops as native code: every op, element type and instruction set of this host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.module.features import Features, host_features
from monograph.ir import Array, DType, Op, Sample, from_numpy
from monograph.ir.dtype import ALL, COMPLEX, STRING, bf16, boolean, f16, f32, f64, i8, i32
from monograph.ops import OPS
from monograph.ops.base import Binary, Comparison, Predicate, Unary
from monograph.ops.composite import Gelu
from monograph.ops.elementwise import Add, Cos, Div, Mul, Pow, Sin, Tanh, Where
from monograph.ops.quant import Dequantize, Quantize, spread
from monograph.ops.scalar import Scalar, is_pointwise
from tests.cpu.emit.scalar_kernels import Case, instruction_sets, run, run_all
from tests.cpu.emit.scalar_values import NUMBERS, edges, errors, floats, limits, same, spread_out
from tests.samples import make_input

SETS = [pytest.param(f, id=f.name) for f in instruction_sets()]
POINTWISE = {name: op for name, op in OPS.items() if is_pointwise(op)}
BOUNDS: dict[str, float] = {
    "exp": 1.5,
    "log": 1.0,
    "sin": 2.5,
    "cos": 2.5,
    "tanh": 3.0,
    "erf": 5.5,
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
WITHOUT_FMA = {"erf": 7.0}
F64_BOUND = 4.0
"""Both sides come from libraries that are right to a few units."""


def within(name: str, features: Features) -> float:
    fused = "fma" in features.flags
    return BOUNDS[name] if fused else WITHOUT_FMA.get(name, BOUNDS[name])


def check(name: str, case: Case, given: Array, op: Op, features: Features) -> None:
    """A result against the reference: equal, or within the bound of the op."""
    with np.errstate(all="ignore"):
        expected = op.reference(*case.operands)
    where = f"{op} of {[str(x.dtype) for x in case.operands]} in {case.lanes} lanes"
    # Of two zeros either may be taken, and without a NaN some zero stands for it.
    if case.to.is_float and case.to.bits >= 8 and name not in ("min", "max", "clip"):
        zeros = (given == 0) & (expected == 0)
        signs = np.signbit(given.astype(np.float64)) == np.signbit(expected.astype(np.float64))
        assert signs[zeros].all(), f"{where}: the sign of a zero differs"
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


# Accuracy over whole ranges


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
    "tan": (spread_out(-100, 100, 10_000), floats(TINY, 2e5, 10_000), floats(1e3, 1e9, 1_000)),
    "asin": (spread_out(-1, 1, 10_000), floats(TINY, 1.0, 10_000)),
    "acos": (spread_out(-1, 1, 10_000), floats(TINY, 1.0, 10_000)),
    "atan": (spread_out(-100, 100, 10_000), floats(TINY, HUGE, 10_000)),
    "sinh": (spread_out(-80, 80, 10_000), floats(TINY, 88.0, 10_000)),
    "cosh": (spread_out(-80, 80, 10_000), floats(TINY, 88.0, 10_000)),
    "asinh": (floats(TINY, HUGE, 20_000), floats(2.0**-14, 2.0**-10, 5_000)),
    "acosh": (np.abs(floats(1, HUGE, 10_000)), spread_out(1, 1.001, 10_000)),
    "atanh": (spread_out(-1, 1, 10_000), floats(TINY, 1.0, 10_000)),
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
def test_accuracy_of_powers(features: Features) -> None:
    rng = np.random.default_rng(5)
    x = np.exp(rng.uniform(-80, 80, 20_000)).astype(np.float32)
    x = np.concatenate([x, spread_out(0.9, 1.1, 5_000), floats(TINY, HUGE, 5_000)])
    most = 85 / np.maximum(np.abs(np.log(np.abs(x.astype(np.float64)))), 1e-4)
    y = (rng.uniform(-1, 1, len(x)) * most).astype(np.float32)
    y[::3] = np.rint(y[::3])
    given = run(Case.of(Pow(), f32, [x, y], features.lanes(32)), features)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    off = errors(given, exact)
    worst = int(off.argmax())
    assert off[worst] <= within("pow", features), f"{x[worst]} ** {y[worst]} is {given[worst]}"


@pytest.mark.parametrize("features", SETS)
def test_accuracy_of_wide_tanh(features: Features) -> None:
    near = -np.geomspace(1e-9, 1, 2_000)
    wide = [np.linspace(-25, 25, 20_001), np.geomspace(1e-300, 1e300, 2_000), near]
    x = np.concatenate([*wide, [0.0, -0.0, np.inf, -np.inf, np.nan]])
    given = run(Case.of(Tanh(), f64, [x], features.lanes(64)), features)
    assert errors(given, np.tanh(x)).max() <= F64_BOUND
    assert np.array_equal(np.signbit(given[-5:-3]), [False, True])
    assert np.array_equal(given[-3:], [1.0, -1.0, np.nan], equal_nan=True)


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
    """Off by a few units of x, and exactly 0 or x far out."""
    op = Gelu(approximate)
    x = np.concatenate([spread_out(-8, 8), floats(1e-30, 1e30, 2_000)])
    given = run(Case.of(op, f32, [x], features.lanes(32)), features).astype(np.float64)
    wide = x.astype(np.float64)
    assert (np.abs(given - op.compute(wide)) <= 4 * 2.0**-24 * np.abs(wide)).all()
    far = np.abs(wide) > 14
    np.testing.assert_array_equal(given[far], np.maximum(wide[far], 0))


def _without_cancelling(x: Array, approximate: bool) -> Array:
    """GELU where 1 and its counterpart of nearly -1 do not meet."""
    if not approximate:
        return np.array([v * math.erfc(-v / math.sqrt(2)) / 2 for v in x])
    return np.asarray(x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


@pytest.mark.parametrize("features", SETS)
@pytest.mark.parametrize(("approximate", "near", "off"), [(False, 1e-4, 2e-3), (True, 1e-5, 1e-5)])
def test_gelu_does_not_cancel(
    features: Features, approximate: bool, near: float, off: float
) -> None:
    """Relative to itself: to -4, and where it is 10^-4 and less."""
    x = spread_out(-6, 6)
    given = run(Case.of(Gelu(approximate), f32, [x], features.lanes(32)), features)
    expected = _without_cancelling(x.astype(np.float64), approximate)
    np.testing.assert_allclose(given[x >= -4], expected[x >= -4], near, 1e-37)
    np.testing.assert_allclose(given, expected, off, 1e-37)


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
        low, high = limits(dtype)
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
