"""Graphs whose open sizes are replaced: by those of another compilation, or by numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from monograph.ir import Graph, Op, OptionalType, SequenceType, TensorType, TupleType, Value
from monograph.ir.sizes import any_open, is_open
from monograph.ir.types import Literal

Change = Callable[[int], int]
"""Returns what takes the place of a size."""


def holds_sizes(values: Iterable[Value]) -> bool:
    """Return True if some types or attributes have open sizes."""
    found: list[bool] = []

    def note(number: int) -> int:
        found.append(True)
        return number

    for value in values:
        _attribute(value.type, note)
        resized_op(value.op, note)
        if found:
            return True
    return False


def resized_op(op: Op, change: Change) -> Op:
    """Return an op with the open sizes in its attributes replaced."""
    own = op.attributes
    made = {name: _attribute(a, change) for name, a in own.items()}
    changed = {name: a for name, a in made.items() if a is not own[name]}
    return replace(op, **changed) if changed else op  # type: ignore[type-var]


def resized_type(type_: Any, change: Change) -> Any:
    """Return a type with its open sizes replaced."""
    return _attribute(type_, change)


def resized_graph(graph: Graph, change: Change) -> Graph:
    """Return a graph with its open sizes replaced."""
    if not holds_sizes((*graph.inputs, *graph.values)):
        return graph
    return graph.rebuild(lambda old, inputs: resized_op(old.op, change)(*inputs))


def _attribute(given: Any, change: Change) -> Any:
    """Return an attribute with its open sizes replaced; the very object if it has none."""
    if is_open(given):
        return change(given)
    if isinstance(given, tuple):
        made = tuple(_attribute(x, change) for x in given)
        return given if all(a is b for a, b in zip(made, given, strict=True)) else made
    if isinstance(given, TensorType):
        if given.shape is None or not any_open(given.shape):
            return given
        return given.with_shape(change(d) if is_open(d) else d for d in given.shape)
    if isinstance(given, TupleType):
        items = _attribute(given.items, change)
        return given if items is given.items else TupleType(items)
    if isinstance(given, (SequenceType, OptionalType)):
        element = _attribute(given.element, change)
        return given if element is given.element else type(given)(element)
    if isinstance(given, Literal):
        return _literal(given, change) if given.is_open else given
    return resized_graph(given, change) if isinstance(given, Graph) else given


def _literal(given: Literal, change: Change) -> Literal:
    data = np.empty(given.array.shape, object)
    for i, x in enumerate(given.array.flat):
        data.flat[i] = change(x) if is_open(x) else x
    return Literal(data if any_open(data.flat) else data.astype(np.int64))
