"""Models whose data decide a size: producers, which find how many rows there are.

Consumers get these rows as f32[n], f32[n, 3], f32[3, n] and f32[2, n, 3], so the size stands first,
last and in the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MOST = 6
"""Rows that producers can find."""
FAR, NEAR = 2**63 - 1, -(2**63)
F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class Net:
    """A graph under construction: nodes, initialisers, inputs."""

    def __init__(self, prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[str] = []
        self.prefix, self.count = prefix, 0

    def name(self) -> str:
        self.count += 1
        return f"{self.prefix}t{self.count}"

    def const(self, data: Any, dtype: Any = np.int64) -> str:
        name = self.name()
        self.tensors.append(numpy_helper.from_array(np.asarray(data, dtype), name))
        return name

    def input(self, name: str, element: int, shape: list[int]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.several(op, *inputs, count=1, **attributes)[0]

    def several(self, op: str, *inputs: str, count: int, **attributes: Any) -> list[str]:
        names = [self.name() for _ in range(count)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names

    def slice(self, x: str, start: int, stop: int, axis: int, step: int = 1) -> str:
        given = (self.const([number]) for number in (start, stop, axis, step))
        return self("Slice", x, *given)

    def model(self) -> onnx.ModelProto:
        outputs = [onnx.ValueInfoProto(name=o) for o in self.outputs]
        graph = helper.make_graph(self.nodes, "bounded", self.inputs, outputs, self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@dataclass(frozen=True)
class Rows:
    """The rows that a producer finds, in several shapes, and what consumers may need beside."""

    v: str
    m: str
    t: str
    b: str
    size: str
    """i64[1]: how many there are."""

    @property
    def shapes(self) -> list[tuple[str, int, int]]:
        """Each value with its rank and the axis of the rows."""
        return [(self.v, 1, 0), (self.m, 2, 0), (self.t, 2, 1), (self.b, 3, 1)]


Feeds = Mapping[str, np.ndarray]
Producer = Callable[[Net], str]


def _mask(count: int) -> np.ndarray:
    """`count` ones, at the end."""
    return (np.arange(MOST) >= MOST - count).astype(int)


def feeds_of(count: int) -> dict[str, np.ndarray]:
    """Inputs of every producer for which it finds `count` rows (`unique`: at least one)."""
    rng = np.random.default_rng(count)
    mask = rng.permutation(_mask(count))
    # Boxes that do not meet, so that as many are chosen as have a score.
    low = np.arange(MOST)[:, None] * [10.0, 10.0]
    boxes = np.concatenate([low, low + 5], 1)
    return {
        "x": (mask * rng.integers(1, 9, MOST)).astype(np.float32),
        "mask": mask.astype(bool),
        "table": rng.integers(-9, 9, (MOST, 2)).astype(np.float32),
        "levels": (rng.permutation(MOST) % max(count, 1) - 2).astype(np.float32),
        "boxes": boxes[None].astype(np.float32),
        "scores": np.where(mask, rng.uniform(0.5, 1, MOST), 0)[None, None].astype(np.float32),
        "count": np.array([count], np.int64),
    }


def _non_zero(n: Net) -> str:
    x = n.input("x", F32, [MOST])
    return n("Reshape", n("NonZero", x), n.const([-1]))


def _non_zero_rows(n: Net) -> str:
    places = n("Transpose", n("NonZero", n.input("x", F32, [MOST])), perm=[1, 0])
    return n("GatherND", n("Neg", "x"), places)


def _compress(n: Net) -> str:
    table, mask = n.input("table", F32, [MOST, 2]), n.input("mask", BOOL, [MOST])
    rows = n("Compress", table, mask, axis=0)
    return n("Gather", rows, n.const(1), axis=1)


def _unique(n: Net) -> str:
    return n("Unique", n.input("levels", F32, [MOST]))


def _suppression(n: Net) -> str:
    boxes, scores = n.input("boxes", F32, [1, MOST, 4]), n.input("scores", F32, [1, 1, MOST])
    limits = n.const([MOST]), n.const([0.5], np.float32), n.const([0.1], np.float32)
    chosen = n("NonMaxSuppression", boxes, scores, *limits)
    return n("Gather", chosen, n.const(2), axis=1)


def _loop(n: Net) -> str:
    """Collects table[i] for as long as i is less than the count, at most MOST times."""
    table, count = n.input("table", F32, [MOST, 2]), n.input("count", I64, [1])
    body = Net("body_")
    one, zero = body.const(1), body.const([0])
    row = body("Gather", table, "i", axis=0)
    continues = body("Less", body("Add", "i", one), body("Squeeze", count, zero))
    state = body("Identity", "s")
    graph = helper.make_graph(
        body.nodes,
        "body",
        [
            helper.make_tensor_value_info("i", I64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("s", F32, []),
        ],
        [
            helper.make_tensor_value_info(continues, BOOL, []),
            helper.make_tensor_value_info(state, F32, []),
            helper.make_tensor_value_info(row, F32, [2]),
        ],
        body.tensors,
    )
    begins = n("Squeeze", n("Less", n.const([0]), count), n.const([0]))
    _, rows = n.several("Loop", n.const(MOST), begins, n.const(0, np.float32), count=2, body=graph)
    return n("Gather", rows, n.const(0), axis=1)


def _top_k(n: Net) -> str:
    x, count = n.input("x", F32, [MOST]), n.input("count", I64, [1])
    return n.several("TopK", x, count, count=2)[0]


def _range(n: Net) -> str:
    end = n("Squeeze", n.input("count", I64, [1]), n.const([0]))
    return n("Range", n.const(0), end, n.const(1))


PRODUCERS: dict[str, Producer] = {
    "non_zero": _non_zero,
    "non_zero_rows": _non_zero_rows,
    "compress": _compress,
    "unique": _unique,
    "suppression": _suppression,
    "loop": _loop,
    "top_k": _top_k,
    "range": _range,
}


def rows_of(n: Net, producer: str) -> Rows:
    """Return what a producer finds, in all shapes; odd numbers, so that padding shows."""
    v = n("Cast", PRODUCERS[producer](n), to=F32)
    v = n("Add", n("Mul", v, n.const(0.5, np.float32)), n.const(3.25, np.float32))
    m = n("Mul", n("Unsqueeze", v, n.const([1])), n.const([[1.0, -1.5, 0.25]], np.float32))
    m = n("Add", m, n.const([[0.5, 2.0, -1.0]], np.float32))
    t = n("Transpose", m, perm=[1, 0])
    b = n("Add", n("Unsqueeze", m, n.const([0])), n.const([[[0.0]], [[7.0]]], np.float32))
    return Rows(v, m, t, b, n("Shape", v))
