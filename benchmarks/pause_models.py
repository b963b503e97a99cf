"""Models with random weights for `make bench-pauses`: small vision and speech networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass
class _Writer:
    """Nodes and weights of a model that is being written."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def weight(self, *shape: int) -> str:
        fan_in = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
        return self.constant((self.rng.normal(size=shape) * fan_in**-0.5).astype(np.float32))

    def constant(self, data: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(data, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        made = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [made], **attributes))
        return made

    def conv(self, x: str, into: int, out: int, size: int, stride: int = 1, group: int = 1) -> str:
        pad = size // 2
        weight = self.weight(out, into // group, size, size)
        return self.node(
            "Conv", x, weight, self.weight(out), strides=[stride] * 2, pads=[pad] * 4, group=group
        )

    def swish(self, x: str) -> str:
        return self.node("Mul", x, self.node("Sigmoid", x))

    def linear(self, x: str, into: int, out: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.weight(into, out)), self.weight(out))

    def norm(self, x: str, width: int) -> str:
        ones = self.constant(np.ones(width, np.float32))
        zeros = self.constant(np.zeros(width, np.float32))
        return self.node("LayerNormalization", x, ones, zeros)

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def attention(self, x: str, rows: int, width: int, heads: int) -> str:
        parts = []
        for _ in range(3):
            split = self.reshape(self.linear(x, width, width), 1, rows, heads, width // heads)
            parts.append(self.node("Transpose", split, perm=[0, 2, 1, 3]))
        q, k, v = parts
        scale = self.constant(np.float32((width // heads) ** -0.5))
        scores = self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 3, 2]))
        weights = self.node("Softmax", self.node("Mul", scores, scale), axis=-1)
        made = self.node("Transpose", self.node("MatMul", weights, v), perm=[0, 2, 1, 3])
        return self.linear(self.reshape(made, 1, rows, width), width, width)

    def transformer(self, x: str, rows: int, width: int, heads: int) -> str:
        x = self.node("Add", x, self.attention(self.norm(x, width), rows, width, heads))
        inner = self.node("Gelu", self.linear(self.norm(x, width), width, 4 * width))
        return self.node("Add", x, self.linear(inner, 4 * width, width))

    def model(self, shape: list[int], result: str) -> onnx.ModelProto:
        self.node("Identity", result)
        self.nodes[-1].output[0] = "y"
        graph = helper.make_graph(
            self.nodes,
            "pauses",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            self.weights,
        )
        opset = helper.make_opsetid("", 20)
        return helper.make_model(graph, opset_imports=[opset], ir_version=10)


def _inverted(w: _Writer, x: str, into: int, out: int, stride: int) -> str:
    """Write a block of MobileNet: expand, depthwise, project."""
    wide = 4 * into
    made = w.swish(w.conv(x, into, wide, 1))
    made = w.swish(w.conv(made, wide, wide, 3, stride, wide))
    made = w.conv(made, wide, out, 1)
    return w.node("Add", x, made) if stride == 1 and into == out else made


def mobile_vit() -> onnx.ModelProto:
    """Inverted residual blocks, then transformer blocks over patches of 2 x 2 pixels."""
    w = _Writer()
    x = w.swish(w.conv("x", 3, 16, 3, 2))
    widths = [(16, 32, 1), (32, 48, 2), (48, 48, 1), (48, 64, 2), (64, 96, 2)]
    for into, out, stride in widths:
        x = _inverted(w, x, into, out, stride)
    side, width = 14, 144
    x = w.conv(w.conv(x, 96, 96, 3), 96, width, 1)
    rows = side * side
    x = w.node("Transpose", w.reshape(x, 1, width, rows), perm=[0, 2, 1])
    for _ in range(2):
        x = w.transformer(x, rows, width, 4)
    x = w.reshape(w.node("Transpose", w.norm(x, width), perm=[0, 2, 1]), 1, width, side, side)
    x = _inverted(w, w.conv(x, width, 96, 1), 96, 128, 2)
    x = w.node("Flatten", w.node("GlobalAveragePool", w.conv(x, 128, 384, 1)))
    return w.model([1, 3, 224, 224], w.linear(x, 384, 1000))


def speech_encoder() -> onnx.ModelProto:
    """Two 1-D convolutions and four transformer blocks, as the encoder of Whisper tiny."""
    w, width, frames = _Writer(), 384, 400
    x = w.node("Conv", "x", w.weight(width, 80, 3), w.weight(width), pads=[1, 1])
    x = w.node("Conv", w.node("Gelu", x), w.weight(width, width, 3), strides=[2], pads=[1, 1])
    x = w.node("Transpose", w.node("Gelu", x), perm=[0, 2, 1])
    x = w.node("Add", x, w.weight(frames // 2, width))
    for _ in range(4):
        x = w.transformer(x, frames // 2, width, 6)
    return w.model([1, 80, frames], w.norm(x, width))


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mobile_vit": mobile_vit,
    "speech_encoder": speech_encoder,
}
