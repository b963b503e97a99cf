"""The view of an ONNX node that converters read, and the registry of converters.

A converter is looked up by (domain, op, opset).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, cast

import numpy as np
import onnx

from monograph.errors import InferError, UnknownRankError, UnsupportedError
from monograph.frontend.onnx.dtypes import from_onnx, value_type
from monograph.ir import Array, DType, Graph, Literal, TensorType, Type, Value, known
from monograph.ir.types import holds_open

if TYPE_CHECKING:
    from monograph.frontend.onnx.importer import Scope


T = TypeVar("T")
_MISSING: Any = object()
_KINDS = onnx.AttributeProto


@dataclass(frozen=True)
class SubGraph:
    """An imported sub-graph: its formal inputs first, then one input for each captured value."""

    graph: Graph
    captures: tuple[Value, ...]


class Node:
    """An ONNX node during conversion: converters read it and return values."""

    def __init__(
        self,
        proto: onnx.NodeProto,
        label: str,
        inputs: tuple[Value | None, ...],
        attributes: dict[str, onnx.AttributeProto],
        opset: int,
        scope: Scope,
    ) -> None:
        self.op_type: str = proto.op_type
        self.domain: str = proto.domain
        self.label = label
        self._inputs = inputs
        self.attributes = attributes
        self.opset = opset
        self.outputs: tuple[str, ...] = tuple(proto.output)
        self.scope = scope
        self.read: set[str] = set()
        """The attributes that the converter has read, whether the node has them or not."""
        self.asked = 0
        """The number of inputs that the converter has read, up to the last one."""

    # Inputs and outputs

    @property
    def inputs(self) -> tuple[Value | None, ...]:
        self.asked = max(self.asked, len(self._inputs))
        return self._inputs

    @inputs.setter
    def inputs(self, given: tuple[Value | None, ...]) -> None:
        self._inputs = given

    def input(self, index: int) -> Value:
        """Return an input; raise an error if it is missing."""
        value = self.optional(index)
        if value is None:
            self.fail(f"input {index} is missing")
        return value

    def optional(self, index: int) -> Value | None:
        """Return an input; None if it is absent."""
        self.asked = max(self.asked, index + 1)
        return self._inputs[index] if index < len(self._inputs) else None

    def required(self) -> tuple[Value, ...]:
        """Return all inputs; raise an error if one is absent."""
        return tuple(self.input(i) for i in range(len(self.inputs)))

    def tensor(self, index: int) -> TensorType:
        """The type of an input that must be a tensor."""
        return self.input(index).tensor

    def rank(self, index: int) -> int:
        return self.tensor(index).rank

    def known(self, index: int) -> Array | None:
        """The data of an input that is a constant; None if it is absent or not constant."""
        return known(self.optional(index))

    def known_ints(self, index: int) -> tuple[int, ...] | None:
        """A constant input as ints; None if it is absent or not constant."""
        data = self.known(index)
        if data is None:
            return None
        if holds_open(data):
            return tuple(data.flat)
        if data.dtype.kind not in "iu" or data.ndim > 1:
            self.fail(f"input {index} is a vector of integers", given=f"{data.dtype}{data.shape}")
        return tuple(int(x) for x in data.reshape(-1))

    def wants(self, index: int) -> bool:
        """Return True if something uses output `index`."""
        return index < len(self.outputs) and self.outputs[index] != ""

    # Attributes

    def has(self, name: str) -> bool:
        self.read.add(name)
        return name in self.attributes

    def permit(self, *names: str) -> None:
        """Mark attributes as read that have no effect in the case at hand."""
        self.read.update(names)

    def _attribute(self, name: str, kind: int, read: Callable[[Any], T], default: T) -> T:
        self.read.add(name)
        proto = self.attributes.get(name)
        if proto is None:
            if default is _MISSING:
                self.fail(f"attribute {name!r} is missing")
            return default
        if proto.type != kind:
            self.fail(
                f"attribute {name!r} has the wrong kind",
                expected=_KINDS.AttributeType.Name(cast(Any, kind)),
                given=proto.type,
            )
        return read(proto)

    def attr_int(self, name: str, default: int = _MISSING) -> int:
        return self._attribute(name, _KINDS.INT, lambda a: int(a.i), default)

    def attr_flag(self, name: str, default: bool = False) -> bool:
        return bool(self.attr_int(name, int(default)))

    def attr_float(self, name: str, default: float = _MISSING) -> float:
        """Return a number as f32 holds it, the default too: 1e-5 is 9.99999974e-6."""
        if default is not _MISSING:
            default = float(np.float32(default))
        return self._attribute(name, _KINDS.FLOAT, lambda a: float(a.f), default)

    def attr_string(self, name: str, default: str = _MISSING) -> str:
        return self._attribute(name, _KINDS.STRING, lambda a: self._text(a.s), default)

    def attr_ints(self, name: str, default: tuple[int, ...] | None = _MISSING) -> Any:
        """A tuple of ints (typed Any: None only where None was the default)."""
        return self._attribute(name, _KINDS.INTS, lambda a: tuple(map(int, a.ints)), default)

    def attr_floats(self, name: str, default: tuple[float, ...] | None = _MISSING) -> Any:
        """A tuple of floats (typed Any: None only where None was the default)."""
        return self._attribute(name, _KINDS.FLOATS, lambda a: tuple(map(float, a.floats)), default)

    def attr_strings(self, name: str, default: tuple[str, ...] | None = _MISSING) -> Any:
        """A tuple of strings (typed Any: None only where None was the default)."""
        return self._attribute(
            name, _KINDS.STRINGS, lambda a: tuple(map(self._text, a.strings)), default
        )

    def attr_literal(self, name: str, default: Literal | None = _MISSING) -> Any:
        """A tensor attribute (typed Any: None only where None was the default)."""
        return self._attribute(name, _KINDS.TENSOR, lambda a: self.scope.literal(a.t), default)

    def attr_sparse(self, name: str) -> Literal:
        """A sparse tensor attribute, as a dense literal."""
        return self._attribute(
            name,
            _KINDS.SPARSE_TENSOR,
            lambda a: self.scope.sparse_literal(a.sparse_tensor),
            cast(Literal, _MISSING),
        )

    def attr_dtype(self, name: str, default: DType | None = _MISSING) -> Any:
        """An element type given as an int (typed Any: None only where None was the default)."""
        return self._attribute(name, _KINDS.INT, lambda a: from_onnx(a.i), default)

    def attr_type(self, name: str) -> Type:
        return self._attribute(
            name, _KINDS.TYPE_PROTO, lambda a: value_type(a.tp, name), cast(Type, _MISSING)
        )

    def attr_graph(self, name: str) -> onnx.GraphProto:
        return self._attribute(name, _KINDS.GRAPH, lambda a: a.g, cast(onnx.GraphProto, _MISSING))

    def subgraph(self, name: str, types: Sequence[Type | Value] = ()) -> SubGraph:
        """Import the sub-graph in an attribute; its formal inputs have these types.

        A formal input given as a (closed) value becomes that value, and is no input of the result.
        """
        return self.scope.subgraph(self.attr_graph(name), types, f"{self.label}.{name}")

    def inline_subgraph(self, name: str, given: Sequence[Value] = ()) -> tuple[Value, ...]:
        """The outputs of the sub-graph in an attribute, as values of the node's own graph."""
        # A distinct label: the same sub-graph may also be imported as a body.
        label = f"{self.label}.{name}" + (".first" if given else "")
        return self.scope.inline_subgraph(self.attr_graph(name), label, given)

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail("a string attribute must be UTF-8", given=raw[:40])

    # Errors

    def fail(self, message: str, expected: Any = None, given: Any = None) -> NoReturn:
        """Raise an error: the model is wrong at this node."""
        raise InferError(message, node=self.label, op=self.op_type, expected=expected, given=given)

    def undecided(self, message: str, given: Any = None) -> NoReturn:
        """Raise an error: the node needs a size that only the shapes of the feeds give."""
        raise UnknownRankError(message, node=self.label, op=self.op_type, given=given)

    def unsupported(self, message: str, hint: str | None = None) -> NoReturn:
        """Raise an error: the node is legal ONNX that Monograph does not implement."""
        raise UnsupportedError(message, node=self.label, op=self.op_type, hint=hint)


Converter: TypeAlias = "Callable[[Node], Value | Sequence[Value | None]]"

_converters: dict[tuple[str, str], dict[int, Converter]] = {}


def converter(*names: str, since: int = 1, domain: str = "") -> Callable[[Converter], Converter]:
    """Registers a converter for ONNX ops of these names, from this opset on."""

    def register(function: Converter) -> Converter:
        for name in names:
            versions = _converters.setdefault((domain, name), {})
            if since in versions:
                raise TypeError(f"two converters for {domain or 'ai.onnx'}.{name} since {since}")
            versions[since] = function
        return function

    return register


def normalise_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def find_converter(domain: str, name: str, opset: int) -> Converter | None:
    """The converter that serves an op at an opset, or None."""
    _load_families()
    versions = _converters.get((normalise_domain(domain), name), {})
    serving = [since for since in versions if since <= opset]
    return versions[max(serving)] if serving else None


def registered() -> dict[tuple[str, str], list[int]]:
    """Every (domain, op) with the opsets its converters start at."""
    _load_families()
    return {key: sorted(versions) for key, versions in sorted(_converters.items())}


_loaded = False


def _load_families() -> None:
    """Import every family of converters once, which registers them."""
    global _loaded
    if _loaded:
        return
    package = importlib.import_module("monograph.frontend.onnx.convert")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    _loaded = True
