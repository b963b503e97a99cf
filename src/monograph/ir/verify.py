"""Verifies that a graph keeps the rules of the IR; an error names the value and its ONNX node."""

from __future__ import annotations

from monograph.errors import MonographError, VerifyError
from monograph.ir.graph import Graph, input_op, subgraphs
from monograph.ir.op import Input, Value
from monograph.ir.text import value_names
from monograph.ir.types import TensorType, TupleType, Type, accepts, name_unknowns

MAX_NESTING = 64


def verify(graph: Graph, depth: int = 0) -> Graph:
    """Raises VerifyError unless the graph is well formed; returns it.

    Input names are unique; every input that is read is declared; outputs have unique names and are
    not tuples; every type is what the op infers; donated outputs fit their inputs, once each;
    sub-graphs are closed and well formed themselves.
    """
    if depth > MAX_NESTING:
        raise VerifyError("sub-graphs are nested too deeply", expected=f"at most {MAX_NESTING}")
    _verify_names(graph)
    declared = set(graph.inputs)
    for value in graph.values:
        if isinstance(value.op, Input) and value not in declared:
            raise VerifyError(
                "the graph reads an input that it does not declare",
                node=_place(graph, value),
                expected=list(graph.input_names),
                given=value.op.label,
            )
        _verify_type(graph, value)
        for inner in subgraphs(value.op):
            _verify_subgraph(graph, value, inner, depth)
    _verify_donations(graph)
    return graph


def _verify_names(graph: Graph) -> None:
    labels = [input_op(v).label for v in graph.inputs]
    for kind, names in (("inputs", labels), ("outputs", list(graph.output_names))):
        twice = (
            sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
        )
        if twice:
            raise VerifyError(f"two {kind} share a name", given=twice)
    for name, value in graph.outputs:
        if isinstance(value.type, TupleType):
            raise VerifyError(
                f"output {name!r} is a tuple", node=_place(graph, value), given=value.type
            )


def _verify_type(graph: Graph, value: Value) -> None:
    try:
        inferred = value.op.infer(*[v.type for v in value.inputs])
    except MonographError as e:
        raise VerifyError(
            f"the op does not accept its inputs: {e.message}",
            node=_place(graph, value),
            op=str(value.op.name),
            given=", ".join(str(v.type) for v in value.inputs),
        ) from e
    inferred = name_unknowns(inferred, f"~{value.digest[:5].hex()}_")
    if inferred != value.type:
        raise VerifyError(
            "the type of a value is not what its op infers",
            node=_place(graph, value),
            op=value.op.name,
            expected=inferred,
            given=value.type,
        )


def _place(graph: Graph, value: Value) -> str:
    """A value as the text form of the graph shows it, and the ONNX node it came from."""
    shown = f"{value_names(graph)[value]}: {value.type}"
    origin = graph.origin(value)
    return shown if origin is None else f"{shown}, from {origin}"


def _verify_subgraph(graph: Graph, value: Value, inner: Graph, depth: int) -> None:
    try:
        verify(inner, depth + 1)
    except VerifyError as e:
        e.node = f"{_place(graph, value)}" + (f" / {e.node}" if e.node else "")
        raise e.at(op=value.op.name) from None


def _verify_donations(graph: Graph) -> None:
    outputs = dict(graph.outputs)
    inputs = dict(zip(graph.input_names, graph.inputs, strict=True))
    taken: set[str] = set()
    for output, input_ in graph.donations:
        if output not in outputs or input_ not in inputs:
            raise VerifyError(
                "a donation names an output or input that does not exist",
                expected=f"an output of {list(outputs)} and an input of {list(inputs)}",
                given=f"{output!r} -> {input_!r}",
            )
        if input_ in taken:
            raise VerifyError("an input is donated twice", given=input_)
        taken.add(input_)
        a, b = outputs[output].type, inputs[input_].type
        if not same_memory(a, b):
            raise VerifyError(
                f"output {output!r} cannot be written into input {input_!r}",
                expected=b,
                given=a,
                hint="a donated output has the dtype and shape of its input",
            )


def same_memory(a: Type, b: Type) -> bool:
    """Return True for tensors of equal dtype and rank without two known sizes that differ."""
    ranked = all(isinstance(t, TensorType) and t.shape is not None for t in (a, b))
    return ranked and accepts(b, a)
