"""Session: what users hold. A model on a target, ready to run."""

from __future__ import annotations

import operator
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import onnx

from monograph.codegen.llvm.features import choose_features
from monograph.config import Config, make_config
from monograph.errors import (
    ConfigError,
    ExecutionError,
    FeedError,
    UnknownRankError,
    did_you_mean,
)
from monograph.frontend.onnx import ModelFile, import_model, read_model
from monograph.frontend.onnx.dtypes import declared_names, declared_type, value_type
from monograph.ir import Array, Graph, TensorType, Type, evaluate, verify
from monograph.ir.verify import same_memory
from monograph.pipeline import PassOptions, optimise
from monograph.runtime.cache import open_cache
from monograph.runtime.executable import CpuExecutable, compile_graph, fresh
from monograph.runtime.feeds import Port, check_feeds
from monograph.runtime.threads import choose_threads
from monograph.runtime.tolerance import Tolerance, allowed_by_file, derive

ModelSource: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto

_CPU_PASSES = PassOptions(overrides={"choose_layout": {"layout": "channels_last"}})
DECISIVE_ELEMENTS = 64
"""Integer inputs up to this size may decide ranks: they look like shapes, axes or sizes."""


def load(
    source: ModelSource,
    target: str | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    donate: Mapping[str, str] | None = None,
    **options: Any,
) -> Session:
    """Loads a model for a target.

    source: the path of an ONNX file, the bytes of one, or a ModelProto.
    target: what runs it; "reference" evaluates with numpy and is right, not fast; "cpu" compiles
        the model to native code for this machine.
    dims: sizes for named dimensions of the inputs, e.g. {"batch": 1}.
    donate: outputs that are written into an input's memory, e.g. {"present": "past"}.
    options: see `monograph.config.Config`.
    """
    config = make_config(target=target, **options)
    for name, given in {"dims": dims, "donate": donate}.items():
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"{name} is a mapping", expected="a dict", given=repr(given))
    return Session(read_model(source), config, dict(dims or {}), dict(donate or {}))


class Session:
    """A loaded model. `run` may be called from several threads at once."""

    def __init__(
        self, model: ModelFile, config: Config, dims: dict[str, int], donate: dict[str, str]
    ) -> None:
        self.config = config
        self._model = model
        self._dims = {name: _size(name, size) for name, size in dims.items()}
        self._donate = donate
        self._lock = threading.Lock()
        self._by_shape: OrderedDict[tuple[Any, ...], Graph] = OrderedDict()
        self._executables: OrderedDict[Graph, CpuExecutable] = OrderedDict()
        self._by_signature: dict[tuple[Any, ...], CpuExecutable] = {}
        self._values_decide = False
        self._runs = 0
        self._graph: Graph | None = None
        self._late: UnknownRankError | None = None
        self._check_dims()
        self._check_donations()
        try:
            self._graph = self._import({})
        except UnknownRankError as e:
            # Some rank is decided by the shapes of the feeds: import once those are known.
            self._late = e
        self.inputs: tuple[Port, ...] = self._ports(self._graph, "inputs")
        self.outputs: tuple[Port, ...] = self._ports(self._graph, "outputs")
        self.optional_inputs: tuple[Port, ...] = self._optional_ports()
        """Inputs that the model has a value for: fed, they take the place of that value."""
        self._names = [p.name for p in self.inputs]

    @property
    def graph(self) -> Graph:
        """The imported graph, symbolic dimensions and all."""
        if self._graph is None:
            assert self._late is not None
            raise self._late
        return self._graph

    @property
    def stats(self) -> dict[str, Any]:
        """What the session has done: runs, shapes compiled, launches and host steps of a run."""
        with self._lock:
            made = list(self._executables.values())
        return {
            "runs": self._runs + sum(e.runs for e in made),
            "compiled": len(made),
            "launches_per_run": max((e.launches for e in made), default=0),
            "kernels_per_run": max((e.kernels for e in made), default=0),
            "host_steps": sorted({s.region.kind for e in made for s in e.host_steps}),
            "peak_bytes": max((e.module.arena_bytes for e in made), default=0),
        }

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
        """Runs the model once; the outputs as fresh arrays, in model order.

        feeds: an array for every input, by name; for optional inputs there may be one.
        outputs: the names of the outputs to return, in this order; all of them by default.
        """
        if outputs is None and (known := self._known_executable(feeds)) is not None:
            return known.run(feeds)
        if not isinstance(feeds, Mapping):
            raise FeedError("feeds are a mapping from names to arrays", given=type(feeds).__name__)
        names = {p.name: None for p in self.outputs}
        wanted = list(names) if outputs is None else _names(outputs)
        if unknown := [n for n in wanted if n not in names]:
            raise FeedError(
                "the model has no such output",
                expected=list(names),
                given=unknown,
                hint=did_you_mean(unknown, names),
            )
        checked = self._checked(feeds)
        if self.config.target == "cpu":
            executable = self._executable_for(checked)
            self._remember(checked, executable)
            made = executable.run(checked)
        else:
            made = evaluate(self._graph_for(checked), checked)
            self._runs += 1
        results = dict(zip(names, made, strict=True))
        if self.config.target == "cpu":
            return [results[n] for n in wanted]
        try:
            return [fresh(results[n]) for n in wanted]
        except MemoryError:
            # Up to here a repeated element may have taken no memory.
            raise ExecutionError(
                "out of memory for the outputs", given=", ".join(map(str, self.outputs))
            ) from None

    def tolerances(
        self, feeds: Mapping[str, Any], *, reference: bool = False
    ) -> dict[str, Tolerance]:
        """How far each output of a run on these feeds may lie from what others compute.

        A file may allow others a lower precision; the reference makes no use of that.
        """
        allowed = 0.0 if reference else allowed_by_file(self._model)
        return derive(self.bound_graph(feeds), allowed)

    def graph_for(self, feeds: Mapping[str, Any]) -> Graph:
        """The graph that a run on these feeds evaluates; `graph` itself for most models."""
        return self._graph_for(self._checked(feeds))

    def bound_graph(self, feeds: Mapping[str, Any]) -> Graph:
        """The imported graph with its dimensions bound to the sizes of these feeds."""
        config = replace(self.config, target="reference", optimise=False)
        plain = Session(self._model, config, self._dims, self._donate)
        return plain._bound_for(self._checked(feeds))

    def executable(self, feeds: Mapping[str, Any]) -> CpuExecutable:
        """What a run on these feeds executes on the CPU target: compiled now, if not before."""
        return self._executable_for(self._checked(feeds))

    def _checked(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return check_feeds(self.inputs, feeds, self.optional_inputs)

    def _known_executable(self, feeds: Any) -> CpuExecutable | None:
        """The executable of an earlier run on arrays of the same shapes and types, if any."""
        if not self._by_signature:
            return None
        try:
            if len(feeds) != len(self._names):
                return None
            key = tuple([(feeds[n].shape, feeds[n].dtype) for n in self._names])
        except (AttributeError, KeyError, TypeError):
            return None
        return self._by_signature.get(key)

    def _remember(self, feeds: dict[str, Any], executable: CpuExecutable) -> None:
        """Lets the next run on such feeds skip every check: they have just been made."""
        if self._values_decide or not all(isinstance(x, np.ndarray) for x in feeds.values()):
            return
        if len(feeds) != len(self._names):  # optional inputs among them
            return
        if len(self._by_signature) >= self.config.shapes_kept:
            self._by_signature.clear()
        self._by_signature[tuple([(feeds[n].shape, feeds[n].dtype) for n in self._names])] = (
            executable
        )

    def _executable_for(self, feeds: dict[str, Any]) -> CpuExecutable:
        graph = self._bound_for(feeds)
        with self._lock:
            if graph not in self._executables:
                features = choose_features(self.config.features)
                threads = choose_threads(self.config.threads)
                cache = open_cache(self.config)
                self._executables[graph] = compile_graph(
                    graph, features, threads, cache, self.config.winograd
                )
            self._executables.move_to_end(graph)
            while len(self._executables) > self.config.shapes_kept:
                self._executables.popitem(last=False)
            return self._executables[graph]

    def _graph_for(self, feeds: dict[str, Any]) -> Graph:
        plain = self._graph is not None and not self.config.optimise
        if plain and len(feeds) == len(self.inputs):
            return self.graph
        return self._bound_for(feeds)

    def _bound_for(self, feeds: dict[str, Any]) -> Graph:
        arrays = {n: x for n, x in feeds.items() if isinstance(x, np.ndarray)}
        with self._lock:
            if not self._values_decide:
                try:
                    return self._kept(arrays, {})
                except UnknownRankError:
                    # Shapes do not tell either: some rank depends on what small inputs hold.
                    self._values_decide = True
            decisive = {
                n: x
                for n, x in arrays.items()
                if x.dtype.kind in "iub" and x.ndim <= 1 and x.size <= DECISIVE_ELEMENTS
            }
            return self._kept(arrays, decisive)

    def _kept(self, arrays: dict[str, Array], values: dict[str, Array]) -> Graph:
        """The graph for inputs of these shapes, and of these values where they matter."""
        shapes = {n: x.shape for n, x in arrays.items()}
        key = (tuple(shapes.items()), tuple(x.tobytes() for x in values.values()))
        if key not in self._by_shape:
            graph = self._import(shapes, values)
            self._by_shape[key] = self._optimised(graph)
        self._by_shape.move_to_end(key)
        while len(self._by_shape) > self.config.shapes_kept:
            self._by_shape.popitem(last=False)
        return self._by_shape[key]

    def _optimised(self, graph: Graph) -> Graph:
        """The graph as the target wants it."""
        if self.config.target == "cpu":
            return optimise(graph, options=_CPU_PASSES)
        return optimise(graph) if self.config.optimise else graph

    def _import(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, Array] | None = None,
    ) -> Graph:
        graph = import_model(
            self._model,
            dims=self._dims,
            shapes=shapes,
            values=values,
            donate=self._donate,
            fed=shapes.keys(),
        )
        self._check_donated_types(graph)
        return verify(graph)

    def _ports(self, graph: Graph | None, which: str) -> tuple[Port, ...]:
        """What the graph says of its inputs or outputs, or else what the file declares."""
        if graph is not None:
            if which == "inputs":
                return tuple(map(Port, graph.input_names, graph.input_types))
            # The file may have a name, or a size, for what could not be inferred.
            infos = {info.name: info for info in self._declared(which)}
            shapes = [t.shape or () for t in graph.input_types if isinstance(t, TensorType)]
            known = {d for shape in shapes for d in shape}
            return tuple(
                Port(n, self._sized(declared_names(t, infos[n].type, n, known)))
                for n, t in zip(graph.output_names, graph.output_types, strict=True)
            )
        return tuple(Port(i.name, declared_type(i)) for i in self._declared(which))

    def _optional_ports(self) -> tuple[Port, ...]:
        """Inputs with an initialiser; before IR version 4 that is how files list weights."""
        if self._model.proto.ir_version < 4:
            return ()
        defaults = self._model.initialisers
        infos = [info for info in self._model.proto.graph.input if info.name in defaults]
        return tuple(Port(i.name, self._sized(value_type(i.type, i.name))) for i in infos)

    def _sized(self, type_: Type) -> Type:
        """A type with the dimensions in it that the caller gave a size."""
        if not isinstance(type_, TensorType) or type_.shape is None:
            return type_
        return type_.with_shape(tuple(self._dims.get(str(d), d) for d in type_.shape))

    def _declared(self, which: str) -> list[onnx.ValueInfoProto]:
        """The inputs or outputs as the file declares them."""
        proto = self._model.proto.graph
        if which == "outputs":
            return list(proto.output)
        return [i for i in proto.input if i.name not in self._model.initialisers]

    def _check_dims(self) -> None:
        """Refuses a bound dimension that the model does not have."""
        declared: set[str] = set()
        for info in self._model.proto.graph.input:
            kind = value_type(info.type, info.name)
            if isinstance(kind, TensorType):
                declared |= {d for d in kind.shape or () if isinstance(d, str)}
        if unknown := sorted(set(self._dims) - declared):
            raise ConfigError(
                "the model has no such dimension",
                expected=sorted(declared),
                given=unknown,
                hint=did_you_mean(unknown, declared),
            )

    def _check_donations(self) -> None:
        """Refuses a donation from an output or into an input that the model does not have."""
        for which, given in (("outputs", self._donate.keys()), ("inputs", self._donate.values())):
            known = {info.name: None for info in self._declared(which)}
            if unknown := [name for name in given if name not in known]:
                raise ConfigError(
                    f"donate names {which} that the model does not have",
                    expected=list(known),
                    given=unknown,
                    hint="donate maps outputs to inputs: {'present': 'past'}",
                )
        counted = Counter(self._donate.values())
        if twice := [name for name, count in counted.items() if count > 1]:
            raise ConfigError("donate writes several outputs into one input", given=twice)

    def _check_donated_types(self, graph: Graph) -> None:
        """Refuses a donation into an input of another type."""
        outputs = dict(zip(graph.output_names, graph.output_types, strict=True))
        inputs = dict(zip(graph.input_names, graph.input_types, strict=True))
        for output, input_ in self._donate.items():
            if not same_memory(outputs[output], inputs[input_]):
                raise ConfigError(
                    f"output {output!r} cannot be written into input {input_!r}",
                    expected=inputs[input_],
                    given=outputs[output],
                    hint="a donated output has the dtype and shape of its input",
                )


def _size(name: str, given: Any) -> int:
    """The size of a dimension, from any kind of integer."""
    try:
        size = operator.index(given)
    except TypeError:
        size = -1
    if size < 0 or isinstance(given, bool):
        raise ConfigError(
            "a dimension is a size", expected="an integer >= 0", given=f"{name}: {given!r}"
        )
    return size


def _names(outputs: Any) -> list[str]:
    """Names of outputs, given as a sequence: the letters of one name are none."""
    if isinstance(outputs, (str, bytes)) or not isinstance(outputs, Iterable):
        raise FeedError(
            "outputs are chosen by a sequence of names",
            expected=f"[{outputs!r}]" if isinstance(outputs, str) else "a list of names",
            given=repr(outputs),
        )
    found = list(outputs)
    if bad := [n for n in found if not isinstance(n, str)]:
        raise FeedError("outputs are chosen by a sequence of names", given=bad)
    return found
