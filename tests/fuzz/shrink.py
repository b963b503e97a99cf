"""Makes a failing graph small: fewer outputs, values cut off at an input, steps left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from monograph.errors import MonographError
from monograph.ir import Constant, Graph, Input, TensorType, Value, evaluate, print_graph
from monograph.passes.base import substitute

Feeds = dict[str, Any]
Fails = Callable[[Graph, Feeds], bool]
MOST_TRIES = 600


def shrink(graph: Graph, feeds: Feeds, fails: Fails) -> tuple[Graph, Feeds]:
    """A graph that still fails and from which nothing more can be taken, or nearly so."""
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate, arrays in _candidates(graph, feeds):
            tries += 1
            if tries > MOST_TRIES:
                return graph, feeds
            if _measure(candidate) < _measure(graph) and fails(candidate, arrays):
                graph, feeds = candidate, arrays
                smaller = True
                break
    return graph, feeds


def show(graph: Graph, feeds: Feeds) -> str:
    """The graph in its text form with all its data, and what it is fed."""
    lines = [print_graph(graph, data=True)]
    with np.printoptions(threshold=64, precision=9):
        lines += [f"{name} = {array!r}" for name, array in feeds.items()]
    return "\n".join(lines)


def _measure(graph: Graph) -> tuple[int, int]:
    """Return how large a graph is: ops that compute, then values and outputs."""
    ops = sum(not isinstance(v.op, (Input, Constant)) for v in graph.values)
    return ops, len(graph.values) + len(graph.outputs)


def _candidates(graph: Graph, feeds: Feeds) -> Iterator[tuple[Graph, Feeds]]:
    if len(graph.outputs) > 1:
        for output in graph.outputs:
            yield _pruned(graph, (output,), feeds)
        for i in range(len(graph.outputs)):
            yield _pruned(graph, graph.outputs[:i] + graph.outputs[i + 1 :], feeds)
    arrays: dict[Value, Any] = {}
    evaluate(graph, feeds, lambda value, data: arrays.__setitem__(value, data))
    inner = [v for v in graph.values if not isinstance(v.op, (Input, Constant))]
    for _, end in graph.outputs:
        for v in end.inputs:
            if isinstance(v.type, TensorType) and not isinstance(v.op, (Input, Constant)):
                outputs = tuple((n, v if w is end else w) for n, w in graph.outputs)
                yield _pruned(graph, outputs, feeds)
    for value in reversed(inner):
        if isinstance(value.type, TensorType) and value.type.is_static:
            name = f"cut{len(inner)}_{inner.index(value)}"
            fresh = Input(name, value.type)()
            yield _replaced(graph, value, fresh, {**feeds, name: arrays[value]})
    for value in inner:
        for v in value.inputs:
            if v.type == value.type:
                yield _replaced(graph, value, v, feeds)


def _replaced(graph: Graph, old: Value, new: Value, feeds: Feeds) -> tuple[Graph, Feeds]:
    extra = (new,) if isinstance(new.op, Input) and new not in graph.inputs else ()
    wider = Graph((*graph.inputs, *extra), graph.outputs, graph.name)
    try:
        after = substitute(wider, {old: new})
    except MonographError:
        return graph, feeds
    return _pruned(after, after.outputs, feeds)


def _pruned(
    graph: Graph, outputs: tuple[tuple[str, Value], ...], feeds: Feeds
) -> tuple[Graph, Feeds]:
    """The graph of these outputs, without inputs that nothing reads."""
    used = set(Graph(graph.inputs, outputs).values)
    inputs = tuple(v for v in graph.inputs if v in used)
    names = {v.op.label for v in inputs if isinstance(v.op, Input)}
    return Graph(inputs, outputs, graph.name), {n: x for n, x in feeds.items() if n in names}
