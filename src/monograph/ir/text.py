"""The text form of a graph: one line a value, readable in tests and bug reports.

    graph "main"(%x: f32[N, 3]) {
      %0 = constant {value=f32[3] [1.0, 2.0, 3.0]} : f32[3]
      %1 = add(%x, %0) : f32[N, 3]  // "Add_4"
      return "y" = %1
    }

`monograph.ir.parse` reads it back to the same graph. A constant of more than a few elements is
printed by its digest and looked up when parsed; with `data=True` its bytes are in the text.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from monograph.errors import TextError
from monograph.ir.dtype import DType
from monograph.ir.graph import Graph, all_values
from monograph.ir.op import Constant, Input, Op, Value
from monograph.ir.types import Literal, MapType, OptionalType, SequenceType, TensorType, TupleType

INLINE_ELEMENTS = 16
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")


def print_graph(graph: Graph, *, data: bool = False, stable: bool = False) -> str:
    """Print a graph as text. With `data`, large constants are written out too.

    Values are numbered in order; with `stable` they are named after their origin, so that the texts
    of a graph before and after a rewrite differ only in what the rewrite changed.
    """
    return "\n".join(_graph_lines(graph, data, "", stable))


def _graph_lines(graph: Graph, data: bool, indent: str, stable: bool = False) -> Iterator[str]:
    names = _stable_names(graph) if stable else value_names(graph)
    listed = ", ".join(f"{names[v]}: {v.type}" for v in graph.inputs)
    yield f"{indent}graph {json.dumps(graph.name)}({listed}) {{"
    for value in graph.values:
        if isinstance(value.op, Input):
            continue
        yield _value_line(graph, value, names, data, indent + "  ")
    returned = ", ".join(f"{json.dumps(name)} = {names[v]}" for name, v in graph.outputs)
    yield f"{indent}  return {returned}"
    for output, input_ in graph.donations:
        yield f"{indent}  donate {json.dumps(output)} = {json.dumps(input_)}"
    yield f"{indent}}}"


def value_names(graph: Graph) -> dict[Value, str]:
    """Return the name of each value in the text: inputs by their labels, others by number."""
    names: dict[Value, str] = {}
    for v in graph.inputs:
        label = v.op.label if isinstance(v.op, Input) else ""
        names[v] = f"%{label}" if _PLAIN_NAME.match(label) else f"%{json.dumps(label)}"
    free = [v for v in graph.values if v not in names]
    names.update({v: f"%{i}" for i, v in enumerate(free)})
    return names


def _stable_names(graph: Graph) -> dict[Value, str]:
    """Names from the ONNX node behind a value and its op, or from the bits of a constant."""
    names = {v: name for v, name in value_names(graph).items() if isinstance(v.op, Input)}
    used = set(names.values())
    count: Counter[str] = Counter()
    for value in graph.values:
        if value in names:
            continue
        if isinstance(value.op, Constant):
            stem = f"constant_{value.digest[:4].hex()}"
        else:
            nodes = graph.origin(value)
            stem = f"{nodes.split(' + ')[0]}.{value.op.name}" if nodes else value.op.name
        name = ""
        while not name or name in used:
            count[stem] += 1
            full = stem if count[stem] == 1 else f"{stem}.{count[stem]}"
            name = f"%{full}" if _PLAIN_NAME.match(full) else f"%{json.dumps(full)}"
        names[value] = name
        used.add(name)
    return names


def _value_line(
    graph: Graph, value: Value, names: dict[Value, str], data: bool, indent: str
) -> str:
    arguments = ", ".join(names[v] for v in value.inputs)
    call = f"{value.op.name}({arguments})" if value.inputs else value.op.name
    attributes = _attributes(value.op, data, indent)
    line = f"{indent}{names[value]} = {call}{attributes} : {value.type}"
    origin = graph.origin(value)
    return line if origin is None else f"{line}  // {json.dumps(origin)}"


def _attributes(op: Op, data: bool, indent: str) -> str:
    listed = [f"{k}={format_attribute(v, data, indent)}" for k, v in op.attributes.items()]
    return f" {{{', '.join(listed)}}}" if listed else ""


def format_attribute(given: Any, data: bool = False, indent: str = "") -> str:
    """An attribute as text; the parser reads back one of equal type and bits."""
    if given is None or isinstance(given, bool):
        return {None: "none", True: "true", False: "false"}[given]
    if isinstance(given, (int, float)):
        return _number(given)
    if isinstance(given, str):
        return json.dumps(given)
    if isinstance(given, tuple):
        inner = ", ".join(format_attribute(x, data, indent) for x in given)
        return f"({inner},)" if len(given) == 1 else f"({inner})"
    if isinstance(given, DType):
        return given.name
    if isinstance(given, (TensorType, TupleType, SequenceType, OptionalType, MapType)):
        return f"type {given}"
    if isinstance(given, Literal):
        return _literal(given, data)
    if isinstance(given, Graph):
        return "\n".join(_graph_lines(given, data, indent + "  ")).lstrip()
    raise TextError(f"an attribute of type {type(given).__name__} has no text form")


def _number(given: int | float) -> str:
    if isinstance(given, float) and np.isnan(given):
        bits = int(np.float64(given).view(np.uint64))
        return "nan" if bits == 0x7FF8 << 48 else f"nan:{bits:016x}"
    return repr(given)


def _literal(given: Literal, data: bool) -> str:
    kind = given.type
    if kind.size <= INLINE_ELEMENTS and (text := _inline(given)) is not None:
        return f"{kind} {text}"
    if data:
        return f"{kind} base64:{base64.b64encode(given.payload()).decode()}"
    return f"{kind} #{given.digest.hex()}"


def _inline(given: Literal) -> str | None:
    """Return the elements in brackets, or None if parsing them would not give the same bits."""
    flat = given.array.reshape(-1)
    if given.dtype.is_string:
        texts = [
            x.decode("utf-8", "surrogateescape") if isinstance(x, bytes) else str(x) for x in flat
        ]
        return f"[{', '.join(map(json.dumps, texts))}]"
    if given.dtype.kind == "complex":
        return None
    if given.dtype.is_float:
        as_floats = [float(x) for x in flat]
        again = np.array(as_floats).astype(given.dtype.numpy)
        if again.tobytes() != flat.tobytes():  # a NaN with a payload
            return None
        return f"[{', '.join(map(_number, as_floats))}]"
    if given.dtype.kind == "bool":
        return f"[{', '.join('true' if x else 'false' for x in flat)}]"
    return f"[{', '.join(str(int(x)) for x in flat)}]"


def constants(graph: Graph) -> dict[str, Literal]:
    """Every literal of a graph and of its sub-graphs, by digest: what the parser looks up."""
    literals = (
        attribute
        for value in all_values(graph)
        for attribute in value.op.attributes.values()
        if isinstance(attribute, Literal)
    )
    return {literal.digest.hex(): literal for literal in literals}
