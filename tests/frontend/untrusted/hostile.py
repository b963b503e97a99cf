"""Small models that tests of untrusted files corrupt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import onnx
import pytest
from onnx import TensorProto, helper

from monograph.errors import ModelError, MonographError
from monograph.frontend.onnx.node import registered
from tests.effort import at_most

registered()  # loads the converters: that is not the effort of the first model
OPSET = 21
CALLS = 100_000
"""Calls within which a model of a few nodes is refused."""


def info(name: str, shape: list[int | str] | None = None, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, [2] if shape is None else shape)


def model(nodes, inputs=None, outputs=None, functions=(), opsets=None, **parts) -> onnx.ModelProto:
    """A model around nodes; x goes in and y comes out unless said otherwise."""
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x")] if inputs is None else inputs,
        [info("y")] if outputs is None else outputs,
        **parts,
    )
    imports = [helper.make_opsetid(d, v) for d, v in (opsets or {"": OPSET}).items()]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions))


def subgraph(nodes, output: str = "z", inputs=()) -> onnx.GraphProto:
    return helper.make_graph(nodes, "inner", list(inputs), [info(output)])


@contextmanager
def refused(
    *words: str, calls: int = CALLS, error: type[MonographError] = ModelError
) -> Iterator[None]:
    """The block raises our error, without much work, and its text has all these words."""
    with pytest.raises(error) as caught, at_most(calls):
        yield
    text = str(caught.value)
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"


def spoil(made: onnx.ModelProto, change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    """A copy of a model with a change made to it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(made)
    change(copy)
    return copy
