"""The CPU target of a session: how its graphs are compiled to native code and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from monograph.codegen.llvm.module.features import choose_features
from monograph.config import Config
from monograph.ir import Graph, TensorType
from monograph.runtime.cache.any_shape_artefact import AnyShapeArtefact
from monograph.runtime.cache.artefact import Artefact, LoadedExecutable
from monograph.runtime.cache.object_cache import open_cache
from monograph.runtime.cache.store import store_options
from monograph.runtime.counts import RunCounters
from monograph.runtime.cpu.any_shape import AnyShape
from monograph.runtime.cpu.pool import keep_pool_in
from monograph.runtime.cpu.threads import choose_threads
from monograph.runtime.executable import CompiledArtefact, Executable
from monograph.runtime.forking import import_whole
from monograph.runtime.progress import Progress
from monograph.runtime.target import Target

if TYPE_CHECKING:
    from monograph.ir.sizes import SizeScope
    from monograph.runtime.dynamic.stage_compiler import Compiler
    from monograph.runtime.shape_code import ShapeCode


class CpuBackend(Target):
    """The CPU of this machine, by a number of threads and an instruction set."""

    def __init__(
        self,
        config: Config,
        optimise: Callable[[Graph], Graph],
        progress: Progress,
        counters: RunCounters | None,
    ) -> None:
        self._config = config
        self._optimise = optimise
        self._progress = progress
        self._counters = counters
        self.threads = choose_threads(config.threads)
        keep_pool_in(open_cache(config))

    def optimise(self, graph: Graph) -> Graph:
        return self._optimise(graph)

    def compiler(self) -> Compiler:
        """Return what compiles the stages of a graph."""
        from monograph.runtime.dynamic.stage_compiler import Compiler

        return Compiler(
            choose_features(self._config.cpu_isa),
            self.threads,
            open_cache(self._config),
            self._config.winograd,
            self._optimise,
            self._config.max_cached_shapes,
            self._progress,
            tally=self._counters,
            checked=self._config.checked,
        )

    def compile(self, graph: Graph) -> Executable:
        # A process that finds its code on disk does not import the compiler.
        from monograph.codegen.llvm.module.kernel import KERNELS
        from monograph.runtime.dynamic.staged import compile_stages

        import_whole(KERNELS.load)
        return compile_stages(graph, self.compiler())

    def compile_any_shape(self, graph: Graph, scope: SizeScope) -> ShapeCode:
        """Compile an optimised graph with open sizes."""
        from monograph.codegen.llvm.module.kernel import KERNELS
        from monograph.runtime.dynamic.staged import compile_open

        import_whole(KERNELS.load)
        types = zip(graph.input_names, graph.input_types, strict=True)
        shapes = {name: t.static for name, t in types if isinstance(t, TensorType)}
        return compile_open(graph, self.compiler(), scope, shapes)

    def load(
        self, artefact: CompiledArtefact, compile_again: Callable[[], Executable]
    ) -> LoadedExecutable:
        assert isinstance(artefact, Artefact)
        made = LoadedExecutable(artefact, compile_again)
        if self._counters is not None:
            self._counters.watch(made)
        return made

    def open_variant(self, artefact: CompiledArtefact) -> ShapeCode:
        assert isinstance(artefact, AnyShapeArtefact)
        return AnyShape(artefact)

    def store_options(
        self, dims: Mapping[str, int], donate: Mapping[str, str]
    ) -> dict[str, Any] | None:
        return store_options(self._config, dims, donate)

    def package_options(self, dims: Mapping[str, int], donate: Mapping[str, str]) -> dict[str, Any]:
        return store_options(self._config, dims, donate)
