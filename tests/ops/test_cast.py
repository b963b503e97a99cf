"""Conversions between element types, against values worked out by hand."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Graph, Input, constant, dtype, evaluate, tensor
from monograph.ops.cast import BitCast, Cast

INF, NAN = float("inf"), float("nan")


def cast(data: Any, to: str, **options: Any) -> np.ndarray:
    value = Cast(dtype(to), **options)(constant(np.asarray(data)))
    (result,) = evaluate(Graph((), (("y", value),)), {})
    assert result.dtype == dtype(to).numpy
    return result


def floats(data: list[float]) -> np.ndarray:
    return np.array(data, np.float32)


def same(given: np.ndarray, expected: list[float]) -> None:
    """Equal as floats, signs of zeros included."""
    wide = given.astype(np.float64)
    np.testing.assert_array_equal(wide, expected)
    numbers = ~np.isnan(wide)
    np.testing.assert_array_equal(np.signbit(wide)[numbers], np.signbit(expected)[numbers])


LIMITS = {"f8e4m3fn": 448.0, "f8e4m3fnuz": 240.0, "f8e5m2": 57344.0, "f8e5m2fnuz": 57344.0}


@pytest.mark.parametrize("kind", LIMITS)
def test_fp8_saturates(kind: str) -> None:
    limit = LIMITS[kind]
    zero = 0.0 if kind.endswith("uz") else -0.0
    given = floats([INF, -INF, NAN, 1e9, -1e9, 0.0, -0.0, limit, 1.0625])
    same(cast(given, kind), [limit, -limit, NAN, limit, -limit, 0.0, zero, limit, 1.0])


@pytest.mark.parametrize("kind", LIMITS)
def test_fp8_does_not_saturate_when_told(kind: str) -> None:
    beyond = INF if kind == "f8e5m2" else NAN
    result = cast(floats([INF, -INF, NAN, 1e9, -1e9]), kind, saturate=False)
    same(result, [beyond, -beyond, NAN, beyond, -beyond])


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("up", [2.0**-127, 1.0, 2.0, 2.0, 4.0, 2.0**127]),
        ("down", [2.0**-127, 1.0, 1.0, 1.0, 2.0, 2.0**127]),
        ("nearest", [2.0**-127, 1.0, 1.0, 2.0, 4.0, 2.0**127]),
    ],
)
def test_powers_of_two_round_as_asked(rounding: str, expected: list[float]) -> None:
    given = floats([0.0, 1.0, 1.49, 1.5, 3.0, INF])
    same(cast(given, "f8e8m0", rounding=rounding), expected)
    same(cast(floats([-1.0, NAN]), "f8e8m0", rounding=rounding), [NAN, NAN])


def test_powers_of_two_out_of_range_are_nan_unless_saturated() -> None:
    given = np.array([0.0, INF, 1e39, 1e-39, 2.0])
    same(cast(given, "f8e8m0", saturate=False, rounding="nearest"), [NAN, NAN, NAN, NAN, 2.0])


def test_four_bit_floats_saturate_and_round_to_even() -> None:
    same(cast(floats([0.25, 0.75, 2.5, 5.0, 9.0, -INF]), "f4e2m1"), [0.0, 1.0, 2.0, 4.0, 6.0, -6.0])


def test_floats_become_integers_towards_zero() -> None:
    assert cast(floats([1.9, -1.9, 0.5, -0.5]), "i32").tolist() == [1, -1, 0, 0]
    assert cast(np.array([1.8e19, 3.0]), "u64").tolist() == [18000000000000000000, 3]
    assert cast(np.array([2.0**62], np.float64), "i64").tolist() == [2**62]


def test_integers_keep_their_low_bits() -> None:
    assert cast(np.array([200, -129, 256], np.int16), "i8").tolist() == [-56, 127, 0]
    assert cast(np.array([-1], np.int8), "u32").tolist() == [2**32 - 1]
    assert cast(np.array([-9, 8, 15, -1], np.int32), "i4").astype(int).tolist() == [7, -8, -1, -1]
    assert cast(np.array([-1, 17], np.int32), "u4").astype(int).tolist() == [15, 1]
    assert cast(np.array([2, -3, 1], np.int8), "i2").astype(int).tolist() == [-2, 1, 1]
    assert cast(np.array([5, -1], np.int8), "u2").astype(int).tolist() == [1, 3]


def test_bool_is_what_is_not_zero() -> None:
    assert cast(floats([0.0, -0.0, 0.1, NAN]), "bool").tolist() == [False, False, True, True]
    assert cast(np.array([0, 36], np.int8), "bool").tolist() == [False, True]
    assert cast(np.array([True, False]), "f16").tolist() == [1.0, 0.0]


def test_overflowing_floats_are_infinite() -> None:
    assert cast(floats([1e6, -1e6]), "f16").tolist() == [INF, -INF]


def test_numbers_are_written_shortly() -> None:
    given = floats([1.0, 0.1, -2.5, 1e-7, 1e30, INF, -INF, NAN, 0.47892547])
    expected = ["1", "0.1", "-2.5", "1e-07", "1e+30", "INF", "-INF", "NaN", "0.47892547"]
    assert cast(given, "str").tolist() == expected
    assert cast(np.array([-5, 2**62]), "str").tolist() == ["-5", str(2**62)]
    assert cast(np.array([True, False]), "str").tolist() == ["1", "0"]
    assert cast(np.array(0.5, ml_dtypes.bfloat16), "str").tolist() == "0.5"


def test_numbers_are_read() -> None:
    texts = np.array(["1.5", "+INF", "-inf", "nan", "1E3", " 7 "], object)
    np.testing.assert_array_equal(cast(texts, "f32"), [1.5, INF, -INF, NAN, 1000.0, 7.0])
    whole = np.array(["9223372036854775807", "100.5", "-3"], object)
    assert cast(whole, "i64").tolist() == [2**63 - 1, 100, -3]
    assert cast(np.array([["18446744073709551615"]], object), "u64").tolist() == [[2**64 - 1]]


@pytest.mark.parametrize("text", ["Hello", "", "1_000", "INF"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ExecutionError, match="not a number"):
        cast(np.array([text], object), "i32")


@pytest.mark.parametrize("text", ["9223372036854775808", "1e300", "9" * 5000])
def test_a_number_that_64_bits_do_not_hold_is_refused(text: str) -> None:
    with pytest.raises(ExecutionError, match=r"too large|not a number") as caught:
        cast(np.array([text], object), "i64")
    assert not caught.value.internal


def test_attributes_that_do_not_matter_are_normalised() -> None:
    x = Input("x", tensor(dtype("f32"), "N"))()
    assert Cast(dtype("f16"), saturate=False, rounding="down")(x) is Cast(dtype("f16"))(x)
    assert Cast(dtype("f8e5m2"), saturate=False)(x) is not Cast(dtype("f8e5m2"))(x)
    assert Cast(dtype("f16"))(x).type == tensor(dtype("f16"), "N")


@pytest.mark.parametrize(
    ("given", "to", "options", "message"),
    [
        ("c64", "f32", {}, "no real value"),
        ("str", "c64", {}, "no text form"),
        ("f32", "f8e8m0", {"rounding": "sideways"}, "no such rounding"),
    ],
)
def test_casts_without_meaning_are_refused(
    given: str, to: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InferError, match=message):
        Cast(dtype(to), **options)(Input("x", tensor(dtype(given), 2))())


def bits(data: np.ndarray, to: str) -> np.ndarray:
    (result,) = evaluate(Graph((), (("y", BitCast(dtype(to))(constant(data))),)), {})
    assert result.dtype == dtype(to).numpy
    return result


def test_bits_are_read_as_another_type() -> None:
    assert bits(floats([1.0, -0.0]), "u32").tolist() == [0x3F800000, 0x80000000]
    assert bits(np.array(0x7C00, np.uint16), "f16").tolist() == INF
    assert bits(np.array([-1, 7], ml_dtypes.int4), "u4").astype(int).tolist() == [15, 7]
    assert bits(np.array([15, 8], ml_dtypes.uint4), "i4").astype(int).tolist() == [-1, -8]
    assert bits(np.array([0, 1, 2], np.uint8), "bool").tolist() == [False, True, True]


def test_bits_of_another_width_are_refused() -> None:
    x = Input("x", tensor(dtype("f32"), 2))()
    with pytest.raises(InferError, match="widths differ"):
        BitCast(dtype("f16"))(x)
    with pytest.raises(InferError, match="no bits"):
        BitCast(dtype("str"))(x)
