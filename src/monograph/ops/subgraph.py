"""Shared parts of ops with sub-graphs: types across the border, rebuilt graphs, stacked results.

A sub-graph is closed: what it reads from outside is passed to it. Symbols of its inputs' types are
those of the enclosing graph; symbols that it makes up itself mean nothing outside, because the same
sub-graph may run on different data, so a result's type forgets them (`close`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    Graph,
    Input,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    Value,
    generalise,
)
from monograph.ir.graph import input_op
from monograph.ir.types import accepts, name_unknowns
from monograph.ir.verify import same_memory
from monograph.ops.base import as_tensor, check_allocation

VARIANT = "~loop"
"""The prefix of symbols for sizes that may change from iteration to iteration."""


def join(a: Type, b: Type) -> Type:
    """`generalise`, where a value may also stand for an optional that has one."""
    if isinstance(a, OptionalType) != isinstance(b, OptionalType):
        left = a.element if isinstance(a, OptionalType) else a
        right = b.element if isinstance(b, OptionalType) else b
        return OptionalType(generalise(left, right))
    return generalise(a, b)


def fits(formal: Type, given: Type) -> bool:
    """Return True if a value may be passed to an input of a sub-graph."""
    if isinstance(formal, OptionalType) and not isinstance(given, OptionalType):
        return accepts(formal.element, given)
    return accepts(formal, given)


def check_fits(what: str, formals: Sequence[Type], given: Sequence[Type]) -> None:
    """Refuses operands that do not fit the inputs of a sub-graph, or are too few or too many."""
    if len(formals) != len(given):
        raise InferError(f"{what}: the number differs", expected=len(formals), given=len(given))
    for formal, type_ in zip(formals, given, strict=True):
        if not fits(formal, type_):
            raise InferError(f"{what}: a type does not fit", expected=formal, given=type_)


def variant(type_: Type, stem: str) -> Type:
    """The type of loop state, its unknown sizes named as those that iterations may change."""
    return name_unknowns(type_, f"{VARIANT}{stem}_")


def vary(type_: Type, like: Type, stem: str) -> Type:
    """Return the type of loop state, where another type of it varies varying too."""
    if isinstance(type_, TensorType) and isinstance(like, TensorType):
        if type_.shape is None or like.shape is None:
            return type_.with_shape(None)
        if len(type_.shape) != len(like.shape):
            return type_
        own = f"{VARIANT}{stem}_"
        return type_.with_shape(
            b if isinstance(b, str) and b.startswith(own) else a
            for a, b in zip(type_.shape, like.shape, strict=True)
        )
    if isinstance(type_, SequenceType) and isinstance(like, SequenceType):
        return SequenceType(vary(type_.element, like.element, stem))
    return type_


def symbols(types: Iterable[Type]) -> set[str]:
    """Return every symbol that the types name."""
    found: set[str] = set()
    stack = list(types)
    while stack:
        t = stack.pop()
        if isinstance(t, TensorType):
            found |= {d for d in t.shape or () if isinstance(d, str)}
        elif not isinstance(t, MapType):
            stack.extend(t.items if isinstance(t, TupleType) else (t.element,))
    return found


def close(type_: Type, visible: set[str]) -> Type:
    """The type as it is seen outside of a sub-graph: only these symbols have a meaning there."""
    if isinstance(type_, TensorType):
        if type_.shape is None:
            return type_
        return type_.with_shape(
            d if isinstance(d, int) or d in visible else UNKNOWN for d in type_.shape
        )
    if isinstance(type_, TupleType):
        return TupleType(tuple(close(t, visible) for t in type_.items))
    if isinstance(type_, MapType):
        return type_
    return type(type_)(close(type_.element, visible))


def refine(formal: Type, given: Type, state: bool = False) -> Type:
    """Return the type of a sub-graph's input once the operand's type is known better.

    What a loop may change (`state`) stays as general as it is.
    """
    if isinstance(formal, TensorType) and isinstance(given, TensorType):
        if given.shape is None or (state and formal.shape is None):
            return formal
        if formal.shape is None or len(formal.shape) != len(given.shape):
            return given
        return formal.with_shape(
            a if isinstance(a, int) or (state and a.startswith(VARIANT)) else b
            for a, b in zip(formal.shape, given.shape, strict=True)
        )
    if isinstance(formal, SequenceType) and isinstance(given, SequenceType):
        return SequenceType(refine(formal.element, given.element, state))
    if isinstance(formal, OptionalType):
        inner = given.element if isinstance(given, OptionalType) else given
        return OptionalType(refine(formal.element, inner, state))
    return formal


def specialise(graph: Graph, types: Sequence[Type]) -> Graph:
    """Return the graph with inputs of these types, every value below them inferred anew.

    Where the types contradict the graph it stays as it is: it may stand where it is never run.
    """
    if len(types) != len(graph.inputs) or graph.input_types == tuple(types):
        return graph
    given = dict(zip(graph.inputs, types, strict=True))

    def replace(old: Value, inputs: tuple[Value, ...]) -> Value:
        return Input(input_op(old).label, given[old])() if old in given else old.op(*inputs)

    try:
        return graph.rebuild(replace)
    except InferError:
        return graph


def inline(graph: Graph, arguments: Sequence[Value]) -> tuple[Value, ...]:
    """Return the outputs of a graph as values over these arguments."""
    made = dict(zip(graph.inputs, arguments, strict=True))
    for value in graph.values:
        if value not in made:
            made[value] = value.op(*[made[v] for v in value.inputs])
    return tuple(made[v] for _, v in graph.outputs)


def is_pure(*graphs: Graph) -> bool:
    """Return True if the results depend on the inputs only."""
    return all(v.op.pure or isinstance(v.op, Input) for g in graphs for v in g.values)


def bind_symbols(types: Sequence[Type], shapes: Sequence[tuple[int, ...] | None]) -> dict[str, int]:
    """Return the sizes that the shapes of data give to the symbols of their types."""
    sizes: dict[str, int] = {}
    for type_, shape in zip(types, shapes, strict=True):
        if isinstance(type_, TensorType) and type_.shape is not None and shape is not None:
            named = zip(type_.shape, shape, strict=False)
            sizes.update((d, n) for d, n in named if isinstance(d, str))
    return sizes


def is_single(type_: Type) -> bool:
    """Return True if a tensor can hold exactly one element."""
    shape = as_tensor(type_).shape
    return shape is None or all(d == 1 or isinstance(d, str) for d in shape)


def truth(data: Array) -> bool:
    """Return a condition as a bool."""
    if data.size != 1:
        raise ExecutionError("a condition has one element", given=[*data.shape])
    return bool(data.item())


class Stack:
    """Elements of one shape, collected in one array that doubles when it is full."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.count = 0
        self.empty_shape = shape
        self.dtype = dtype
        self.buffer: Array | None = None

    def push(self, x: Array) -> None:
        if self.buffer is None:
            self.buffer = np.empty((1, *x.shape), self.dtype)
        if x.shape != self.buffer.shape[1:]:
            raise ExecutionError(
                "the elements of a collected result differ in shape",
                expected=[*self.buffer.shape[1:]],
                given=[*x.shape],
            )
        if self.count == len(self.buffer):
            check_allocation((2 * self.count, *x.shape), self.dtype)
            grown = np.empty((2 * self.count, *x.shape), self.dtype)
            grown[: self.count] = self.buffer
            self.buffer = grown
        self.buffer[self.count] = x
        self.count += 1

    def result(self) -> Array:
        if self.buffer is None:
            return np.empty((0, *self.empty_shape), self.dtype)
        return self.buffer[: self.count]


def stacks_for(
    elements: Sequence[Type], formals: Sequence[Type], shapes: Sequence[tuple[int, ...] | None]
) -> list[Stack]:
    """Return a collector for each result of a loop whose body takes data of these shapes."""
    sizes = bind_symbols(formals, shapes)
    made = []
    for t in map(as_tensor, elements):
        dims = (d if isinstance(d, int) else sizes.get(d, 0) for d in t.shape or ())
        made.append(Stack(t.dtype.numpy, tuple(dims)))
    return made


_BODIES: WeakKeyDictionary[Graph, dict[int, Graph]] = WeakKeyDictionary()
"""By the body of a loop, and how many states it has: the same with them donated, kept as long."""


def state_donated(body: Graph, carried: int) -> Graph:
    """Return a loop's body that may write new state over the old."""
    bodies = _BODIES.setdefault(body, {})
    known = bodies.get(carried)
    if known is None:
        names = zip(body.output_names[1:], body.input_names[2 : 2 + carried], strict=False)
        types = zip(body.output_types[1:], body.input_types[2 : 2 + carried], strict=False)
        alike = [p for p, (a, b) in zip(names, types, strict=True) if same_memory(a, b)]
        known = bodies[carried] = replace(body, donations=tuple(alike))
    return known
