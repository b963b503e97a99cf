"""The reference target: graphs are evaluated with numpy, op by op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from monograph.errors import ExecutionError, InferError
from monograph.ir import Graph, evaluate
from monograph.runtime.cpu.launch import fresh
from monograph.runtime.executable import CompiledArtefact, Executable, Feeds, Outputs
from monograph.runtime.outputs import NOTHING
from monograph.runtime.target import Target


class ReferenceExecutable(Executable):
    """A graph that is evaluated. A session makes one for each run."""

    runs = copies = launches = kernels = bounds_checks = arena_bytes = constant_bytes = 0
    flops = moved = 0.0

    def __init__(self, graph: Graph, bind: Callable[[], Graph], finished: Counter[str]) -> None:
        """bind: binds the graph to the shapes of a run, which fails if they do not fit.

        finished: counts the runs.
        """
        self._graph = graph
        self._bind = bind
        self._finished = finished

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        try:
            made = evaluate(self._graph, dict(feeds))
        except (ExecutionError, InferError):
            # One graph serves all shapes; only binding tells whether it takes these.
            self._bind()
            raise
        self._finished["runs"] += 1
        try:
            return [fresh(x) for x in made]
        except MemoryError:
            # Until here a repeated element may have taken no memory.
            outputs = ", ".join(f"{name}: {v.type}" for name, v in self._graph.outputs)
            raise ExecutionError("out of memory for the outputs", given=outputs) from None


class ReferenceTarget(Target):
    """The target that evaluates graphs."""

    evaluates = True

    def __init__(self, optimise: Callable[[Graph], Graph]) -> None:
        self._optimise = optimise

    def optimise(self, graph: Graph) -> Graph:
        return self._optimise(graph)

    def compile(self, graph: Graph) -> Executable:
        return ReferenceExecutable(graph, lambda: graph, Counter())

    def load(
        self, artefact: CompiledArtefact, compile_again: Callable[[], Executable]
    ) -> Executable:
        return compile_again()

    def package_options(self, dims: Mapping[str, int], donate: Mapping[str, str]) -> dict[str, Any]:
        raise ExecutionError("the reference target compiles nothing that a package could hold")
