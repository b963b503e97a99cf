"""Pools: values by hand, padding, ceil, symbols, indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Graph, Input, TensorType, constant, evaluate
from monograph.ir.dtype import f32
from monograph.ops.deferred import deferred
from monograph.ops.pool import ArgMaxPool, AveragePool, LpPool, MaxPool, MaxUnpool
from monograph.ops.window import SAME_LOWER, SAME_UPPER
from tests.ops.windows import apply, typed

LINE = np.array([[[3, 1, 4, 1, 5]]], np.float32)


def line(kernel: int, **changes: Any) -> dict[str, Any]:
    fields = {"strides": (1,), "pads_begin": (0,), "pads_end": (0,), "dilations": (1,)}
    return {"kernel": (kernel,), **fields, **changes}


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (MaxPool(**line(2)), [3, 4, 4, 5]),
        (MaxPool(**line(2, strides=(2,))), [3, 4]),
        (MaxPool(**line(2, strides=(2,), ceil=True)), [3, 4, 5]),
        (MaxPool(**line(2, dilations=(2,))), [4, 1, 5]),
        (MaxPool(**line(3, strides=(2,), pads_begin=(1,), pads_end=(1,))), [3, 4, 5]),
        (MaxPool(**line(2, strides=(2,), auto=SAME_UPPER)), [3, 4, 5]),
        (MaxPool(**line(2, strides=(2,), auto=SAME_LOWER)), [3, 4, 5]),
        (AveragePool(**line(2)), [2, 2.5, 2.5, 3]),
        (AveragePool(**line(2, pads_begin=(1,))), [3, 2, 2.5, 2.5, 3]),
        (AveragePool(**line(2, pads_begin=(1,), include_pad=True)), [1.5, 2, 2.5, 2.5, 3]),
        (AveragePool(**line(2, strides=(2,), ceil=True)), [2, 2.5, 5]),
        # The place beyond the declared padding counts in no case.
        (AveragePool(**line(2, strides=(2,), ceil=True, include_pad=True)), [2, 2.5, 5]),
        (AveragePool(**line(3, strides=(3,), pads_end=(1,), include_pad=True)), [8 / 3, 2]),
        (LpPool(**line(2, p=1)), [4, 5, 5, 6]),
        (LpPool(**line(2, strides=(2,))), [10**0.5, 17**0.5]),
    ],
)  # fmt: skip
def test_pools_of_a_line(op: Any, expected: list[float]) -> None:
    np.testing.assert_allclose(apply(op, LINE).reshape(-1), expected, rtol=1e-6)


def test_a_last_window_that_would_start_in_the_padding_is_dropped() -> None:
    op = MaxPool(**line(1, strides=(2,), pads_end=(1,), ceil=True))
    assert apply(op, np.arange(2, dtype=np.float32).reshape(1, 1, 2)).tolist() == [[[0]]]


def test_max_takes_the_lowest_numbers_of_every_type() -> None:
    op = MaxPool(**line(2, pads_begin=(1,)))
    for kind, low in ((np.int8, -128), (np.uint8, 0), (np.float16, -np.inf), (np.float32, -5)):
        x = np.full((1, 1, 2), low, kind)
        result = apply(op, x)
        assert result.dtype == kind
        assert result.tolist() == [[[low, low]]]
    assert np.isnan(apply(op, [[[1.0, np.nan]]])).tolist() == [[[False, True]]]


def test_two_axes_against_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 7, 6)).astype(np.float32)
    window = {"kernel": (3, 2), "strides": (2, 1), "pads_begin": (1, 0), "pads_end": (1, 1)}
    op = MaxPool(**window, dilations=(1, 2))
    y, places = apply(op, x), apply(ArgMaxPool(**window, dilations=(1, 2)), x)
    for n, c, i, j in np.ndindex(*y.shape):
        rows = [r for r in (2 * i - 1 + k for k in range(3)) if 0 <= r < 7]
        columns = [s for s in (j + 2 * k for k in range(2)) if 0 <= s < 6]
        inside = [(x[n, c, r, s], ((n * 3 + c) * 7 + r) * 6 + s) for r in rows for s in columns]
        assert (y[n, c, i, j], places[n, c, i, j]) == max(inside)


def test_places_of_the_first_among_equals_and_column_major() -> None:
    x = np.array([[[[7, 7, 0], [7, 7, 9]]]], np.float32)
    window = {"kernel": (2, 2), "strides": (1, 1), "pads_begin": (0, 0), "pads_end": (0, 0)}
    assert apply(ArgMaxPool(**window, dilations=(1, 1)), x).tolist() == [[[[0, 5]]]]
    by_column = ArgMaxPool(**window, dilations=(1, 1), column_major=True)
    assert apply(by_column, x).tolist() == [[[[0, 5]]]]
    x[0, 0, 0, 2] = 10
    assert apply(by_column, x).tolist() == [[[[0, 4]]]]


def test_places_never_lie_in_the_padding() -> None:
    op = ArgMaxPool(**line(2, pads_begin=(1,)))
    assert apply(op, np.full((1, 2, 2), -np.inf, np.float32)).tolist() == [[[0, 0], [2, 2]]]
    assert apply(op, np.zeros((1, 1, 2), np.uint8)).tolist() == [[[0, 0]]]
    assert apply(op, [[[1.0, np.nan]]]).tolist() == [[[0, 1]]]


def test_a_window_of_padding_has_the_first_place_of_its_plane() -> None:
    """Along the second axis, both taps of a dilated window lie beyond the image."""
    op = ArgMaxPool((1, 2), (1, 1), (0, 1), (0, 1), (1, 2))
    assert apply(op, np.ones((1, 2, 3, 1), np.float32)).tolist() == [[[[0]] * 3, [[3]] * 3]]


def test_symbols() -> None:
    assert typed(MaxPool(**line(3, pads_begin=(1,), pads_end=(1,))), "f32 N C L").tensor.shape == (
        "N", "C", "L",
    )  # fmt: skip
    open_ended = MaxPool(**line(2, strides=(2,), auto=SAME_UPPER))
    value = typed(open_ended, "f32 N 3 L")
    assert value.op == open_ended
    (y,) = evaluate(Graph(value.inputs, (("y", value),)), [LINE])
    assert y.tolist() == [[[3, 4, 5]]]


@pytest.mark.parametrize(
    ("op", "x", "message"),
    [
        (MaxPool(**line(0)), "f32 1 1 5", "a window is empty"),
        (MaxPool(**line(6)), "f32 1 1 5", "a window is larger than the padded input"),
        (MaxPool(**line(2)), "f32 1 1 5 5", "a pool takes"),
        (MaxPool(**line(2)), "bool 1 1 5", "element type not accepted"),
        (AveragePool(**line(2)), "i32 1 1 5", "element type not accepted"),
        (LpPool(**line(2, p=0)), "f32 1 1 5", "the order of a norm"),
    ],
)
def test_pools_refuse(op: Any, x: str, message: str) -> None:
    with pytest.raises(InferError, match=message):
        typed(op, x)


UNPOOL = {"kernel": (2,), "strides": (2,), "pads_begin": (0,), "pads_end": (0,)}


def test_unpool_puts_elements_back() -> None:
    x, places = np.array([[[5, 6]]], np.float32), np.array([[[1, 2]]])
    assert apply(MaxUnpool(**UNPOOL), x, places).tolist() == [[[0, 5, 6, 0]]]
    assert apply(MaxUnpool(**UNPOOL, sizes=(1, 1, 5)), x, places).tolist() == [[[0, 5, 6, 0, 0]]]
    assert typed(MaxUnpool(**UNPOOL), "f32 N 1 3", "i64 N 1 3").tensor.shape == ("N", 1, 6)


def test_unpool_with_a_size_known_late() -> None:
    x, places = Input("x", TensorType(f32, (1, 1, 2)))(), constant(np.array([[[1, 2]]]))
    size = Input("size", constant(np.array([1, 1, 5])).type)()
    value = deferred(MaxUnpool, (x, places), {"sizes": size}, **UNPOOL)
    assert value.tensor.rank == 3
    data = [np.array([[[5, 6]]], np.float32), np.array([1, 1, 3])]
    (y,) = evaluate(Graph((x, size), (("y", value),)), data)
    assert y.tolist() == [[[0, 5, 6]]]


def test_unpool_refuses_places_out_of_range() -> None:
    x = np.array([[[5, 6]]], np.float32)
    with pytest.raises(ExecutionError, match="index out of range"):
        apply(MaxUnpool(**UNPOOL), x, np.array([[[1, 4]]]))
    with pytest.raises(InferError, match="indices are 64-bit integers"):
        apply(MaxUnpool(**UNPOOL), x, np.array([[[1, 3]]], np.int32))
