"""Element types in native code: conversions, storage, quantised numbers, bit by bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from monograph.codegen.common.types import is_narrow, storage
from monograph.codegen.llvm.module.features import Features
from monograph.ir import Array, DType, Op, from_numpy
from monograph.ir.dtype import ALL, boolean, f8e8m0, f16, f32, f64, i32
from monograph.ops.cast import SATURATING, BitCast, Cast
from monograph.ops.quant import Dequantize, Quantize
from tests.cpu.emit.scalar_kernels import Case, instruction_sets, run, run_all
from tests.cpu.emit.scalar_values import NATIVE, NUMBERS, codes, edges, limits, same

SETS = [pytest.param(f, id=f.name) for f in instruction_sets()]

# Conversions


def convertible(x: Array, to: DType) -> Array:
    """The numbers whose conversion is specified: to an integer, those in its range."""
    given = from_numpy(x.dtype)
    if not given.is_float or not to.is_integer:
        return x
    low, high = limits(to)
    wide = np.trunc(x.astype(np.float64))
    return x[(wide >= max(low, -(2.0**63))) & (wide <= high) & (wide < 2.0**to.bits)]


@pytest.mark.parametrize("features", SETS)
@pytest.mark.parametrize("to", NATIVE, ids=str)
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
            with np.errstate(invalid="ignore"):
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
    for given in NATIVE:
        x = codes(given) if given.bits <= 8 and given != boolean else edges(given)
        cases += [
            Case.of(BitCast(to), to, [x], features.lanes(32))
            for to in NATIVE
            if to.bits == given.bits
        ]
    for case, given_ in zip(cases, run_all(cases, features), strict=True):
        (x,) = case.operands
        expected = BitCast(case.to).reference(x)
        if is_narrow(from_numpy(x.dtype)):  # their NaNs come out as one NaN
            numbers = ~np.isnan(x.astype(np.float64))
            given_, expected = given_[numbers], expected[numbers]
        assert same(given_, expected), f"{x.dtype} as {case.to}"


def test_memory_holds_what_numpy_holds() -> None:
    for dtype in NATIVE:
        bits = {"float": 32, "double": 64}.get(storage(dtype)) or int(storage(dtype)[1:])
        assert bits == 8 * dtype.itemsize


# Quantised numbers


@pytest.mark.parametrize("features", SETS)
def test_quantise_and_back(features: Features) -> None:
    generator = np.random.default_rng(0)
    lanes = features.lanes(32)
    found: list[tuple[Op, Case]] = []
    for to in (d for d in ALL if d.is_integer and d.bits <= 16):
        x = np.concatenate([edges(f32), generator.normal(0, 40, 500).astype(np.float32)])
        scale = generator.uniform(0.01, 2, x.size).astype(np.float32)
        zero = generator.integers(*limits(to), x.size, endpoint=True).astype(to.numpy)
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
