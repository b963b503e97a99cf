"""Opens the dimensions of a graph, and runs its code for any shape at several sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.codegen.llvm.module.features import host_features
from monograph.codegen.llvm.module.kernel import KERNELS
from monograph.errors import MonographError
from monograph.ir import Array, Graph, Input, TensorType, Value
from monograph.ir.evaluate import evaluate
from monograph.ir.size_expressions import Symbol
from monograph.ir.size_expressions import evaluate as value_of
from monograph.ir.sizes import SizeScope, is_open
from monograph.runtime.cpu.any_shape import compile_any_shape
from monograph.runtime.numerics.bisect import first_wrong
from monograph.runtime.shape_code import ShapeCode

SIZES = (2, 3, 4, 5, 7, 8, 9, 16, 17, 20, 33, 40)
THREADS = 2


def with_inputs(graph: Graph, shape_of: Callable[[str, TensorType], tuple[int, ...]]) -> Graph:
    """Return a graph whose tensor inputs have other shapes."""

    def made(old: Value, inputs: tuple[Value, ...]) -> Value:
        if isinstance(old.op, Input):
            if not isinstance(old.type, TensorType) or not old.type.is_static:
                return old
            shape = shape_of(old.op.label, old.type)
            return Input(old.op.label, old.type.with_shape(shape))()
        return old.op(*inputs) if inputs else old

    return graph.rebuild(made)


def opened(graph: Graph, scope: SizeScope, chosen: Callable[[str, int], bool]) -> Graph:
    """Return a graph with a symbol for each chosen dimension of 2 or more elements."""

    def shape(name: str, type_: TensorType) -> tuple[int, ...]:
        return tuple(
            scope.symbol(f"{name}.{i}", d) if d >= 2 and chosen(name, i) else d
            for i, d in enumerate(type_.static)
        )

    return with_inputs(graph, shape)


@dataclass
class Opened:
    """A graph with open sizes, and its code."""

    plain: Graph
    graph: Graph
    scope: SizeScope
    code: ShapeCode

    def problem(self, feeds: Mapping[str, Array]) -> str | None:
        """Run feeds and compare with the reference; None if all is right, or not comparable."""
        values = self.code.bind({k: x.shape for k, x in feeds.items()})
        if values is None:
            return None
        graph = self.sized(values)
        with np.errstate(all="ignore"):
            try:
                expected = evaluate(graph, feeds)
            except MonographError:
                return None
            given = self.code.executable(values).run(feeds)
            names = graph.output_names
            wrong = first_wrong(
                graph,
                feeds,
                dict(zip(names, given, strict=True)),
                dict(zip(names, expected, strict=True)),
            )
        sizes = {s.name: n for s, n in values.items()}
        return None if wrong is None else f"{sizes}: {wrong.name}: {wrong.problem}"

    def sized(self, values: Mapping[Symbol, int]) -> Graph:
        """Return the graph at some sizes; raises InferError for sizes that it cannot take."""
        types = dict(zip(self.graph.input_names, self.graph.input_types, strict=True))

        def shape(name: str, type_: TensorType) -> tuple[int, ...]:
            found = types[name]
            assert isinstance(found, TensorType)
            return tuple(value_of(d.expression, values) if is_open(d) else d for d in found.static)

        return with_inputs(self.plain, shape)

    def other_feeds(self, feeds: Mapping[str, Any], rng: random.Random) -> dict[str, Array] | None:
        """Return feeds of other sizes that the guards allow; None if these do not."""
        values = {s: rng.choice(SIZES) if rng.random() < 0.7 else n for s, n in self.hints.items()}
        return self.feeds_of(values, feeds)

    def feeds_of_one(self, feeds: Mapping[str, Any]) -> Iterator[dict[str, Array]]:
        """Return feeds with each size 1 alone, and all of them, where guards allow that."""
        choices = [{s: 1} for s in self.hints]
        if len(choices) > 1:
            choices.append(dict.fromkeys(self.hints, 1))
        made = (self.feeds_of({**self.hints, **chosen}, feeds) for chosen in choices)
        return (found for found in made if found is not None)

    def feeds_of(
        self, values: Mapping[Symbol, int], feeds: Mapping[str, Any]
    ) -> dict[str, Array] | None:
        """Return feeds of some sizes; None if guards or the op do not allow them."""
        if not self.scope.holds(values) or any(n < s.least for s, n in values.items()):
            return None
        try:
            graph = self.sized(values)
        except MonographError:
            return None
        types = zip(graph.input_names, graph.input_types, strict=True)
        sized = {n: t.static for n, t in types if isinstance(t, TensorType) and t.is_static}
        return {n: np.resize(x, sized[n]) if n in sized else x for n, x in feeds.items()}

    @property
    def hints(self) -> Mapping[Symbol, int]:
        return self.scope.hints


def compiled_for_cpu(graph: Graph, scope: SizeScope) -> ShapeCode:
    """Compile a graph with open sizes for the CPU. Addresses are checked."""
    KERNELS.load()
    return compile_any_shape(graph, scope, host_features(), THREADS, checked=True)


def open_graph(
    graph: Graph,
    chosen: Callable[[str, int], bool] = lambda *_: True,
    compiled: Callable[[Graph, SizeScope], ShapeCode] = compiled_for_cpu,
    least: int = 1,
) -> Opened | None:
    """Compile a graph with open dimensions; None if it has none to open.

    Raises UnsupportedError for a graph that is no single program of kernels.
    """
    scope = SizeScope(least)
    made = opened(graph, scope, chosen)
    if not scope.hints:
        return None
    return Opened(graph, made, scope, compiled(made, scope))
