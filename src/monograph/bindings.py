"""A model bound to the shapes of feeds: its graphs, and on the CPU or a GPU its executables.

An executable is looked for on disk first, by the digest of the model file: one that is found there
takes no import, no rewriting and no compiling. Both are kept while they are in use.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from monograph.config import Config
from monograph.errors import ConfigError, FeedError
from monograph.ir import Graph, TensorType
from monograph.runtime.cache.store import (
    ArtefactReaders,
    CacheStore,
    Shapes,
    UnreadModel,
    is_package,
    open_store,
)
from monograph.runtime.cache.weights import MissingWeightsError
from monograph.runtime.counts import OFF, RunCounters
from monograph.runtime.cpu.any_shape import AnyShapeExecutable
from monograph.runtime.cpu.backend import CpuBackend
from monograph.runtime.cpu.background import why_no_process
from monograph.runtime.cpu.stored_exact import ModelUse, StoredExactCode
from monograph.runtime.cpu.tiers import TieredExecutable, Tiers
from monograph.runtime.cpu.trim_memory import release_memory, release_soon
from monograph.runtime.cpu.variants import Variants
from monograph.runtime.executable import Executable
from monograph.runtime.fast_path import closed
from monograph.runtime.feed_shapes import arrays_of, dtypes_of, without_data
from monograph.runtime.feeds import ModelSignature, clashing_sizes
from monograph.runtime.forking import ForkLock, import_whole
from monograph.runtime.kept_executables import KeptExecutables, Key
from monograph.runtime.progress import Progress, until_ready
from monograph.runtime.reference import ReferenceExecutable
from monograph.runtime.shape_code import ShapeCode
from monograph.runtime.target import Target
from monograph.targets import REWRITES, open_target

# The frontend, the rewrites and the compiler take longer to import than a compiled model takes to
# load: what needs them imports them.
if TYPE_CHECKING:
    from monograph.ir.sizes import SizeScope
    from monograph.model import Model
    from monograph.runtime.cache.package import Package
    from monograph.runtime.dynamic.stage_compiler import Compiler

_READS = ("monograph.frontend.onnx.tensors", "monograph.model")
_COMPILES = (*REWRITES, "monograph.runtime.cpu.executable", "monograph.runtime.dynamic.staged")
"""Modules that are imported when a model is first read, rewritten and compiled."""

NOTHING_OPEN = "no dimension is open"
_log = logging.getLogger("monograph")
T = TypeVar("T")


class Bindings:
    """The graphs and executables of a session by input shapes. Several threads may ask at once."""

    def __init__(
        self,
        source: UnreadModel,
        config: Config,
        dims: Mapping[str, int],
        donate: Mapping[str, str],
        progress: Progress,
    ) -> None:
        self.donate = donate
        self.values_decide = False
        """True if ranks depend on the values of small inputs, not on shapes alone."""
        self.found = 0
        """The number of executables that were found on disk."""
        self.seconds = 0.0
        """The time spent compiling exact code here."""
        self.tally: RunCounters | None = None if config.capture == OFF else RunCounters()
        """The counters of all runs, of dropped executables too; None if captures are off."""
        self.kept = KeptExecutables(config.max_cached_shapes)
        self.graphs: OrderedDict[Key, Graph] = OrderedDict()
        self._source = source
        self._config = config
        self._dims = dims
        self._progress = progress
        self._lock = ForkLock()
        self._closed = False
        self.target: Target
        self.target, self.gpu = open_target(config, progress, self.tally)
        self._model: Model | None = None
        self._package: Package | None = None
        self._store: CacheStore | None = None
        if is_package(source.given):
            from monograph.runtime.cache.package import open_package

            self._package = open_package(source, config, dims, donate)
            if self.target.architecture:
                self._package.check_device(self.target.architecture)
            self.target.threads = self._package.options.get("threads", 0)
            self.donate = self._package.options["donate"]
        else:
            readers = ArtefactReaders(self.target.read_artefact, self.target.read_variant)
            options = self.target.store_options(dims, donate)
            names = (*dims, *donate, *donate.values())
            self._store = open_store(source, config, names, options, readers)
        self.variants = Variants(self._package or self._store, progress, self.target.open_variant)
        """The code for any shape."""
        with until_ready(self._progress):
            self.signature = self._signature()
        self.any_shape = config.specialise == "off" or (
            config.specialise == "auto" and config.target == "cpu"
        )
        if self.any_shape:
            self.variants.exact_reason = self._why_exact()
        # Not the bindings themselves: executables hold on to it.
        self._given = (source, config, dims, self.donate, progress)
        use = ModelUse(source, config, dims, self.donate)
        self.tiers: Tiers | None = None
        """The specialisations in the background; None if there are none."""
        self.one_tier_reason = self._why_one_tier(use)
        """The reason why nothing is specialised in the background; "" if something may be."""
        if not self.one_tier_reason:
            assert self._store is not None
            again = partial(_compiler, self._given)
            code = StoredExactCode(self._store, use, self.target, again)
            self.tiers = Tiers(config.max_cached_shapes, code)

    def _signature(self) -> ModelSignature:
        if self._package is not None:
            return self._package.signature(self._dims)
        known = self._store.signature() if self._store is not None else None
        if known is not None:
            return known
        made = self.model.signature
        if self._store is not None:
            self._store.keep_signature(made)
        return made

    @property
    def model(self) -> Model:
        """The model; it is read at the first use."""
        with self._lock:
            if self._model is None:
                self._model = self._read()
            return self._model

    def _read(self) -> Model:
        import_whole(*_READS)
        from monograph.frontend.onnx.tensors import external_files
        from monograph.model import Model

        if self._package is not None:
            raise ConfigError(
                "a package holds compiled code, and no graph",
                given=str(self._source.given),
                hint="load the model that it was compiled from",
            )
        self._progress("import", 0, 1)
        file = self._source.read()
        if self._store is not None:
            self._store.add_external_files(external_files(file.proto))
        return Model(file, self._dims, self.donate)

    def bound(self, feeds: dict[str, Any]) -> Graph:
        """Return the imported graph with its dimensions bound to the sizes of these feeds."""
        with self._lock:
            graph = self.model.bound(feeds)
            self.values_decide |= self.model.values_decide
            return graph

    def optimised(self, feeds: dict[str, Any]) -> Graph:
        """Return the bound graph after the passes of the target."""
        with self._lock:
            key = self._key(feeds)
            if key not in self.graphs:
                graph = self.target.optimise(self.bound(feeds))
                # Only now it is known whether values decide.
                key = self._key(feeds)
                self.graphs[key] = graph
            return _used(self.graphs, key, self._config.max_cached_shapes)

    def evaluated(self, feeds: dict[str, Any]) -> Graph:
        """Return the graph that the reference evaluates: one for all shapes, where that can be."""
        plain = self.model.imported and not self._config.optimise
        shapes = {name: x.shape for name, x in arrays_of(feeds).items()}
        inputs = self.signature.inputs
        # The graph for all shapes takes sizes of one name for one size.
        if plain and len(feeds) == len(inputs) and not clashing_sizes(inputs, shapes):
            return self.model.graph
        return self.optimised(feeds)

    def executable(self, feeds: dict[str, Any]) -> Executable:
        """Return what runs these feeds: from memory, from disk, or compiled now."""
        if self._closed:
            raise closed()
        if self.target.evaluates:
            graph = self.evaluated(feeds)
            return ReferenceExecutable(graph, lambda: self.bound(feeds), self.kept.gone)
        with self._lock:
            found = self.kept.find(self._key(feeds))
            if found is None:
                spent = self.variants.seconds + self.seconds
                loaded = self.variants.found + self.found
                with until_ready(self._progress):
                    found = self._make(feeds)
                self.kept.keep(self._key(feeds), found)
                if self.variants.seconds + self.seconds > spent:
                    release_memory()  # what only compiling needs
                elif self.variants.found + self.found > loaded:
                    release_soon()  # what only loading needs
            return found

    def close(self) -> None:
        """Drop all graphs and executables. What was counted stays; nothing runs any more."""
        with self._lock:
            self._closed = True
            if self.tiers is not None:
                self.tiers.close()
            self.kept.clear()
            self.graphs.clear()
            self._model = None
            release_memory()

    def with_values(self, names: tuple[str, ...]) -> Bindings:
        """Return the bindings of the same model with values as outputs besides its own."""
        if self._package is not None:
            raise FeedError(
                "the model has no such output",
                expected=[p.name for p in self.signature.outputs],
                given=list(names),
                hint="a package has outputs only: load the model for values inside of it",
            )
        source = self._source.with_values(names)
        return Bindings(source, self._config, self._dims, self.donate, self._progress)

    def knows(self, feeds: dict[str, Any]) -> bool:
        """Return True if there is an executable for such feeds, whatever their values."""
        with self._lock:
            return not self.values_decide and self.kept.holds(self._key(feeds))

    def has_code(self, feeds: dict[str, Any]) -> bool:
        """Return True if a run on such feeds compiles nothing."""
        if self.target.evaluates or self.knows(feeds):
            return True
        with self._lock:
            shapes, store = self._shapes(feeds), self._package or self._store
            if shapes is None:
                return False
            if self._package is not None or self._config.specialise != "now":
                fits = not self.variants.exact_reason and self.variants.find(shapes) is not None
                if fits:
                    return True
            return store is not None and store.find(shapes) is not None

    def use_of(self, feeds: dict[str, Any]) -> Callable[[], None]:
        """Return a function that reports a use of the executable of these feeds.

        It raises KeyError where the executable has been dropped.
        """
        return partial(self.kept.use, self._key(feeds))

    def made(self) -> list[Executable]:
        """Return the executables that are in memory."""
        with self._lock:
            return [e for _, e in self.kept.items()]

    def compiler(self) -> Compiler:
        """Return what compiles the stages of a graph for the CPU."""
        if not isinstance(self.target, CpuBackend):
            raise ConfigError('only target="cpu" has a CPU compiler', given=self._config.target)
        return self.target.compiler()

    def save(self, path: Path) -> None:
        """Write what has been compiled so far into a package."""
        from monograph.runtime.cache.package import write_package
        from monograph.runtime.cache.package_content import package_content

        with self._lock:
            made = self.kept.items()
        if not made:
            raise ConfigError("nothing has been compiled yet", hint="run the model once, then save")
        options = self.target.package_options(self._dims, self.donate)
        signature = self.signature
        if self._package is not None:  # whose options need not be given again
            options, signature = self._package.options, self._package.signature()
        content = package_content(
            made, self.variants.codes, on_gpu=self.target.enqueues, values_decide=self.values_decide
        )
        write_package(path, signature, options, *content, self.target.architecture)

    def note(self, name: str) -> str:
        """Return a text about the model from the cache on disk; "" if there is none."""
        return "" if self._store is None else self._store.note(name)

    def keep_note(self, name: str, text: str) -> None:
        """Store a text about the model in the cache on disk."""
        if self._store is not None:
            self._store.keep_note(name, text)

    @property
    def packaged(self) -> bool:
        """True if the model is a package, which holds code and no graph."""
        return self._package is not None

    @property
    def packaged_sizes(self) -> list[dict[str, int]]:
        """The sizes of dimensions that a package has code for, set by set; none of a model."""
        return [] if self._package is None else self._package.sizes

    def _find(self, feeds: dict[str, Any]) -> Executable | None:
        """Return what was compiled for such feeds before, by this process or another."""
        shapes = self._shapes(feeds)
        store = self._package or self._store
        if store is None or shapes is None:
            return None
        artefact = store.find(shapes)
        if artefact is None or not self.target.accepts(artefact):
            return None
        self._progress("load", 0, 1)
        try:
            made = self.target.load(artefact, _compiler(self._given, shapes, dtypes_of(feeds)))
        except MissingWeightsError:
            return None
        self.found += 1
        return made

    def _find_or_compile(self, feeds: dict[str, Any]) -> Executable:
        """Compile for such feeds, or wait for another process that does and load its result."""
        shapes = self._shapes(feeds)
        if self._store is None or shapes is None:
            return self._compile(feeds)
        with self._store.claimed(shapes, lambda: self._progress("wait", 0, 1)) as waited:
            return (self._find(feeds) if waited else None) or self._compile(feeds)

    def _compile(self, feeds: dict[str, Any]) -> Executable:
        """Compile for such feeds, and keep the result on disk if possible."""
        import_whole(*_COMPILES)
        from monograph.runtime.cpu.executable import CpuExecutable

        started = time.perf_counter()
        made = self.compiled(feeds)
        self.seconds += time.perf_counter() - started
        shapes = self._shapes(feeds)
        possible = isinstance(made, CpuExecutable) or self.target.enqueues
        artefact = made.artefact() if possible and self._store is not None else None
        if self._store is None or shapes is None or artefact is None:
            _log.info("the compiled model is not stored on disk as a whole")
            return made
        stored = self._store.keep(shapes, artefact)
        if stored is None:
            return made
        if isinstance(made, CpuExecutable):
            made.adopt(stored, _compiler(self._given, shapes, dtypes_of(feeds)))
        if all(isinstance(p.type, TensorType) and p.type.is_static for p in self.signature.inputs):
            # There will be no other shapes; what else is asked of the model, it is read for again.
            self._model = None
        return made

    def _make(self, feeds: dict[str, Any]) -> Executable:
        """Find or compile an executable for such feeds: code for any shape, or exact code."""
        shapes = self._shapes(feeds)
        if shapes is None or not (self.any_shape or self._package is not None):
            return self._find(feeds) or self._find_or_compile(feeds)
        if self._package is not None:
            if (exact := self._find(feeds)) is not None:
                return exact
            made = self.variants.find(shapes)
            if made is None:
                raise self._package.no_code(shapes, self.variants.misfits(shapes))
        else:
            made = self.variants.find_or_compile(shapes, self._compile_variant)
        if made is None:
            return self._find(feeds) or self._find_or_compile(feeds)
        if not isinstance(made, AnyShapeExecutable):
            return made  # a device counts its own runs
        if self.tally is not None:
            self.tally.watch(made)
        if self.tiers is None:
            return made
        return TieredExecutable(made, shapes, dtypes_of(feeds), self.tiers)

    def compile_exact(self, shapes: Shapes, dtypes: Mapping[str, str]) -> None:
        """Compile exact code for a set of shapes and store it, but do not keep it here."""
        with self._lock:
            if self._store is None or not self._store.has(shapes):
                self._find_or_compile(without_data(shapes, dtypes))

    def _why_one_tier(self, use: ModelUse) -> str:
        """Return why nothing is specialised in the background; "" if something may be."""
        if self._config.specialise != "auto":
            return f'specialise="{self._config.specialise}"'
        if not self.any_shape or self._package is not None:
            return "a package has no model" if self._package is not None else "not on a CPU"
        return self.variants.exact_reason or use.why_not_elsewhere or why_no_process()

    def _why_exact(self) -> str:
        """Return why a session has no code for any shape, as far as that is known beforehand."""
        ports = (*self.signature.inputs, *self.signature.optional)
        if not any(isinstance(d, str) for p in ports for d in p.shape or ()):
            return NOTHING_OPEN
        return "donated state has exact code" if self.donate else ""

    def _compile_variant(self, shapes: Shapes) -> ShapeCode:
        """Compile code whose guards allow these shapes, and as many others as possible."""
        import_whole(*_COMPILES)
        from monograph.ir.size_expressions import forget_results

        try:
            return self.target.compile_any_shape(*self.opened(shapes))
        finally:
            forget_results()

    def opened(self, shapes: Shapes) -> tuple[Graph, SizeScope]:
        """Return the graph of code for any shape after the passes, compiled for these shapes."""
        from monograph.ir.sizes import SizeScope
        from monograph.runtime.shape_code import open_shapes

        ports = (*self.signature.inputs, *self.signature.optional)
        declared = {p.name: p.shape for p in ports if p.shape is not None}
        # Kernels of a GPU take a size of 1 for a literal.
        scope = SizeScope(2 if self.target.enqueues else 1)
        with self._lock:
            graph = self.model.opened(open_shapes(declared, shapes, scope))
            return self.target.optimise(graph), scope

    def compiled(self, feeds: dict[str, Any]) -> Executable:
        """Compile an executable for such feeds now."""
        import_whole(*_COMPILES)
        with self._lock:
            return self.target.compile(self.target.optimise(self.bound(feeds)))

    def _key(self, feeds: dict[str, Any]) -> Key:
        """Return the key of a graph: the shapes of inputs, and the values that decide ranks."""
        arrays = arrays_of(feeds)
        shapes = tuple((name, x.shape) for name, x in arrays.items())
        if not self.values_decide:
            return (shapes,)
        from monograph.model import decisive

        return (shapes, tuple(x.tobytes() for x in decisive(arrays).values()))

    def _shapes(self, feeds: dict[str, Any]) -> Shapes | None:
        """Return the shapes of inputs; None if values decide what is compiled too."""
        arrays = arrays_of(feeds)
        if self.values_decide or len(arrays) != len(feeds):
            return None
        return {name: x.shape for name, x in arrays.items()}


def _compiler(
    given: tuple[Any, ...], shapes: Shapes, dtypes: Mapping[str, str]
) -> Callable[[], Executable]:
    """Return a function that compiles from the model file what was found on disk."""
    return lambda: Bindings(*given).compiled(without_data(shapes, dtypes))


def _used(kept: OrderedDict[Key, T], key: Key, limit: int) -> T:
    """Return an entry and mark it as used; drop those that were not used for longest."""
    kept.move_to_end(key)
    while len(kept) > limit:
        kept.popitem(last=False)
    return kept[key]
