"""Convolution nodes: ONNX Runtime as second opinion, with symbols and every kind of padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import monograph
from monograph.errors import ModelError
from tests.frontend.nodes import close, node_model, run_node, runtime_node

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 3, 9), (4, 3, 3), {"strides": [2], "pads": [1, 2], "dilations": [2]}),
        ((1, 4, 7, 6), (6, 2, 3, 2), {"group": 2, "kernel_shape": [3, 2]}),
        ((1, 4, 7, 6), (4, 1, 3, 3), {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((1, 2, 7, 6), (3, 2, 2, 4), {"auto_pad": "SAME_LOWER", "strides": [3, 1]}),
        ((1, 2, 7, 6), (3, 2, 2, 4), {"auto_pad": "VALID", "strides": [3, 1]}),
        ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), {"pads": [0, 1, 0, 1, 1, 0]}),
    ],
)
def test_conv(x: Any, w: Any, attributes: Any, symbolic: bool) -> None:
    inputs = normal(*x), normal(*w), normal(w[0])
    theirs = runtime_node("Conv", *inputs, **attributes)
    close(run_node("Conv", *inputs, symbolic=symbolic, **attributes), theirs, 1e-5)


def test_a_bias_is_an_addition() -> None:
    inputs = normal(1, 2, 5), normal(3, 2, 3), normal(3)
    graph = monograph.load(node_model("Conv", inputs, constant=(1, 2))).graph
    (conv,) = (v for v in graph.values if v.op.name == "conv")
    assert len(conv.inputs) == 2
    assert graph.values[-1].op.name == "add"


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 4, 5), (4, 3, 3), {"strides": [3], "pads": [1, 0], "output_padding": [1]}),
        ((1, 4, 4, 3), (4, 2, 3, 2), {"group": 2, "strides": [2, 1], "dilations": [1, 2]}),
        ((1, 2, 3, 3), (2, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((1, 2, 3, 3), (2, 3, 3, 3), {"strides": [2, 2], "output_shape": [6, 6]}),
        ((1, 2, 3, 3), (2, 3, 2, 2), {"strides": [2, 2], "auto_pad": "VALID"}),
    ],
)
def test_conv_transpose(x: Any, w: Any, attributes: Any, symbolic: bool) -> None:
    inputs = normal(*x), normal(*w), normal(w[1] * attributes.get("group", 1))
    theirs = runtime_node("ConvTranspose", *inputs, **attributes)
    close(run_node("ConvTranspose", *inputs, symbolic=symbolic, **attributes), theirs, 1e-5)


@pytest.mark.parametrize("zeros", [(0, 0), (120, 130), (7, 0)])
def test_conv_integer(zeros: tuple[int, int]) -> None:
    x, w = (RNG.integers(0, 255, s).astype(np.uint8) for s in ((1, 4, 5, 5), (6, 2, 3, 3)))
    inputs = x, w, *(np.array(z, np.uint8) for z in zeros)
    attributes: dict[str, Any] = {"group": 2, "pads": [1, 1, 1, 1], "opset": 10}
    theirs = runtime_node("ConvInteger", *inputs, **attributes)
    close(run_node("ConvInteger", *inputs, symbolic=True, **attributes), theirs, 0)


def test_zero_points_of_zero_leave_small_integers() -> None:
    x, w = np.ones((1, 1, 3, 3), np.uint8), np.ones((1, 1, 3, 3), np.uint8)
    model = node_model("ConvInteger", (x, w, np.array(0, np.uint8)), constant=(2,), opset=10)
    graph = monograph.load(model).graph
    assert [v.op.name for v in graph.values if v.inputs] == ["conv"]
    assert graph.values[-1].inputs[0].dtype.name == "u8"


@pytest.mark.parametrize("per_channel", [False, True])
def test_qlinear_conv(per_channel: bool) -> None:
    x = RNG.integers(0, 255, (1, 4, 6, 5)).astype(np.uint8)
    w = RNG.integers(-127, 127, (6, 4, 3, 3)).astype(np.int8)
    count = (6,) if per_channel else ()
    inputs = (
        x, np.array(0.02, np.float32), np.array(128, np.uint8),
        w, np.asarray(RNG.uniform(0.01, 0.03, count), np.float32), np.zeros(count, np.int8),
        np.array(0.5, np.float32), np.array(100, np.uint8),
        RNG.integers(-500, 500, 6).astype(np.int32),
    )  # fmt: skip
    attributes: dict[str, Any] = {"pads": [1, 1, 0, 0], "strides": [2, 1], "opset": 10}
    theirs = runtime_node("QLinearConv", *inputs, **attributes)
    close(run_node("QLinearConv", *inputs, **attributes), theirs, 0)


def test_deform_conv_without_offsets_is_conv() -> None:
    x, w, bias = normal(1, 2, 5, 5), normal(3, 2, 3, 3), normal(3)
    offset, mask = np.zeros((1, 18, 3, 3), np.float32), np.ones((1, 9, 3, 3), np.float32)
    plain = run_node("Conv", x, w, bias)
    close(run_node("DeformConv", x, w, offset, bias, mask, opset=19), plain, 1e-6)
    close(run_node("DeformConv", x, w, offset, bias, opset=19, symbolic=True), plain, 1e-6)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"auto_pad": "SAME"}, "unknown auto_pad"),
        ({"pads": [1, 1]}, "pads must have two numbers per spatial axis"),
        ({"kernel_shape": [2, 2]}, "kernel_shape differs from the weights"),
        ({"kernel_shape": [3]}, "kernel_shape differs from the weights"),
        ({"group": 2}, "channels do not fit the weights"),
        ({"strides": [1]}, "strides: one number a spatial axis"),
    ],
)
def test_nodes_that_contradict_themselves(attributes: Any, message: str) -> None:
    inputs = normal(1, 3, 5, 5), normal(2, 3, 3, 3)
    with pytest.raises(ModelError, match=message) as caught:
        monograph.load(node_model("Conv", inputs, **attributes))
    assert caught.value.node == "Conv#0"


def _spread(rank: int, kernel: int, dilation: int, attributes: Any) -> list[np.ndarray]:
    """A transposed convolution whose stride is its kernel, on the CPU; the reference agrees."""
    groups = attributes.get("group", 1)
    x = RNG.normal(size=(2, 2 * groups, *(3, 2, 4)[:rank])).astype(np.float32)
    w = RNG.normal(size=(2 * groups, 3, *(kernel,) * rank)).astype(np.float32)
    options = {"strides": [kernel] * rank, "dilations": [dilation] * rank, **attributes}
    options |= {"constant": (1,), "opset": 11}
    theirs = runtime_node("ConvTranspose", x, w, **options)
    close(run_node("ConvTranspose", x, w, **options), theirs, 1e-4)
    session = monograph.load(node_model("ConvTranspose", (x, w), **options), target="cpu")
    ours = session.run({"x0": x})
    close(ours, theirs, 1e-4)
    return ours


@pytest.mark.parametrize("kernel", [2, 3, 4])
@pytest.mark.parametrize("dilation", [2, 3, 4])
def test_a_dilated_kernel_as_wide_as_its_stride(kernel: int, dilation: int) -> None:
    for rank in (1, 2):
        (y,) = _spread(rank, kernel, dilation, {})
        sizes = [(n - 1) * kernel + (kernel - 1) * dilation + 1 for n in (3, 2)[:rank]]
        assert y.shape == (2, 3, *sizes)


@pytest.mark.parametrize(
    "attributes",
    [
        {"group": 2},
        {"pads": [1, 2, 0, 1]},
        {"output_padding": [1, 1]},
        {"output_shape": [8, 6]},
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER"},
        {"dilations": [1, 2]},
        {"dilations": [3, 1]},
        {"strides": [2, 3]},
        {"strides": [1, 2], "pads": [1, 0, 0, 1], "group": 2},
    ],
    ids=str,
)
def test_dilated_kernels_in_every_form(attributes: Any) -> None:
    _spread(2, 2, 2, attributes)


def test_dilated_kernels_of_three_axes() -> None:
    _spread(3, 2, 3, {"dilations": [1, 3, 2]})
