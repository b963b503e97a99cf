"""A model file and the graphs that it becomes: one for all shapes, one for each set of shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from monograph.errors import ConfigError, FeedError, InferError, UnknownRankError, did_you_mean
from monograph.frontend.onnx import ModelFile, import_model
from monograph.frontend.onnx.dtypes import declared_names, declared_type, value_type
from monograph.frontend.onnx.importer import NodeTurns
from monograph.frontend.onnx.sizes import dims_misfit, feed_misfit
from monograph.ir import Array, Graph, TensorType, Type, verify
from monograph.ir.lazy import lazy
from monograph.ir.verify import same_memory
from monograph.runtime.feeds import (
    DECISIVE_ELEMENTS,
    Metadata,
    ModelSignature,
    Port,
    clashing_sizes,
)


class Model:
    """A model that has been read, with the sizes and donations that a session gives it."""

    def __init__(self, file: ModelFile, dims: Mapping[str, int], donate: Mapping[str, str]) -> None:
        self.file = file
        self._dims = dims
        self._donate = donate
        self._graph: Graph | None = None
        self._turns: NodeTurns = {}
        self._late: UnknownRankError | None = None
        self.values_decide = False
        """True if ranks depend on the values of small inputs, not on shapes alone."""
        self._check_dims()
        self._check_donations()
        try:
            self._graph = self._import({})
        except UnknownRankError as e:
            # Some rank is decided by the shapes of the feeds: import once those are known.
            self._late = e
            self._check_declared_donations()
        except InferError as e:
            if not dims or e.internal or not self._takes_other_sizes():
                raise
            raise dims_misfit(e, dims) from e

    @property
    def graph(self) -> Graph:
        """The imported graph, symbolic dimensions and all."""
        if self._graph is None:
            assert self._late is not None
            raise self._late
        return self._graph

    @property
    def imported(self) -> bool:
        """True if there is such a graph."""
        return self._graph is not None

    @lazy
    def signature(self) -> ModelSignature:
        """The inputs and outputs of the model."""
        return ModelSignature(
            self._ports(self._graph, "inputs"),
            self._ports(self._graph, "outputs"),
            self._optional_ports(),
            read_metadata(self.file.proto),
        )

    def bound(self, feeds: Mapping[str, Any]) -> Graph:
        """The graph for inputs of these shapes, and of these values where they matter."""
        if self._graph is not None and self._is_bound(self._graph, feeds):
            return self._graph
        arrays = {n: x for n, x in feeds.items() if isinstance(x, np.ndarray)}
        try:
            return self._bind(arrays)
        except InferError as e:
            if isinstance(e, UnknownRankError) or e.internal:
                raise
            raise feed_misfit(self.file.proto.graph, e, arrays) from e

    def opened(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        """The graph for inputs of these shapes, some of whose sizes are open."""
        return self._import(shapes)

    def _bind(self, arrays: Mapping[str, Array]) -> Graph:
        """The graph for inputs like these arrays."""
        shapes = {n: x.shape for n, x in arrays.items()}
        try:
            if not self.values_decide:
                try:
                    return self._import(shapes)
                except UnknownRankError:
                    # Shapes do not tell either: some rank depends on what small inputs hold.
                    self.values_decide = True
            return self._import(shapes, decisive(arrays))
        except InferError as e:
            clashes = clashing_sizes(self.signature.inputs, shapes)
            if not clashes:
                raise
            listed = "".join(f"\n    {c}" for c in clashes)
            raise FeedError(f"the feeds do not fit the model:{listed}", given=str(e)) from e

    def _takes_other_sizes(self) -> bool:
        """Return True if the model can be imported without the sizes that the caller gave."""
        try:
            import_model(self.file, donate=self._donate)
        except UnknownRankError:
            return True
        except InferError:
            return False
        return True

    @staticmethod
    def _is_bound(graph: Graph, feeds: Mapping[str, Any]) -> bool:
        """Return True if feeds add nothing that the graph does not know: no shape, no default."""
        static = all(isinstance(t, TensorType) and t.is_static for t in graph.input_types)
        return static and set(feeds) == set(graph.input_names)

    def _import(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, Array] | None = None,
    ) -> Graph:
        graph = import_model(
            self.file,
            dims=self._dims,
            shapes=shapes,
            values=values,
            donate=self._donate,
            fed=shapes.keys(),
            turns=self._turns,
        )
        self._check_donated_types(graph)
        return verify(graph)

    def _ports(self, graph: Graph | None, which: str) -> tuple[Port, ...]:
        """Return the inputs or outputs as the graph or else the file declares them."""
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
        return tuple(Port(i.name, self._sized_or_none(i)) for i in self._declared(which))

    def _sized_or_none(self, info: onnx.ValueInfoProto) -> Type | None:
        """The type that the file declares, if any, with the sizes that the caller gave."""
        type_ = declared_type(info)
        return None if type_ is None else self._sized(type_)

    def _optional_ports(self) -> tuple[Port, ...]:
        """Inputs with an initialiser; before IR version 4 that is how files list weights."""
        if self.file.proto.ir_version < 4:
            return ()
        defaults = self.file.initialisers
        infos = [info for info in self.file.proto.graph.input if info.name in defaults]
        return tuple(Port(i.name, self._sized(value_type(i.type, i.name))) for i in infos)

    def _sized(self, type_: Type) -> Type:
        """A type with the dimensions in it that the caller gave a size."""
        if not isinstance(type_, TensorType) or type_.shape is None:
            return type_
        return type_.with_shape(tuple(self._dims.get(str(d), d) for d in type_.shape))

    def _declared(self, which: str) -> list[onnx.ValueInfoProto]:
        """The inputs or outputs as the file declares them."""
        proto = self.file.proto.graph
        if which == "outputs":
            return list(proto.output)
        return [i for i in proto.input if i.name not in self.file.initialisers]

    def _check_dims(self) -> None:
        """Refuses a bound dimension that the model does not have."""
        infos = self.file.proto.graph.input
        check_dims(self._dims, [Port(i.name, value_type(i.type, i.name)) for i in infos])

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

    def _check_declared_donations(self) -> None:
        """Refuses dtypes and ranks that differ, where the graph itself has to wait for feeds.

        The sizes that a file declares for its outputs may be wrong.
        """
        outputs = {p.name: p.type for p in self._ports(None, "outputs")}
        inputs = {p.name: p.type for p in self._ports(None, "inputs")}
        for output, input_ in self._donate.items():
            new, old = outputs[output], inputs[input_]
            if not isinstance(new, TensorType) or not isinstance(old, TensorType):
                continue
            ranked = new.shape is not None and old.shape is not None
            if new.dtype != old.dtype or (ranked and new.rank != old.rank):
                raise _not_alike(output, new, input_, old)

    def _check_donated_types(self, graph: Graph) -> None:
        """Refuses a donation into an input of another type."""
        outputs = dict(zip(graph.output_names, graph.output_types, strict=True))
        inputs = dict(zip(graph.input_names, graph.input_types, strict=True))
        for output, input_ in self._donate.items():
            if not same_memory(outputs[output], inputs[input_]):
                raise _not_alike(output, outputs[output], input_, inputs[input_])


def check_dims(dims: Mapping[str, int], inputs: Sequence[Port]) -> None:
    """Refuse a size of a dimension that the inputs do not have."""
    shapes = {p.name: p.type.shape for p in inputs if isinstance(p.type, TensorType)}
    declared = {d for shape in shapes.values() for d in shape or () if isinstance(d, str)}
    if unknown := sorted(set(dims) - declared):
        hint = did_you_mean(unknown, declared)
        unranked = [name for name, shape in shapes.items() if shape is None]
        if hint is None and unranked:
            listed = ", ".join(unranked)
            hint = f"the model declares no rank for {listed}: the arrays that are fed decide it"
        raise ConfigError(
            "the model has no such dimension", expected=sorted(declared), given=unknown, hint=hint
        )


def _not_alike(output: str, new: Type, input_: str, old: Type) -> ConfigError:
    return ConfigError(
        f"output {output!r} cannot be written into input {input_!r}",
        expected=old,
        given=new,
        hint="a donated output has the dtype and shape of its input",
    )


def read_metadata(proto: onnx.ModelProto) -> Metadata:
    """Return the texts of a model file; of two properties of one name the last one counts."""
    return Metadata(
        {_text(p.key): _text(p.value) for p in proto.metadata_props},
        _text(proto.producer_name),
        _text(proto.domain),
        int(proto.model_version) if proto.HasField("model_version") else None,
        _text(proto.doc_string),
        _text(proto.graph.name),
        _text(proto.graph.doc_string),
    )


def _text(given: Any) -> str:
    """Return a text of a file; protobuf returns invalid UTF-8 as bytes."""
    return given.decode(errors="replace") if isinstance(given, bytes) else str(given)


def decisive(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs whose values may decide ranks."""
    return {
        n: x
        for n, x in arrays.items()
        if x.dtype.kind in "iub" and x.ndim <= 1 and x.size <= DECISIVE_ELEMENTS
    }
