"""Writes a finding as a script that runs alone: it builds the model and compares two sides."""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.campaign.case import Case
from tests.campaign.judge import Problem
from tests.campaign.sides import session_options

MOST_WRITTEN = 200
"""Elements up to which an array is written as numbers."""
HEADER = '''"""{title}

{problem}
"""

import base64

import ml_dtypes
import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

import monograph

nan, inf = float("nan"), float("inf")


def array(data, dtype, shape):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if isinstance(data, str):
        return np.frombuffer(base64.b64decode(data), kind).reshape(shape)
    return np.array(data).astype(kind).reshape(shape)

'''
RUN = '''

def run(side):
    """The outputs of every run on a side, or its error."""
    try:
        if side == "onnxruntime":
            import onnx
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = (
                onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            )
            raw = onnx.shape_inference.infer_shapes(model).SerializeToString()
            session = onnxruntime.InferenceSession(
                raw, options, providers=["CPUExecutionProvider"]
            )
            return [session.run(None, feeds) for feeds in RUNS]
        options = OPTIONS if side == SIDE else {}
        session = monograph.load(model, side, cache_dir="", **options)
        return [session.run(feeds) for feeds in RUNS]
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def same(a, b):
    if isinstance(a, str) or isinstance(b, str):
        return False
    pairs = [(np.asarray(x), np.asarray(y)) for p, q in zip(a, b) for x, y in zip(p, q)]
    return all(
        x.shape == y.shape
        and (
            np.array_equal(x, y)
            if x.dtype.kind in "OUS"
            else np.allclose(
                x.astype(np.float64), y.astype(np.float64), TOLERANCE, TOLERANCE, equal_nan=True
            )
        )
        for x, y in pairs
    )


if SIDE == "cpu":  # small programs run on one thread otherwise
    from monograph.runtime.cpu import executable

    executable.ALONE_SECONDS = 0.0
expected, given = run("reference"), run(SIDE)
print("reference:", expected, sep="\\n")
print(f"{SIDE}:", given, sep="\\n")
print("same" if same(expected, given) else "DIFFERENT")
'''


def write(case: Case, problem: Problem) -> str:
    """The text of a script."""
    lines = problem.text.strip().splitlines()
    text = "\n".join([*lines[:2], *lines[2:][-6:]]).replace('"""', "'''").replace("\\", "/")
    made = HEADER.format(title=f"{case.name}: {problem.side}, {problem.sort}.", problem=text)
    graph = case.model.graph
    made += f"graph = {graph_code(graph)}\n"
    imports = ", ".join(f"helper.make_opsetid({o.domain!r}, {o.version})"
                        for o in case.model.opset_import)  # fmt: skip
    made += f"model = helper.make_model(\n    graph, opset_imports=[{imports}],"
    made += f" ir_version={case.model.ir_version}\n)\n"
    runs = [
        "{" + ", ".join(f"{n!r}: {array_code(x)}" for n, x in feeds.items()) + "}"
        for feeds in case.runs
    ]
    made += "RUNS = [\n" + "".join(f"    {r},\n" for r in runs) + "]\n"
    side, options = _side(problem.side)
    return f"{made}SIDE, OPTIONS = {side!r}, {options!r}\nTOLERANCE = {_tolerance(case)!r}\n{RUN}"


def _tolerance(case: Case) -> float:
    """Return what a look needs, no more: what a finding is was judged before."""
    kinds = {x.dtype.itemsize for f in case.runs for x in f.values() if x.dtype.kind in "fV"}
    return {1: 0.1, 2: 1e-2, 4: 1e-4, 8: 1e-9}.get(min(kinds, default=4), 1e-4)


def _side(name: str) -> tuple[str, dict[str, Any]]:
    if name.startswith("cpu"):
        found = re.match(r"cpu(-any)? \((\w+), (\d+) threads(, checked)?\)", name)
        if found is None:
            return "cpu", {}
        options: dict[str, Any] = {"cpu_isa": found[2], "threads": int(found[3])}
        options |= {"specialise": "off"} if found[1] else {}
        return "cpu", options | ({"checked": True} if found[4] else {})
    return session_options(name)


def graph_code(graph: onnx.GraphProto) -> str:
    """A graph as a call of onnx.helper."""
    nodes = "".join(f"        {node_code(n)},\n" for n in graph.node)
    inputs = ", ".join(info_code(i) for i in graph.input)
    outputs = ", ".join(info_code(i) for i in graph.output)
    constants = "".join(f"        {tensor_code(t)},\n" for t in graph.initializer)
    return (
        f"helper.make_graph(\n    [\n{nodes}    ],\n    {graph.name!r},\n    [{inputs}],\n"
        f"    [{outputs}],\n    [\n{constants}    ],\n)"
    )


def node_code(node: onnx.NodeProto) -> str:
    attributes = "".join(
        f", {a.name}={attribute_code(a)}" for a in node.attribute if a.name.isidentifier()
    )
    domain = f", domain={node.domain!r}" if node.domain else ""
    return (
        f"helper.make_node({node.op_type!r}, {list(node.input)!r}, {list(node.output)!r}"
        f"{attributes}{domain})"
    )


def attribute_code(a: onnx.AttributeProto) -> str:
    if a.type == onnx.AttributeProto.GRAPH:
        return graph_code(a.g)
    if a.type == onnx.AttributeProto.TENSOR:
        return tensor_code(a.t)
    value = helper.get_attribute_value(a)
    return repr(list(value) if not isinstance(value, (int, float, str, bytes)) else value)


def tensor_code(t: onnx.TensorProto) -> str:
    return f"numpy_helper.from_array({array_code(numpy_helper.to_array(t))}, {t.name!r})"


def array_code(x: np.ndarray) -> str:
    """An array as numbers, or as the bytes of many."""
    kind = "object" if x.dtype.kind in "OUS" else x.dtype.name
    if kind == "object":
        items = [i.decode() if isinstance(i, bytes) else str(i) for i in x.reshape(-1)]
        return f"array({items!r}, 'object', {x.shape})"
    if x.size > 3 and np.array_equal(x, _counting(x)):
        return f"array(range(1, {x.size + 1}), {kind!r}, {x.shape})"
    if x.size > 3 and np.all(x == x.reshape(-1)[0]):
        return f"array([{x.reshape(-1)[0].item()!r}] * {x.size}, {kind!r}, {x.shape})"
    if x.size <= MOST_WRITTEN:
        wide = x.astype(np.float64) if x.dtype.kind == "V" else x
        return f"array({wide.reshape(-1).tolist()!r}, {kind!r}, {x.shape})"
    raw = base64.b64encode(np.ascontiguousarray(x).tobytes()).decode()
    return f"array({raw!r}, {kind!r}, {x.shape})"


def _counting(x: np.ndarray) -> np.ndarray:
    return np.arange(1, x.size + 1).reshape(x.shape).astype(x.dtype)


def info_code(info: onnx.ValueInfoProto) -> str:
    if not info.HasField("type"):
        return f"ValueInfoProto(name={info.name!r})"
    kind = info.type.tensor_type
    name = onnx.TensorProto.DataType.Name(kind.elem_type)
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or None
            for d in kind.shape.dim] if kind.HasField("shape") else None  # fmt: skip
    return f"helper.make_tensor_value_info({info.name!r}, TensorProto.{name}, {dims!r})"
