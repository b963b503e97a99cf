"""The model of `monograph demo` and `make demo`: a detector like YOLOv10n with random weights.

The architecture is the published one (Wang et al., "YOLOv10: Real-Time End-to-End Object
Detection", 2024) at its smallest width: a convolutional backbone with SiLU, a pyramid neck, and
heads whose boxes come sorted by score, 300 rows of (x1, y1, x2, y2, score, class), without a
suppression step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES, BINS, KEPT = 80, 16, 300
OPSET = 18
SEED = 103
"""With it the best scores lie 2e-5 apart or more, so that rounding does not reorder the rows."""
SILU_VARIANCE = 0.31
"""The variance of x * sigmoid(x) for normal x."""
POOLED_VARIANCE = 3.0
"""About the mean square of its maxima over 5x5 windows."""
CLASS_SCALE, CLASS_BIAS = 2.0, -7.0
"""Most places hold nothing: scores are low, and the best ones well apart."""


class DetectorBuilder:
    """Collects nodes and weights; every method takes and returns names of tensors."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.channels: dict[str, int] = {}
        self.variance: dict[str, float] = {}
        """The results that normal inputs give; weights are scaled so that it stays near 1."""

    def constant(self, value: object, dtype: type = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        index = len(self.nodes)
        names = [f"t{index}_{i}" if outputs > 1 else f"t{index}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, f"{op}_{index}", **attributes))
        return names

    def one(self, op: str, *inputs: str, channels: int = 0, **attributes: Any) -> str:
        (name,) = self.node(op, *inputs, **attributes)
        self.channels[name] = channels or self.channels.get(inputs[0], 0)
        self.variance[name] = self.variance.get(inputs[0], 1.0)
        return name

    def add(self, x: str, y: str) -> str:
        total = self.one("Add", x, y)
        self.variance[total] = self.variance[x] + self.variance[y]
        return total

    def conv(
        self, x: str, out: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True
    ) -> str:
        """A convolution with bias, then x * sigmoid(x)."""
        w = self.rng.normal(size=(out, self.channels[x] // groups, kernel, kernel))
        # Activations are positive on average; weights that sum to zero do not add that up.
        w -= w.mean(axis=(1, 2, 3), keepdims=True)
        w /= np.sqrt((w**2).sum(axis=(1, 2, 3), keepdims=True) * self.variance.get(x, 1.0))
        weight = self.constant(w)
        bias = self.constant(self.rng.normal(0, 0.1, out))
        y = self.one(
            "Conv", x, weight, bias, channels=out, group=groups, strides=[stride, stride],
            kernel_shape=[kernel, kernel], pads=[kernel // 2] * 4,
        )  # fmt: skip
        self.variance[y] = 1.0
        if not act:
            return y
        activated = self.one("Mul", y, self.one("Sigmoid", y))
        self.variance[activated] = SILU_VARIANCE
        return activated

    def concat(self, parts: Sequence[str], axis: int = 1) -> str:
        total = sum(self.channels[p] for p in parts)
        joined = self.one("Concat", *parts, channels=total, axis=axis)
        weighted = sum(self.channels[p] * self.variance[p] for p in parts)
        self.variance[joined] = weighted / total
        return joined

    def split(self, x: str, sizes: Sequence[int], axis: int = 1) -> list[str]:
        parts = self.node("Split", x, self.constant(sizes, np.int64), outputs=len(sizes), axis=axis)
        self.channels |= dict(zip(parts, sizes, strict=True))
        self.variance |= dict.fromkeys(parts, self.variance[x])
        return parts

    def reshape(self, x: str, *shape: int) -> str:
        return self.one("Reshape", x, self.constant(shape, np.int64))

    # Blocks of the network

    def c2f(self, x: str, out: int, repeats: int, shortcut: bool, large: bool = False) -> str:
        half = out // 2
        parts = self.split(self.conv(x, out), [half, half])
        for _ in range(repeats):
            y = self.cib(parts[-1]) if large else self.bottleneck(parts[-1])
            parts.append(self.add(parts[-1], y) if shortcut else y)
        return self.conv(self.concat(parts), out)

    def bottleneck(self, x: str) -> str:
        width = self.channels[x]
        return self.conv(self.conv(x, width, 3), width, 3)

    def cib(self, x: str) -> str:
        """The compact inverted block: depthwise, pointwise, depthwise 7x7, pointwise, depthwise."""
        width = self.channels[x]
        x = self.conv(x, width, 3, groups=width)
        x = self.conv(x, 2 * width)
        x = self.conv(x, 2 * width, 7, groups=2 * width)
        return self.conv(self.conv(x, width), width, 3, groups=width)

    def down(self, x: str, out: int) -> str:
        """Channels first, then space: pointwise, then a depthwise stride of 2."""
        return self.conv(self.conv(x, out), out, 3, 2, groups=out, act=False)

    def sppf(self, x: str, out: int) -> str:
        parts = [self.conv(x, self.channels[x] // 2)]
        for _ in range(3):
            y = self.one("MaxPool", parts[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1])
            self.variance[y] = POOLED_VARIANCE
            parts.append(y)
        return self.conv(self.concat(parts), out)

    def attention_block(self, x: str, side: int) -> str:
        """Half of the channels attend to each other's places, the other half pass by."""
        width = self.channels[x] // 2
        passed, y = self.split(self.conv(x, 2 * width), [width, width])
        y = self.add(y, self.attention(y, side))
        hidden = self.conv(self.conv(y, 2 * width), width, act=False)
        return self.conv(self.concat([passed, self.add(y, hidden)]), 2 * width)

    def attention(self, x: str, side: int) -> str:
        width, places = self.channels[x], side * side
        heads = max(1, width // 64)
        size, key = width // heads, width // heads // 2
        qkv = self.conv(x, width + 2 * key * heads, act=False)
        q, k, v = self.split(self.reshape(qkv, 1, heads, -1, places), [key, key, size], axis=2)
        scores = self.one("MatMul", self.one("Transpose", q, perm=[0, 1, 3, 2]), k)
        scores = self.one("Mul", scores, self.constant(key**-0.5))
        weights = self.one("Softmax", scores, axis=-1)
        y = self.one("MatMul", v, self.one("Transpose", weights, perm=[0, 1, 3, 2]))
        y, positional = self.reshape(y, 1, width, side, side), self.reshape(v, 1, width, side, side)
        self.channels[y] = self.channels[positional] = width
        y = self.add(y, self.conv(positional, width, 3, groups=width, act=False))
        return self.conv(y, width, act=False)

    def upsample(self, x: str) -> str:
        scales = self.constant([1, 1, 2, 2])
        return self.one("Resize", x, "", scales, mode="nearest", nearest_mode="floor",
                        coordinate_transformation_mode="asymmetric")  # fmt: skip

    # Heads

    def head(self, levels: Sequence[str], size: int) -> str:
        boxes, scores = [], []
        for level in levels:
            width = self.channels[level]
            box = self.conv(self.conv(level, 64, 3), 64, 3)
            boxes.append(self.reshape(self.conv(box, 4 * BINS, act=False), 1, 4 * BINS, -1))
            score = self.conv(self.conv(level, width, 3, groups=width), CLASSES)
            score = self.conv(self.conv(score, CLASSES, 3, groups=CLASSES), CLASSES)
            scores.append(self.reshape(self.conv(score, CLASSES, act=False), 1, CLASSES, -1))
        logits = self.one("Concat", *scores, axis=2)
        logits = self.one("Mul", logits, self.constant(CLASS_SCALE))
        logits = self.one("Add", logits, self.constant(CLASS_BIAS))
        box = self.decode(self.one("Concat", *boxes, axis=2), size)
        score = self.one("Transpose", self.one("Sigmoid", logits), perm=[0, 2, 1])
        return self.select(box, score)

    def decode(self, bins: str, size: int) -> str:
        """Distances as the mean of a distribution over bins, then corners around each anchor."""
        grids = [(size // s, s) for s in (8, 16, 32)]
        xy = [
            np.stack(np.meshgrid(np.arange(n) + 0.5, np.arange(n) + 0.5), -1).reshape(-1, 2)
            for n, _ in grids
        ]
        anchors = self.constant(np.concatenate(xy).T[None])
        strides = self.constant(np.concatenate([np.full(n * n, s) for n, s in grids])[None, None])
        bins = self.one("Transpose", self.reshape(bins, 1, 4, BINS, -1), perm=[0, 2, 1, 3])
        weight = self.constant(np.arange(BINS).reshape(1, BINS, 1, 1))
        distance = self.one("Conv", self.one("Softmax", bins, axis=1), weight)
        near, far = self.split(self.reshape(distance, 1, 4, -1), [2, 2])
        corners = [self.one("Sub", anchors, near), self.one("Add", anchors, far)]
        box = self.one("Mul", self.one("Concat", *corners, axis=1), strides)
        return self.one("Transpose", box, perm=[0, 2, 1])

    def select(self, box: str, score: str) -> str:
        """The best (anchor, class) pairs: first the best anchors, then pairs among those."""
        kept = self.constant([KEPT], np.int64)
        best = self.one("ReduceMax", score, self.constant([-1], np.int64), keepdims=0)
        _, anchor = self.node("TopK", best, kept, outputs=2, axis=-1)
        box = self.gather(box, anchor, 4)
        score = self.reshape(self.gather(score, anchor, CLASSES), 1, -1)
        value, pair = self.node("TopK", score, kept, outputs=2, axis=-1)
        count = self.constant(CLASSES, np.int64)
        box = self.gather(box, self.one("Div", pair, count), 4)
        label = self.one("Cast", self.one("Mod", pair, count), to=TensorProto.FLOAT)
        last = self.constant([-1], np.int64)
        columns = [box, self.one("Unsqueeze", value, last), self.one("Unsqueeze", label, last)]
        return self.one("Concat", *columns, axis=2)

    def gather(self, x: str, rows: str, width: int) -> str:
        """Rows of x[1, rows, width]."""
        index = self.one("Unsqueeze", rows, self.constant([-1], np.int64))
        shape = self.constant([1, KEPT, width], np.int64)
        return self.one("GatherElements", x, self.one("Expand", index, shape), axis=1)


def build(size: int = 640, seed: int = SEED) -> onnx.ModelProto:
    """The whole model for images of size x size."""
    b = DetectorBuilder(seed)
    b.channels["images"] = 3
    x = b.conv(b.conv("images", 16, 3, 2), 32, 3, 2)
    x = b.c2f(x, 32, 1, shortcut=True)
    fine = b.c2f(b.conv(x, 64, 3, 2), 64, 2, shortcut=True)
    middle = b.c2f(b.down(fine, 128), 128, 2, shortcut=True)
    x = b.c2f(b.down(middle, 256), 256, 1, shortcut=True)
    coarse = b.attention_block(b.sppf(x, 256), size // 32)
    lateral = b.c2f(b.concat([b.upsample(coarse), middle]), 128, 1, shortcut=False)
    small = b.c2f(b.concat([b.upsample(lateral), fine]), 64, 1, shortcut=False)
    medium = b.c2f(b.concat([b.conv(small, 64, 3, 2), lateral]), 128, 1, shortcut=False)
    large = b.c2f(b.concat([b.down(medium, 128), coarse]), 256, 1, shortcut=True, large=True)
    rows = b.head([small, medium, large], size)
    b.nodes.append(helper.make_node("Identity", [rows], ["detections"]))
    graph = helper.make_graph(
        b.nodes,
        "yolov10n",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("detections", TensorProto.FLOAT, [1, KEPT, 6])],
        b.weights,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, producer_name="monograph demo", opset_imports=opsets)
