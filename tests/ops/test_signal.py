"""Fourier transforms against their sums, frames, mel filters by hand."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import InferError
from monograph.ir import Graph, Input, TensorType, evaluate
from monograph.ir.dtype import f16, f32, i64
from monograph.ops.deferred import deferred
from monograph.ops.signal import Dft, Frames, MelWeights
from tests.ops.windows import apply, typed


def transform(z: np.ndarray, sign: int) -> np.ndarray:
    """The sum that defines the transform, along the last axis."""
    n = z.shape[-1]
    return z @ np.exp(sign * 2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)


def parts(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1)


def test_dft_is_its_sum() -> None:
    z = np.random.default_rng(0).normal(size=(2, 6, 2)).astype(np.float32)
    numbers = z[..., 0] + 1j * z[..., 1]
    np.testing.assert_allclose(
        apply(Dft(1), z), parts(transform(numbers, -1)), rtol=1e-5, atol=1e-5
    )
    inverse = parts(transform(numbers, 1) / 6)
    np.testing.assert_allclose(apply(Dft(1, inverse=True), z), inverse, rtol=1e-5, atol=1e-5)


def test_dft_of_a_real_signal() -> None:
    x = np.array([1, 2, 3, 4, 5], np.float32).reshape(1, 5, 1)
    full = apply(Dft(1), x)
    assert full.shape == (1, 5, 2)
    side = apply(Dft(1, onesided=True), x)
    np.testing.assert_array_equal(side, full[:, :3])
    back = apply(Dft(1, onesided=True, inverse=True, length=5), side)
    np.testing.assert_allclose(back, x, rtol=1e-6)
    assert apply(Dft(1, onesided=True, inverse=True), side).shape == (1, 4, 1)


def test_dft_cuts_and_fills_to_its_length() -> None:
    x = np.array([1, 2, 3, 4], np.float32).reshape(1, 4, 1)
    filled = np.array([1, 2, 3, 4, 0, 0], np.float32).reshape(1, 6, 1)
    np.testing.assert_array_equal(apply(Dft(1, length=6), x), apply(Dft(1), filled))
    np.testing.assert_array_equal(apply(Dft(1, length=2), x), apply(Dft(1), x[:, :2]))


def test_dft_symbols_and_late_attributes() -> None:
    assert typed(Dft(1), "f32 N L 1").tensor.shape == ("N", "L", 2)
    assert typed(Dft(1, length=8, onesided=True), "f32 N L 1").tensor.shape == ("N", 5, 2)
    x, axis = Input("x", TensorType(f32, ("N", 4, 1)))(), Input("axis", TensorType(i64, ()))()
    value = deferred(Dft, (x,), {"axis": axis})
    assert value.tensor.rank == 3
    data = np.array([1, 2, 3, 4], np.float32).reshape(1, 4, 1)
    (y,) = evaluate(Graph((x, axis), (("y", value),)), [data, np.int64(-2)])
    np.testing.assert_array_equal(y, apply(Dft(1), data))
    length = Input("length", TensorType(i64, ()))()
    value = deferred(Dft, (x,), {"length": length}, axis=1)
    assert (value.tensor.dims[0], value.tensor.dims[2]) == ("N", 2)
    with pytest.raises(InferError, match="a length of 1 or more"):
        evaluate(Graph((x, length), (("y", value),)), [data, np.int64(0)])


@pytest.mark.parametrize(
    ("op", "x", "message"),
    [
        (Dft(1), "f32 2 4 3", "a last dimension of 1"),
        (Dft(2), "f32 2 4 1", "the last axis holds the parts"),
        (Dft(1, onesided=True), "f32 2 4 2", "belongs to a real signal"),
        (Dft(1, onesided=True, inverse=True), "f32 2 4 1", "belongs to a real signal"),
        (Dft(1), "i32 2 4 1", "element type not accepted"),
        (Frames(1, 5, 1), "f32 2 4", "the signal is shorter than a frame"),
        (Frames(1, 2, 0), "f32 2 4", "a length and a step of 1 or more"),
    ],
)
def test_signals_refused(op: Dft | Frames, x: str, message: str) -> None:
    with pytest.raises(InferError, match=message):
        typed(op, x)


def test_frames_overlap_and_drop_the_rest() -> None:
    assert apply(Frames(0, 3, 2), np.arange(6)).tolist() == [[0, 1, 2], [2, 3, 4]]
    x = np.arange(8).reshape(1, 4, 2)
    assert apply(Frames(1, 2, 2), x).tolist() == [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]]
    shape = typed(Frames(-1, 4, 2), "f32 N L").tensor.shape
    assert shape is not None
    assert (shape[0], shape[2]) == ("N", 4)


def test_mel_weights_are_triangles() -> None:
    weights = apply(MelWeights(8, 16, 8192, 0.0, 4096.0, of=f16))
    assert weights.dtype == np.float16
    assert weights.shape == (9, 8)
    # Frequencies fall into bins 0 0 0 1 1 2 3 4 5 6.
    expected = np.zeros((9, 8))
    for place, column in ((0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7)):
        expected[place, column] = 1
    assert weights.tolist() == expected.tolist()
    wide = apply(MelWeights(1, 64, 700, 0.0, 700.0))
    # Edges at 0, 700 * (2^(1/3) - 1) and 700 * (2^(2/3) - 1) hertz: bins 0, 16 and 38.
    np.testing.assert_allclose(wide[[0, 4, 16, 27, 32], 0], [0, 0.25, 1, 0.5, 6 / 22], rtol=1e-6)
    with pytest.raises(InferError, match="frequencies are not ordered"):
        MelWeights(1, 64, 700, 10.0, 0.0)()
