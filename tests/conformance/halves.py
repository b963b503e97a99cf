"""Attention of half precision as ONNX's suite expects it, and as it is: why cases are left out."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper

from monograph.ir import Array

SEEDS = range(8)
CLOSE = 1e-3
"""The tolerance of the suite between its data and an answer, relative to its data."""
BOUND = 2.0**-10
"""Of an answer that is rounded twice: the weights of the values, and the result."""


def inputs(seed: int) -> tuple[Array, Array, Array]:
    """Queries, keys and values of the suite's kind: positive numbers below one."""
    draw = np.random.default_rng(seed)
    sizes = ((2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8))
    q, k, v = (draw.random(size).astype(np.float16) for size in sizes)
    return q, k, v


def model(causal: bool) -> ModelProto:
    """One node, whose inputs are x0, x1 and x2."""
    half, names = TensorProto.FLOAT16, ("x0", "x1", "x2")
    infos = [
        helper.make_tensor_value_info(name, half, x.shape)
        for name, x in zip(names, inputs(0), strict=True)
    ]
    node = helper.make_node("Attention", names, ["y"], is_causal=int(causal))
    result = helper.make_tensor_value_info("y", half, inputs(0)[0].shape)
    graph = helper.make_graph([node], "attention", infos, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def feeds(given: tuple[Array, ...]) -> dict[str, Array]:
    return {f"x{i}": x for i, x in enumerate(given)}


def exact(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """The answer in double precision."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = _hidden(q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]), causal)
    weights = np.exp(scores)
    found: Array = weights / weights.sum(-1, keepdims=True) @ v
    return found


def stepwise(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """The answer as the suite makes its data: every step in half precision."""
    scale = np.float16(np.sqrt(1 / np.sqrt(q.shape[-1])))
    scores = _hidden(np.matmul(q * scale, k.swapaxes(2, 3) * scale), causal)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    found: Array = np.matmul(weights / weights.sum(-1, keepdims=True), v)
    assert found.dtype == np.float16
    return found


def _hidden(scores: Array, causal: bool) -> Array:
    seen = np.tril(np.ones(scores.shape[-2:], bool)) | (not causal)
    return np.where(seen, scores, scores.dtype.type(-np.inf))


def off(given: Array, right: Array) -> float:
    """Return how far numbers are off at most, relative to the right ones."""
    wide, truth = given.astype(np.float64), right.astype(np.float64)
    return float((np.abs(wide - truth) / np.abs(truth)).max())
