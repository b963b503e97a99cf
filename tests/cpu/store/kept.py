"""A model that is kept on disk, and what to ask of a session of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph

WEIGHTS = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


def made(weights: np.ndarray = WEIGHTS, rows: Any = "N") -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Softmax", ["a"], ["y"], "soft", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 16])],
        [numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def write(path: Path, model: onnx.ModelProto) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def fed(rows: int = 3) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)}


def softmax(x: np.ndarray, weights: np.ndarray = WEIGHTS) -> np.ndarray:
    y = np.exp(np.float64(x) @ weights)
    return y / y.sum(-1, keepdims=True)


def check(session: monograph.Session, rows: int = 3, weights: np.ndarray = WEIGHTS) -> np.ndarray:
    (given,) = session.run(fed(rows))
    np.testing.assert_allclose(given, softmax(fed(rows)["x"], weights), rtol=1e-5)
    return given


def found(session: monograph.Session) -> int:
    return session.stats["from_disk"]


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("entries/*/*"))


def no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the model is read")

    monkeypatch.setattr("monograph.frontend.onnx.read_model", refuse)
