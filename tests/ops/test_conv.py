"""Convolutions: by their definition, with symbols, exactly on integers, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Graph, Input, TensorType, evaluate
from monograph.ir.dtype import f32, i32
from monograph.ops import conv as conv_module
from monograph.ops.conv import Conv, DeformConv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.window import SAME_LOWER, SAME_UPPER
from tests.ops.windows import apply, naive_conv, typed

PLAIN = Conv((1, 1), (0, 0), (0, 0), (1, 1))


def window(n: int, **changes: Any) -> dict[str, Any]:
    fields = {"strides": (1,) * n, "pads_begin": (0,) * n, "pads_end": (0,) * n}
    return {**fields, "dilations": (1,) * n, **changes}


@pytest.mark.parametrize(
    ("x", "w", "strides", "begin", "end", "dilations", "groups"),
    [
        ((2, 3, 6), (4, 3, 3), (2,), (1,), (2,), (1,), 1),
        ((1, 4, 5, 6), (6, 2, 3, 2), (1, 2), (1, 0), (0, 1), (2, 1), 2),
        ((1, 3, 5, 5), (6, 1, 3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 3),
        ((1, 2, 3, 4, 3), (3, 2, 2, 2, 2), (1, 1, 2), (0, 1, 0), (1, 0, 0), (1, 2, 1), 1),
        ((2, 3, 4, 4), (5, 3, 1, 1), (1, 1), (0, 0), (0, 0), (1, 1), 1),
    ],
)  # fmt: skip
def test_conv_follows_its_definition(
    x: Any, w: Any, strides: Any, begin: Any, end: Any, dilations: Any, groups: int
) -> None:
    rng = np.random.default_rng(0)
    data, weights = (rng.normal(size=s).astype(np.float32) for s in (x, w))
    expected = naive_conv(data, weights, strides, begin, end, dilations, groups)
    result = apply(Conv(strides, begin, end, dilations, groups), data, weights)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_a_large_conv_is_done_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(2, 3, 9, 5)), rng.normal(size=(4, 3, 3, 3))
    whole = apply(PLAIN, x, w)
    monkeypatch.setattr(conv_module, "COLUMN_ELEMENTS", 100)
    np.testing.assert_array_equal(apply(PLAIN, x, w), whole)


@pytest.mark.parametrize(("auto", "begin", "end"), [(SAME_UPPER, 0, 1), (SAME_LOWER, 1, 0)])
def test_automatic_padding_resolves_with_the_size(auto: str, begin: int, end: int) -> None:
    op = Conv(**window(1, strides=(2,), auto=auto))
    value = typed(op, "f32 1 1 5", "f32 1 1 2")
    assert value.op == Conv(**window(1, strides=(2,), pads_begin=(begin,), pads_end=(end,)))
    assert value.tensor.shape == (1, 1, 3)
    np.testing.assert_array_equal(
        apply(op, [[[1.0, 2, 3, 4, 5]]], [[[10.0, 1]]]),
        [[[12, 34, 50]]] if auto == SAME_UPPER else [[[1, 23, 45]]],
    )


def test_automatic_padding_of_an_unknown_size_waits_for_the_data() -> None:
    op = Conv(**window(1, strides=(2,), auto=SAME_UPPER))
    x = Input("x", TensorType(f32, (1, 1, "L")))()
    w = Input("w", TensorType(f32, (1, 1, 2)))()
    value = op(x, w)
    assert value.op == op
    graph = Graph((x, w), (("y", value),))
    weights = np.array([[[10, 1]]], np.float32)
    for length, expected in ((4, [1, 23]), (5, [1, 23, 40])):
        data = np.arange(length, dtype=np.float32).reshape(1, 1, -1)
        (y,) = evaluate(graph, [data, weights])
        assert y.reshape(-1).tolist() == expected


def test_symbols_survive_where_the_size_does_not_change() -> None:
    padded = Conv(**window(2, pads_begin=(1, 1), pads_end=(1, 1)))
    assert typed(padded, "f32 N 3 H W", "f32 8 3 3 3").tensor.shape == ("N", 8, "H", "W")
    same = Conv(**window(2, auto=SAME_UPPER))
    value = typed(same, "f32 N 3 H W", "f32 8 3 3 4")
    assert value.tensor.shape == ("N", 8, "H", "W")
    assert value.op == Conv(**window(2, pads_begin=(1, 1), pads_end=(1, 2)))
    strided = typed(Conv(**window(2, strides=(2, 1))), "f32 N 3 H 9", "f32 8 3 3 3").tensor
    assert isinstance(strided.dims[2], str)
    assert strided.dims[2] not in ("H", "N")
    assert (*strided.dims[:2], strided.dims[3]) == ("N", 8, 7)


def test_integers_accumulate_exactly() -> None:
    x, w = np.full((1, 4, 3, 3), 255, np.uint8), np.full((1, 4, 3, 3), -128, np.int8)
    assert apply(Conv(**window(2, out=i32)), x, w).item() == -255 * 128 * 36
    big = np.full((1, 1, 2), 2**31 - 1, np.int32)
    # Beyond f64's whole numbers, and wrapping as 32-bit integers do.
    expected = np.int64(2 * (2**31 - 1) ** 2).astype(np.int32)
    assert apply(Conv(**window(1)), big, big).item() == expected


def test_out_that_says_nothing_is_dropped() -> None:
    assert typed(Conv(**window(1, out=f32)), "f32 1 1 3", "f32 1 1 3").op == Conv(**window(1))


@pytest.mark.parametrize(
    ("fields", "x", "w", "message"),
    [
        ({"strides": (0, 1)}, "f32 1 3 5 5", "f32 2 3 3 3", "strides: a number is too small"),
        ({"pads_end": (0, -1)}, "f32 1 3 5 5", "f32 2 3 3 3", "pads_end: a number is too small"),
        ({"dilations": (1,)}, "f32 1 3 5 5", "f32 2 3 3 3", "dilations: one number a spatial axis"),
        ({}, "f32 1 3 5 5", "f32 2 2 3 3", "channels do not fit the weights"),
        ({"groups": 0}, "f32 1 3 5 5", "f32 2 3 3 3", "channels do not fit the weights"),
        ({"groups": 3}, "f32 1 3 5 5", "f32 2 1 3 3", "results do not divide into groups"),
        ({}, "f32 1 3 2 5", "f32 2 3 3 3", r"padded input[\s\S]*at most 2"),
        ({}, "f32 1 3 5 5", "f32 2 3 0 3", "a window is empty"),
        ({}, "f32 1 3 5 5", "f32 2 3 3", "the same rank"),
        ({}, "f32 1 3 5 5", "f16 2 3 3 3", "different element types"),
        ({"out": f32}, "u8 1 3 5 5", "u8 2 3 3 3", "floats and integers are mixed"),
        ({"auto": "valid"}, "f32 1 3 5 S", "f32 2 3 3 3", "unknown padding mode"),
    ],
)  # fmt: skip
def test_conv_refuses(fields: Any, x: str, w: str, message: str) -> None:
    with pytest.raises(InferError, match=message):
        typed(Conv(**window(2, **fields)), x, w)


def test_channels_that_only_the_data_shows_to_be_wrong() -> None:
    x, w = Input("x", TensorType(f32, (1, "C", 3)))(), Input("w", TensorType(f32, (1, 2, 1)))()
    graph = Graph((x, w), (("y", Conv(**window(1))(x, w)),))
    with pytest.raises(ExecutionError, match="channels do not fit"):
        evaluate(graph, [np.zeros((1, 3, 3), np.float32), np.zeros((1, 2, 1), np.float32)])


def test_padding_far_larger_than_the_data() -> None:
    far = 10**9
    op = Conv(**window(1, strides=(far,), dilations=(far,), pads_begin=(far,), pads_end=(far,)))
    with pytest.raises(ExecutionError, match="the padding is far larger than the data"):
        apply(op, [[[1.0]]], [[[1.0, 2.0]]])
    back = transposed(1, strides=(far,), pads_begin=(far,))
    with pytest.raises(ExecutionError, match="the padding is far larger than the data"):
        apply(back, [[[1.0, 2.0]]], [[[1.0]]])


def test_padding_that_no_window_reads_is_not_built() -> None:
    far = 10**9
    op = Conv(**window(1, strides=(far,), pads_begin=(far,), pads_end=(far,)))
    assert apply(op, [[[3.0]]], [[[2.0]]]).tolist() == [[[0, 6, 0]]]


@pytest.mark.parametrize("pads", [(0, 0), (3, 1), (7, 12)])
@pytest.mark.parametrize("stride", [2, 3, 5, 9])
def test_strides_beyond_the_kernel(stride: int, pads: tuple[int, int]) -> None:
    """Elements between two windows make no difference."""
    rng = np.random.default_rng([stride, *pads])
    x, w = rng.normal(size=(2, 3, 8)), rng.normal(size=(4, 3, 2))
    fields = {"dilations": (2,), "pads_begin": pads[:1], "pads_end": pads[1:]}
    every = apply(Conv(**window(1, **fields)), x, w)
    strided = apply(Conv(**window(1, strides=(stride,), **fields)), x, w)
    np.testing.assert_array_equal(strided, every[..., ::stride])


def transposed(n: int, **changes: Any) -> ConvTranspose:
    return ConvTranspose(**window(n, output_padding=(0,) * n, **changes))


def test_transpose_spreads_the_kernel() -> None:
    result = apply(transposed(1, strides=(2,)), [[[1.0, 2, 3]]], [[[1.0, 10, 100]]])
    assert result.tolist() == [[[1, 10, 102, 20, 203, 30, 300]]]
    cropped = transposed(1, strides=(2,), pads_begin=(1,), pads_end=(2,), dilations=(2,))
    result = apply(cropped, [[[1.0, 2, 3]]], [[[1.0, 10, 100]]])
    assert result.tolist() == [[[0, 12, 0, 123, 0, 230]]]


def test_transpose_is_the_adjoint_of_conv() -> None:
    """<conv(x, w), y> = <x, conv_transpose(y, w)>, with groups, strides and dilations."""
    rng = np.random.default_rng(2)
    fields = window(2, strides=(2, 1), pads_begin=(1, 0), pads_end=(1, 1), dilations=(1, 2))
    x, w = rng.normal(size=(2, 4, 5, 6)), rng.normal(size=(6, 2, 3, 2))
    forward = apply(Conv(**fields, groups=2), x, w)
    y = rng.normal(size=forward.shape)
    back = apply(ConvTranspose(**fields, output_padding=(0, 0), groups=2), y, w)
    assert back.shape == x.shape
    np.testing.assert_allclose(np.sum(forward * y), np.sum(x * back), rtol=1e-5)


def test_transpose_takes_its_padding_from_the_size_of_the_result() -> None:
    x, w = [[[1.0, 2]]], [[[1.0, 10, 100]]]
    assert apply(transposed(1, strides=(2,), sizes=(4,)), x, w).tolist() == [[[10, 102, 20, 200]]]
    upper = transposed(1, strides=(2,), sizes=(4,), auto=SAME_UPPER)
    assert apply(upper, x, w).tolist() == [[[1, 10, 102, 20]]]
    assert apply(transposed(1, strides=(2,), sizes=(7,)), x, w).tolist() == [
        [[1, 10, 102, 20, 200, 0, 0]]
    ]
    same = transposed(1, strides=(2,), auto=SAME_UPPER)
    assert apply(same, x, w).tolist() == [[[1, 10, 102, 20]]]
    assert typed(same, "f32 1 1 L", "f32 1 1 3").op == same
    assert typed(transposed(1, sizes=(4,)), "f32 1 1 L", "f32 1 2 3").tensor.shape == (1, 2, 4)


@pytest.mark.parametrize(
    ("fields", "x", "w", "message"),
    [
        ({}, "f32 1 3 5", "f32 2 3 3", "channels do not fit the weights"),
        ({"groups": 2}, "f32 1 3 5", "f32 3 3 3", "channels do not divide into groups"),
        ({"sizes": (3, 3)}, "f32 1 3 5", "f32 3 3 3", "sizes: one number a spatial axis"),
        ({}, "i32 1 3 5", "i32 3 3 3", "element type not accepted"),
    ],
)  # fmt: skip
def test_transpose_refuses(fields: Any, x: str, w: str, message: str) -> None:
    with pytest.raises(InferError, match=message):
        typed(transposed(1, **fields), x, w)


def test_deformable_without_offsets_is_a_convolution() -> None:
    rng = np.random.default_rng(3)
    fields = window(2, strides=(2, 1), pads_begin=(1, 0), pads_end=(1, 1), dilations=(1, 2))
    x, w = rng.normal(size=(2, 4, 5, 6)), rng.normal(size=(6, 2, 3, 2))
    plain = apply(Conv(**fields, groups=2), x, w)
    offset = np.zeros((2, 2 * 6 * 2, *plain.shape[2:]))
    op = DeformConv(**fields, groups=2, offset_groups=2)
    np.testing.assert_allclose(apply(op, x, w, offset), plain, rtol=1e-5, atol=1e-5)
    half = np.full((2, 2 * 6, *plain.shape[2:]), 0.5)
    np.testing.assert_allclose(apply(op, x, w, offset, half), plain / 2, rtol=1e-5, atol=1e-5)


def test_deformable_reads_between_elements_and_zeros_beyond() -> None:
    x, w = [[[[1.0, 2], [4, 8]]]], [[[[1.0]]]]
    offset = np.zeros((1, 2, 2, 2), np.float32)
    offset[0, :, 0, 0] = (0.5, 0.5)
    offset[0, :, 1, 1] = (0.0, 0.25)
    offset[0, :, 0, 1] = (-3.0, np.inf)
    result = apply(DeformConv(**window(2)), x, w, offset)
    assert result.tolist() == [[[[3.75, 0], [4, 6]]]]


def test_deformable_refuses_offsets_that_do_not_fit() -> None:
    op = DeformConv(**window(2))
    with pytest.raises(InferError, match="offset has the wrong number of channels"):
        typed(op, "f32 1 2 4 4", "f32 3 2 2 2", "f32 1 4 3 3")
    with pytest.raises(InferError, match="one offset a place of the result"):
        typed(op, "f32 1 2 4 4", "f32 3 2 2 2", "f32 1 8 4 3")
    with pytest.raises(InferError, match="mask has the wrong number of channels"):
        typed(op, "f32 1 2 4 4", "f32 3 2 2 2", "f32 1 8 3 3", "f32 1 8 3 3")
