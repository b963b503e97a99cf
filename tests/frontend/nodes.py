"""Builds and runs models of one node, on Monograph and on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import monograph
from monograph.frontend.onnx.dtypes import to_onnx
from monograph.ir import from_numpy

Given = np.ndarray | None


def node_model(
    op: str,
    inputs: Sequence[Given],
    *,
    opset: int = 21,
    outputs: int = 1,
    domain: str = "",
    constant: Sequence[int] = (),
    symbolic: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node; the inputs numbered in `constant` are initialisers.

    None is an input left out. With `symbolic` every dimension of the inputs is a symbol.
    """
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain)
    node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    infos, initialisers = [], []
    for i, x in enumerate(inputs):
        if x is None:
            continue
        if i in constant:
            initialisers.append(onnx.numpy_helper.from_array(x, f"x{i}"))
            continue
        shape = [f"d{i}_{a}" for a in range(x.ndim)] if symbolic else list(x.shape)
        element = to_onnx(from_numpy(x.dtype))
        infos.append(helper.make_tensor_value_info(f"x{i}", element, shape))
    results = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    graph = helper.make_graph([node], "node", infos, results, initialisers)
    imports = [helper.make_opsetid(domain, opset)]
    if domain:
        imports.append(helper.make_opsetid("", 21))
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run_node(op: str, *inputs: Given, **options: Any) -> list[np.ndarray]:
    """The outputs of one node on Monograph's reference. Options as of `node_model`."""
    model = node_model(op, inputs, **options)
    fed = {i.name for i in model.graph.input}
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if f"x{i}" in fed}
    return monograph.load(model).run(feeds)


def runtime_node(op: str, *inputs: Given, **options: Any) -> list[np.ndarray]:
    """The same on ONNX Runtime, which infers the types of the outputs."""
    model = onnx.shape_inference.infer_shapes(node_model(op, inputs, **options))
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), quiet, providers=["CPUExecutionProvider"]
    )
    fed = {i.name for i in session.get_inputs()}
    return session.run(None, {f"x{i}": x for i, x in enumerate(inputs) if f"x{i}" in fed})


def close(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], tolerance: float) -> None:
    """Fails unless shapes, element types and (within a tolerance) values agree."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=tolerance, atol=tolerance
        )
