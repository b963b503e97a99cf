"""Five models for planted faults, with a node to plant each kind of fault at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class Planted:
    """A model, and where faults are planted."""

    build: Any
    kernel: tuple[str, str]
    """A kind of step whose kernel is made wrong, and the node that the first such step has."""
    rewritten: str
    """The node whose result a rewrite changes."""
    quantised: str
    """The node whose first operand is quantised coarsely."""


class Builder:
    """A model under construction; nodes have the names that are given."""

    def __init__(self, shape: Sequence[int], seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.shape = shape
        self.random = np.random.default_rng(seed)

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        scale = np.sqrt(np.prod(shape[1:], dtype=np.float64) or 1.0)
        data = (self.random.standard_normal(shape) / scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(data, name))
        return name

    def integers(self, *values: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def add(self, op: str, name: str, *inputs: str, **attributes: Any) -> str:
        node = helper.make_node(op, inputs, [f"{name}_out"], name=name, **attributes)
        node.metadata_props.add(
            key="pkg.torch.onnx.stack_trace",
            value=f'File "/home/a/net.py", line {10 + len(self.nodes)}, in forward\n    {name}(x)',
        )
        self.nodes.append(node)
        return f"{name}_out"

    def model(self, result: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "planted",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def cnn() -> onnx.ModelProto:
    b = Builder((1, 3, 16, 16), 1)
    x = b.add("Relu", "act1", b.add("Conv", "conv1", "x", b.weight(8, 3, 3, 3), pads=[1] * 4))
    y = b.add("Conv", "conv2", x, b.weight(8, 8, 3, 3), pads=[1] * 4)
    x = b.add("Relu", "act2", b.add("Add", "shortcut", x, y))
    x = b.add("MaxPool", "pool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.add("Relu", "act3", b.add("Conv", "conv3", x, b.weight(16, 8, 3, 3)))
    x = b.add("Flatten", "flat", b.add("GlobalAveragePool", "mean", x))
    return b.model(b.add("Gemm", "scores", x, b.weight(16, 10)))


def attention() -> onnx.ModelProto:
    b = Builder((1, 12, 16), 2)
    q, k, v = (b.add("MatMul", n, "x", b.weight(16, 16)) for n in ("query", "key", "value"))
    scores = b.add("MatMul", "scores", q, b.add("Transpose", "turned", k, perm=[0, 2, 1]))
    x = b.add("MatMul", "mixed", b.add("Softmax", "weights", scores, axis=-1), v)
    x = b.add("Add", "shortcut", x, "x")
    x = b.add("LayerNormalization", "norm", x, b.weight(16), axis=-1)
    x = b.add("Gelu", "gelu", b.add("MatMul", "up", x, b.weight(16, 32)))
    return b.model(b.add("MatMul", "down", x, b.weight(32, 16)))


def tower() -> onnx.ModelProto:
    b = Builder((4, 24), 3)
    x = b.add("Tanh", "tanh1", b.add("Gemm", "first", "x", b.weight(24, 32)))
    y = b.add("Sigmoid", "gate", b.add("Gemm", "second", x, b.weight(32, 32)))
    x = b.add("Mul", "gated", x, y)
    x = b.add("ReduceSum", "total", b.add("Exp", "power", x), b.integers(1), keepdims=1)
    x = b.add("Log", "log", x)
    return b.model(b.add("Gemm", "last", x, b.weight(1, 6)))


def recurrent() -> onnx.ModelProto:
    b = Builder((6, 1, 8), 4)
    x = b.add("MatMul", "embed", "x", b.weight(8, 8))
    x = b.add("GRU", "gru", x, b.weight(1, 36, 8), b.weight(1, 36, 12), hidden_size=12)
    x = b.add("Squeeze", "squeeze", x, b.integers(1))
    x = b.add("Softplus", "soft", b.add("MatMul", "hidden", x, b.weight(12, 12)))
    x = b.add("Softmax", "chances", x, axis=-1)
    return b.model(b.add("MatMul", "out", x, b.weight(12, 5)))


def detector() -> onnx.ModelProto:
    b = Builder((1, 4, 12, 12), 5)
    x = b.add("Conv", "stem", "x", b.weight(8, 4, 3, 3), strides=[2, 2], pads=[1] * 4)
    x = b.add("Mul", "silu", x, b.add("Sigmoid", "gate", x))
    small = b.add("AveragePool", "down", x, kernel_shape=[2, 2], strides=[2, 2])
    heads = []
    for name, level in (("large", x), ("small", small)):
        y = b.add("Conv", f"{name}_head", level, b.weight(6, 8, 1, 1))
        heads.append(b.add("Reshape", f"{name}_flat", y, b.integers(1, 6, -1)))
    x = b.add("Transpose", "rows", b.add("Concat", "joined", *heads, axis=2), perm=[0, 2, 1])
    return b.model(b.add("Softmax", "classes", x, axis=-1))


MODELS = {
    "cnn": Planted(cnn, ("max_pool", "pool"), "act2", "conv3"),
    "attention": Planted(attention, ("layer_norm", "norm"), "gelu", "up"),
    "tower": Planted(tower, ("reduce_sum", "total"), "gate", "second"),
    "recurrent": Planted(recurrent, ("softmax", "chances"), "soft", "hidden"),
    "detector": Planted(detector, ("average_pool", "down"), "silu", "small_head"),
}


def with_quantised_layer(model: onnx.ModelProto, layer: str) -> onnx.ModelProto:
    """Return the model with the first operand of one node rounded to multiples of 0.4."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    made.graph.initializer.append(numpy_helper.from_array(np.float32(0.4), "scale"))
    made.graph.initializer.append(numpy_helper.from_array(np.int8(0), "zero"))
    for node in model.graph.node:
        if node.name == layer:
            for op, given, result in (
                ("QuantizeLinear", node.input[0], "codes"),
                ("DequantizeLinear", "codes", "rounded"),
            ):
                made.graph.node.append(
                    helper.make_node(op, [given, "scale", "zero"], [result], name=f"{layer}_{op}")
                )
        copy = made.graph.node.add()
        copy.CopyFrom(node)
        if node.name == layer:
            copy.input[0] = "rounded"
    return made


def save(model: onnx.ModelProto, path: Path) -> str:
    onnx.save(model, path)
    return str(path)
