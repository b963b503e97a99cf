"""The benchmark set: models of published shapes with random weights, written as ONNX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass
class Writer:
    """Collects nodes and weights of one model."""

    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def tensor(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int, fan_in: int = 0) -> str:
        scale = 1 / np.sqrt(fan_in or shape[-1])
        return self.tensor((self.rng.normal(size=shape) * scale).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.tensor(np.array(values, np.int64))

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        product = self.node("MatMul", x, self.weight(inputs, outputs, fan_in=inputs))
        return self.node("Add", product, self.weight(outputs))

    def silu(self, x: str) -> str:
        return self.node("Mul", x, self.node("Sigmoid", x))

    def conv(
        self, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> str:
        pad = kernel // 2
        shape = (outputs, inputs // groups, kernel, kernel)
        weight = self.weight(*shape, fan_in=int(np.prod(shape[1:])))
        return self.node(
            "Conv", x, weight, self.weight(outputs), strides=[stride] * 2, pads=[pad] * 4,
            kernel_shape=[kernel] * 2, group=groups,
        )  # fmt: skip

    def layer_norm(self, x: str, width: int) -> str:
        scale, bias = np.ones(width, np.float32), np.zeros(width, np.float32)
        return self.node("LayerNormalization", x, self.tensor(scale), self.tensor(bias), axis=-1)

    def save(self, path: Path, inputs: dict[str, tuple[int, list[int]]], output: str) -> None:
        infos = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, path.stem, infos, [result], self.weights)
        imports = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)


def towers(path: Path, batch: int) -> None:
    """A trunk of 1024 and six towers 1024-512-256-128-1 with SiLU, a sigmoid at the end."""
    w = Writer()
    trunk = w.silu(w.linear("x", 1024, 1024))
    ends = []
    for _ in range(6):
        y, width = trunk, 1024
        for following in (512, 256, 128):
            y, width = w.silu(w.linear(y, width, following)), following
        ends.append(w.node("Sigmoid", w.linear(y, width, 1)))
    w.save(path, {"x": (TensorProto.FLOAT, [batch, 1024])}, w.node("Concat", *ends, axis=1))


def resnet50(path: Path) -> None:
    """Bottleneck blocks 3-4-6-3 at 224x224, BatchNorm folded already."""
    w = Writer()
    x = w.node("Relu", w.conv("x", 3, 64, 7, 2))
    x = w.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        middle = 64 << stage
        for block in range(blocks):
            stride = 2 if block == 0 and stage else 1
            y = w.node("Relu", w.conv(x, channels, middle, 1))
            y = w.node("Relu", w.conv(y, middle, middle, 3, stride))
            y = w.conv(y, middle, 4 * middle, 1)
            skip = w.conv(x, channels, 4 * middle, 1, stride) if block == 0 else x
            x, channels = w.node("Relu", w.node("Add", y, skip)), 4 * middle
    x = w.node("Flatten", w.node("GlobalAveragePool", x))
    w.save(path, {"x": (TensorProto.FLOAT, [1, 3, 224, 224])}, w.linear(x, channels, 1000))


def _attention(w: Writer, x: str, length: int, width: int, heads: int, mask: str = "") -> str:
    size = width // heads
    parts = []
    for permutation in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        y = w.node("Reshape", w.linear(x, width, width), w.ints(1, length, heads, size))
        parts.append(w.node("Transpose", y, perm=permutation))
    q, k, v = parts
    scores = w.node("Mul", w.node("MatMul", q, k), w.tensor(np.float32(size**-0.5).reshape(1)))
    scores = w.node("Add", scores, mask) if mask else scores
    y = w.node("MatMul", w.node("Softmax", scores, axis=-1), v)
    y = w.node("Reshape", w.node("Transpose", y, perm=[0, 2, 1, 3]), w.ints(1, length, width))
    return w.linear(y, width, width)


def _gelu(w: Writer, x: str) -> str:
    inner = w.node("Erf", w.node("Div", x, w.tensor(np.float32(2**0.5).reshape(1))))
    one, half = (w.tensor(np.float32(c).reshape(1)) for c in (1.0, 0.5))
    return w.node("Mul", w.node("Mul", x, w.node("Add", inner, one)), half)


def _blocks(
    w: Writer, x: str, layers: int, length: int, width: int, heads: int, mask: str = ""
) -> str:
    for _ in range(layers):
        y = _attention(w, w.layer_norm(x, width), length, width, heads, mask)
        x = w.node("Add", x, y)
        y = w.linear(_gelu(w, w.linear(w.layer_norm(x, width), width, 4 * width)), 4 * width, width)
        x = w.node("Add", x, y)
    return w.layer_norm(x, width)


def vit(path: Path) -> None:
    """ViT-Tiny: patches of 16 at 224x224, 12 layers of width 192."""
    w = Writer()
    weight = w.weight(192, 3, 16, 16, fan_in=768)
    x = w.node("Conv", "x", weight, w.weight(192), strides=[16, 16], kernel_shape=[16, 16])
    x = w.node("Transpose", w.node("Reshape", x, w.ints(1, 192, 196)), perm=[0, 2, 1])
    x = w.node("Add", x, w.weight(196, 192))
    x = _blocks(w, x, 12, 196, 192, 3)
    x = w.node("ReduceMean", x, axes=[1], keepdims=0)
    w.save(path, {"x": (TensorProto.FLOAT, [1, 3, 224, 224])}, w.linear(x, 192, 1000))


def bert(path: Path) -> None:
    """Six layers of width 384 over 128 tokens, embeddings included."""
    w = Writer()
    x = w.node("Gather", w.weight(8000, 384), "ids")
    x = _blocks(w, w.node("Add", x, w.weight(128, 384)), 6, 128, 384, 12)
    w.save(path, {"ids": (TensorProto.INT64, [1, 128])}, w.linear(x, 384, 384))


def gpt2(path: Path) -> None:
    """Six causal layers of width 384 over 64 tokens, with a head of 8,000 words."""
    w = Writer()
    x = w.node("Gather", w.weight(8000, 384), "ids")
    mask = w.tensor(np.triu(np.full((64, 64), -1e9, np.float32), 1))
    x = _blocks(w, w.node("Add", x, w.weight(64, 384)), 6, 64, 384, 12, mask)
    w.save(path, {"ids": (TensorProto.INT64, [1, 64])}, w.linear(x, 384, 8000))


def lstm(path: Path) -> None:
    """Two layers of 256 over 64 steps."""
    w = Writer()
    x, width = "x", 64
    for _ in range(2):
        gates = (w.weight(1, 1024, width), w.weight(1, 1024, 256), w.weight(1, 2048))
        y = w.node("LSTM", x, *gates, hidden_size=256)
        x, width = w.node("Squeeze", y, w.ints(1)), 256
    w.save(path, {"x": (TensorProto.FLOAT, [64, 1, 64])}, w.linear(x, 256, 32))


def mobilenet(path: Path) -> None:
    """Inverted residuals of depthwise convolutions at 224x224, hard-swish between."""
    w = Writer()
    x, channels = w.node("HardSwish", w.conv("x", 3, 16, 3, 2)), 16
    for out, expand, kernel, stride in (
        (16, 16, 3, 2), (24, 72, 3, 2), (24, 88, 3, 1), (40, 96, 5, 2), (40, 240, 5, 1),
        (48, 120, 5, 1), (96, 288, 5, 2), (96, 576, 5, 1), (96, 576, 5, 1),
    ):  # fmt: skip
        y = w.node("HardSwish", w.conv(x, channels, expand, 1))
        y = w.node("HardSwish", w.conv(y, expand, expand, kernel, stride, expand))
        y = w.conv(y, expand, out, 1)
        x = w.node("Add", x, y) if stride == 1 and channels == out else y
        channels = out
    x = w.node("HardSwish", w.conv(x, channels, 576, 1))
    x = w.node("Flatten", w.node("GlobalAveragePool", x))
    w.save(path, {"x": (TensorProto.FLOAT, [1, 3, 224, 224])}, w.linear(x, 576, 1000))


MODELS: dict[str, Callable[[Path], None]] = {
    "towers_b1": lambda p: towers(p, 1),
    "towers_b16": lambda p: towers(p, 16),
    "resnet50": resnet50,
    "mobilenet": mobilenet,
    "vit_tiny": vit,
    "bert_6x384": bert,
    "gpt2_6x384": gpt2,
    "lstm_2x256": lstm,
}


def write_all(folder: Path) -> dict[str, Path]:
    """Every model of the set as a file; those that are there already stay."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, write in MODELS.items():
        path = folder / f"{name}.onnx"
        if not path.exists():
            write(path)
        found[name] = path
    return found
