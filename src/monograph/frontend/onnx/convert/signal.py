"""Fourier transforms and mel filters. Window functions come from ONNX's own function bodies."""

from __future__ import annotations

from monograph.frontend.onnx.convert.common import as_scalar
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import size_value
from monograph.ir import Value
from monograph.ir.dtype import f32
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.deferred import deferred
from monograph.ops.signal import Dft, Frames, MelWeights


@converter("DFT", since=17)
def dft_17(n: Node) -> Value:
    return _dft(n, n.attr_int("axis", 1), None)


@converter("DFT", since=20)
def dft_20(n: Node) -> Value:
    return _dft(n, -2, n.optional(2))


def _dft(n: Node, axis: int, late_axis: Value | None) -> Value:
    x, length = n.input(0), n.optional(1)
    static: dict[str, int | bool] = {
        "inverse": n.attr_flag("inverse"),
        "onesided": n.attr_flag("onesided"),
    }
    late: dict[str, Value] = {}
    if late_axis is None:
        static["axis"] = axis
    else:
        late["axis"] = as_scalar(late_axis)
    if length is not None:
        late["length"] = as_scalar(length)
    return deferred(Dft, (x,), late, **static)


@converter("STFT")
def stft(n: Node) -> Value:
    """Convert STFT: the transform of each frame of the signal times the window."""
    signal, step, window, length = n.input(0), n.input(1), n.optional(2), n.optional(3)
    if length is None and window is None:
        n.fail("a window or a frame_length must be given")
    if length is None and window is not None:
        length = size_value(window, 0)
    assert length is not None
    rank = signal.tensor.rank
    if rank == 2:
        signal = sh.Unsqueeze((2,))(signal)
    elif rank != 3:
        n.fail("the signal must be [batch, length, 1 or 2]", given=signal.type)
    late = {"length": as_scalar(length), "step": as_scalar(step)}
    frames = deferred(Frames, (signal,), late, axis=1)
    if window is not None:
        frames = ew.Mul()(frames, sh.Unsqueeze((1,))(window))
    # The spectrum of a complex signal has no redundant half.
    real = signal.tensor.dim(2) != 2
    return Dft(axis=2, onesided=n.attr_flag("onesided", True) and real)(frames)


@converter("MelWeightMatrix")
def mel_weight_matrix(n: Node) -> Value:
    names = ("bins", "dft_length", "sample_rate", "lower", "upper")
    late = {name: as_scalar(n.input(i)) for i, name in enumerate(names)}
    return deferred(MelWeights, (), late, of=n.attr_dtype("output_datatype", f32))
