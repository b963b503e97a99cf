"""DFT, STFT, MelWeightMatrix and window functions: ONNX Runtime as second opinion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monograph.errors import ModelError
from tests.frontend.nodes import close, run_node, runtime_node

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("constant", [(), (1, 2)])
@pytest.mark.parametrize(
    ("x", "length", "attributes"),
    [
        ((2, 9, 1), None, {}),
        ((2, 9, 1), 12, {"onesided": 1}),
        ((2, 9, 2), 5, {}),
        ((2, 9, 2), None, {"inverse": 1}),
    ],
)
def test_dft(x: Any, length: int | None, attributes: Any, constant: tuple[int, ...]) -> None:
    data, late = normal(*x), None if length is None else np.array(length)
    theirs = runtime_node("DFT", data, late, np.array(1), opset=20, **attributes)
    given = data, late, np.array(1)
    chosen = tuple(i for i in constant if given[i] is not None)
    close(run_node("DFT", *given, opset=20, constant=chosen, **attributes), theirs, 1e-5)
    close(run_node("DFT", data, late, opset=17, symbolic=True, **attributes), theirs, 1e-5)


def test_dft_is_along_the_last_axis_but_one_unless_told() -> None:
    x = normal(2, 3, 8, 1)
    theirs = np.fft.fft(x[..., 0], axis=2)
    (ours,) = run_node("DFT", x, opset=20)
    np.testing.assert_allclose(ours, np.stack([theirs.real, theirs.imag], -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("constant", [(), (1, 3)])
@pytest.mark.parametrize("onesided", [0, 1])
def test_stft(onesided: int, constant: tuple[int, ...]) -> None:
    signal, window = normal(2, 50, 1), normal(16)
    inputs = signal, np.array(7), window, np.array(16)
    attributes: dict[str, Any] = {"opset": 17, "onesided": onesided}
    theirs = runtime_node("STFT", *inputs, **attributes)
    close(run_node("STFT", *inputs, constant=constant, **attributes), theirs, 1e-5)
    close(run_node("STFT", *inputs[:3], symbolic=True, **attributes), theirs, 1e-5)


def test_stft_of_a_complex_signal_keeps_both_sides() -> None:
    signal = normal(1, 8, 2)
    (y,) = run_node("STFT", signal, np.array(4), None, np.array(4), opset=17)
    frame = signal[0, 4:, 0] + 1j * signal[0, 4:, 1]
    spectrum = np.fft.fft(frame)
    assert y.shape == (1, 2, 4, 2)
    np.testing.assert_allclose(y[0, 1], np.stack([spectrum.real, spectrum.imag], -1), rtol=1e-5)


def test_stft_needs_a_length() -> None:
    with pytest.raises(ModelError, match="a window or a frame_length must be given"):
        run_node("STFT", normal(1, 8, 1), np.array(4), opset=17)
    with pytest.raises(ModelError, match="the signal must be"):
        run_node("STFT", normal(8), np.array(4), None, np.array(4), opset=17)


@pytest.mark.parametrize("constant", [(), (0, 1, 2, 3, 4)])
def test_mel_weight_matrix(constant: tuple[int, ...]) -> None:
    numbers = (np.array(v) for v in (5, 64, 16000))
    inputs = *numbers, *(np.array(v, np.float32) for v in (100, 7000))
    theirs = runtime_node("MelWeightMatrix", *inputs, opset=17)
    close(run_node("MelWeightMatrix", *inputs, opset=17, constant=constant), theirs, 1e-6)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(op: str, periodic: int) -> None:
    size = np.array(9)
    theirs = runtime_node(op, size, opset=17, periodic=periodic)
    close(run_node(op, size, opset=17, periodic=periodic), theirs, 1e-5)
