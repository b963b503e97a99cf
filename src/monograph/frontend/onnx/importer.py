"""Converts the nodes of an ONNX graph, in order.

Functions of the model, and ops that ONNX defines by a function body, are inlined. Sub-graphs become
closed graphs with explicit captures. Small constant expressions are folded on the way, because
nodes compute shapes that decide what later nodes become.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import onnx

from monograph.errors import (
    InferError,
    ModelError,
    MonographError,
    UnsupportedError,
    unforeseen,
)
from monograph.frontend.onnx.dtypes import check_declared, value_type
from monograph.frontend.onnx.fold import Account, fold, fold_budget
from monograph.frontend.onnx.functions import FunctionKey, schema_function
from monograph.frontend.onnx.load import ModelFile
from monograph.frontend.onnx.node import Node, SubGraph, find_converter, normalise_domain
from monograph.frontend.onnx.signature import check_all_read, check_node, find_signature
from monograph.frontend.onnx.support import Refusals, label_of, missing_ops
from monograph.frontend.onnx.tensors import read_sparse, read_tensor
from monograph.ir import (
    Array,
    Constant,
    Dim,
    Graph,
    Input,
    Literal,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    Value,
    constant,
)
from monograph.ir.sizes import is_open
from monograph.ops.random import Turns, fresh_turns

NodeTurns = dict[tuple[str, int, float | None], Turns]
"""The turns of random ops by their node's label, their number under that label, and their seed."""
MAX_DEPTH = 48
"""The deepest nesting of sub-graphs and function calls."""
MAX_REPEATS = 50_000
"""The most nodes converted again: loop bodies are, until the types of their state settle, and
nested loops multiply this.
"""


def import_model(
    model: ModelFile,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Array] | None = None,
    donate: Mapping[str, str] | None = None,
    fed: Collection[str] = (),
    turns: NodeTurns | None = None,
) -> Graph:
    """Import a model as a graph.

    `dims` binds symbols of the inputs to sizes, `shapes` fixes whole shapes, `values` fixes the
    data of inputs by name, and `donate` maps outputs to the inputs whose memory they are written
    into. An input with fixed data stays an unused input. An input with an initialiser is an input
    only if `fed` names it; otherwise it is a constant. Graphs that are imported with the same
    `turns` count the evaluations of their random nodes together.
    """
    refusals = Refusals(model, tuple(missing_ops(model)))
    importer = _Importer(
        model, dict(dims or {}), dict(shapes or {}), dict(values or {}), frozenset(fed), refusals
    )
    importer.turns = {} if turns is None else turns
    try:
        with fold_budget():
            graph = importer.run(tuple((donate or {}).items()))
    except MonographError as e:
        if (refused := refusals.error()) is None:
            raise
        raise refused from e
    if (refused := refusals.error()) is not None:
        raise refused
    model.contradictions.report(model.name)
    return graph


@dataclass
class _Importer:
    """The state that all scopes of one import share."""

    model: ModelFile
    dims: dict[str, int]
    shapes: dict[str, Sequence[int]]
    values: dict[str, Array]
    fed: frozenset[str]
    refusals: Refusals
    origins: dict[Value, str] = field(default_factory=dict)
    folded: dict[Value, Value] = field(default_factory=dict)
    """Float constants and the expressions that they were folded from."""
    settled: dict[str, tuple[Type, ...]] = field(default_factory=dict)
    """The types of state that each loop settled on, by the loop's label."""
    account: Account = field(default_factory=Account)
    turns: NodeTurns = field(default_factory=dict)
    drawn: Counter[str] = field(default_factory=Counter)
    """The number of random ops made from nodes of each label."""
    _rounds: int = 0
    _repeats: int = 0

    @contextmanager
    def repeat(self) -> Iterator[None]:
        """Count nodes converted inside the context as repeats."""
        self._rounds += 1
        try:
            yield
        finally:
            self._rounds -= 1

    def count(self) -> None:
        """Count a node; raise an error if nested loops repeat too many."""
        self._repeats += self._rounds > 0
        if self._repeats > MAX_REPEATS:
            raise ModelError(
                "the types in nested loops do not settle within reason",
                expected=f"at most {MAX_REPEATS:,} nodes to be converted again",
            )

    def random_identity(self, label: str, seed: float | None) -> int:
        """Return the identity of the next random op of a node: a label may be that of several."""
        key = label, self.drawn[label], seed
        self.drawn[label] += 1
        if key not in self.turns:
            self.turns[key] = fresh_turns(seed)
        return self.turns[key].uid

    def run(self, donations: tuple[tuple[str, str], ...]) -> Graph:
        # Read first, because this replaces the file by a smaller one.
        initialisers = self.model.initialisers
        self.account = self.model.account.branch()
        proto = self.model.proto.graph
        scope = Scope(self, None, self.model.opsets, "", 0)
        inputs = []
        for info in proto.input:
            if info.name in initialisers and info.name not in self.fed:
                continue
            value = Input(info.name, self.bind(info.name, value_type(info.type, info.name)))()
            fixed = self.values.get(info.name)
            scope.define(info.name, value if fixed is None else constant(fixed))
            inputs.append(value)
        scope.initialise({name: x for name, x in initialisers.items() if name not in self.fed})
        scope.convert_all(proto.node)
        outputs = tuple((info.name, scope.lookup(info.name)) for info in proto.output)
        for info, (_, value) in zip(proto.output, outputs, strict=True):
            check_declared(info, value.type)
        self.model.contradictions.compare(proto.output, dict(outputs), "output")
        if not self.shapes:  # once for all shapes
            self.model.contradictions.compare(proto.value_info, scope.names, "value")
        name = proto.name or "main"
        return Graph(tuple(inputs), outputs, name, self.origins, donations, self.folded)

    def bind(self, name: str, declared: Type) -> Type:
        """Return a declared input type with the caller's sizes filled in."""
        if isinstance(declared, SequenceType):
            return SequenceType(self.bind(name, declared.element))
        if isinstance(declared, OptionalType):
            return OptionalType(self.bind(name, declared.element))
        if not isinstance(declared, TensorType):
            return declared
        if name in self.shapes:
            return declared.with_shape(d if is_open(d) else int(d) for d in self.shapes[name])
        if declared.shape is None:
            return declared
        return declared.with_shape(self._bound(d) for d in declared.shape)

    def _bound(self, dim: Dim) -> Dim:
        return self.dims.get(dim, dim) if isinstance(dim, str) else dim


class Scope:
    """Names of one graph or function body, and the conversion of its nodes."""

    def __init__(
        self,
        importer: _Importer,
        parent: Scope | None,
        opsets: Mapping[str, int],
        path: str,
        depth: int,
        closed: bool = True,
    ) -> None:
        if depth > MAX_DEPTH:
            raise ModelError(
                "sub-graphs and functions are nested too deeply",
                node=path,
                expected=f"at most {MAX_DEPTH}",
            )
        self.importer = importer
        self.parent = parent
        self.opsets = opsets
        self.path = path
        self.depth = depth
        self.closed = closed
        """True if names of the parent are captured; else its values are used directly."""
        self.names: dict[str, Value] = {}
        self.captures: dict[Value, Value] = {}
        self.attributes: dict[str, onnx.AttributeProto] = {}
        self.absent: set[str] = set()
        """Formal inputs of a function that its caller left out."""

    def literal(self, tensor: onnx.TensorProto) -> Literal:
        return read_tensor(tensor, self.importer.model.directory, self.importer.account)

    def sparse_literal(self, sparse: onnx.SparseTensorProto) -> Literal:
        return read_sparse(sparse, self.importer.model.directory, self.importer.account)

    # Names

    def define(self, name: str, value: Value) -> None:
        self.names[name] = value

    def lookup(self, name: str) -> Value:
        """Return the value of a name, captured from an enclosing graph if it is defined there."""
        found = self.find(name)
        if found is None:
            raise ModelError("the name has no value", node=self.path or None, given=name)
        return found

    def argument(self, name: str) -> Value | None:
        """Return the value of a node's input; None if it is omitted."""
        return None if not name or self.is_absent(name) else self.lookup(name)

    def is_absent(self, name: str) -> bool:
        if name in self.names or self.parent is None:
            return name in self.absent
        return name in self.absent or self.parent.is_absent(name)

    def find(self, name: str) -> Value | None:
        if name in self.names:
            return self.names[name]
        if self.parent is None:
            return None
        outer = self.parent.find(name)
        if outer is None:
            return None
        if not self.closed or (outer.closed and not outer.inputs):
            return outer
        inner = self.captures.get(outer)
        if inner is None:
            label = f"{name}@{self.depth}.{len(self.captures)}"
            inner = Input(label, outer.type)()
            self.captures[outer] = inner
        self.names[name] = inner
        return inner

    def initialise(self, literals: Mapping[str, Literal]) -> None:
        for name, literal in literals.items():
            self.define(name, constant(literal))

    # Nodes

    def convert_all(self, nodes: Iterable[onnx.NodeProto]) -> None:
        refusals = self.importer.refusals
        for index, proto in enumerate(nodes):
            label = label_of(self.path, proto, index)
            try:
                self.convert(proto, label)
            except UnsupportedError as e:
                refusals.add(label, e.at(node=label, op=proto.op_type))
                self.stand_in(proto, label)
            except InferError as e:
                if not refusals.found:
                    raise e.at(node=label, op=proto.op_type) from None
                self.stand_in(proto, label)
            except MonographError as e:
                raise e.at(node=label, op=proto.op_type) from None
            except MemoryError as e:
                raise ModelError("out of memory", node=label, op=proto.op_type) from e
            except Exception as e:
                raise InferError(
                    "the node cannot be converted",
                    node=label,
                    op=proto.op_type,
                    **unforeseen(e),
                ) from e

    def stand_in(self, proto: onnx.NodeProto, label: str) -> None:
        """Define the outputs of a node that cannot be converted, so that the import can go on."""
        for name in filter(None, proto.output):
            declared = self.importer.refusals.declared(name if self.depth == 0 else "")
            self.define(name, Input(f"{label}:{name}", declared)())

    def convert(self, proto: onnx.NodeProto, label: str) -> None:
        """Convert one node and define its outputs."""
        self.importer.count()
        inputs = tuple(self.argument(name) for name in proto.input)
        results = self.apply(proto, label, inputs)
        named = [name for name in proto.output if name]
        if len(results) < len(proto.output) and any(proto.output[len(results) :]):
            raise ModelError(
                "the node names more outputs than its op has", expected=len(results), given=named
            )
        for name, value in zip(proto.output, results, strict=False):
            if name and value is None:
                raise ModelError("the model uses an output that the op does not have", given=name)
            if name and value is not None:
                folded = fold(value)
                if folded is not value and folded.type == value.type and folded.dtype.is_float:
                    self.importer.folded.setdefault(folded, value)
                self.attribute_origin(folded, label)
                self.define(name, folded)

    def apply(
        self, proto: onnx.NodeProto, label: str, inputs: tuple[Value | None, ...]
    ) -> tuple[Value | None, ...]:
        """Return the outputs of a node, by its converter or its function body."""
        domain = normalise_domain(proto.domain)
        attributes = self.resolve_attributes(proto)
        key = FunctionKey(domain, proto.op_type, proto.overload)
        function = self.importer.model.functions.get(key)
        if function is not None:
            return self.inline(function, label, inputs, attributes)
        opset = self.opsets.get(domain, 1)
        signature = find_signature(domain, proto.op_type, opset)
        if signature is not None:
            given = max((i + 1 for i, name in enumerate(proto.input) if name), default=0)
            check_node(signature, given, len(proto.output), attributes)
        convert = find_converter(domain, proto.op_type, opset)
        if convert is None:
            function = schema_function(proto, domain, opset, inputs, attributes)
            return self.inline(function, label, inputs, attributes)
        node = Node(proto, label, inputs, attributes, opset, self)
        result = convert(node)
        if signature is None:
            check_all_read(node)
        return (result,) if isinstance(result, Value) else tuple(result)

    def resolve_attributes(self, proto: onnx.NodeProto) -> dict[str, onnx.AttributeProto]:
        """Return the node's attributes, with references to the enclosing function's filled in."""
        resolved: dict[str, onnx.AttributeProto] = {}
        for attribute in proto.attribute:
            if not attribute.ref_attr_name:
                resolved[attribute.name] = attribute
            elif attribute.ref_attr_name in self.attributes:
                given = onnx.AttributeProto()
                given.CopyFrom(self.attributes[attribute.ref_attr_name])
                given.name = attribute.name
                if given.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                    raise UnsupportedError(
                        "a function passes a sub-graph on as an attribute", given=attribute.name
                    )
                resolved[attribute.name] = given
        return resolved

    def inline(
        self,
        function: onnx.FunctionProto,
        label: str,
        inputs: tuple[Value | None, ...],
        attributes: dict[str, onnx.AttributeProto],
    ) -> tuple[Value | None, ...]:
        """The outputs of a function's body on values."""
        if len(inputs) > len(function.input):
            raise ModelError(
                "a function is called with too many inputs",
                expected=len(function.input),
                given=len(inputs),
            )
        declared = {*function.attribute, *(a.name for a in function.attribute_proto)}
        if surplus := sorted(attributes.keys() - declared):
            raise ModelError(
                "a function is called with attributes that it does not have",
                expected=sorted(declared),
                given=surplus,
            )
        opsets = {normalise_domain(o.domain): o.version for o in function.opset_import}
        body = Scope(self.importer, None, {**self.opsets, **opsets}, f"{label}/", self.depth + 1)
        body.attributes = {a.name: a for a in function.attribute_proto} | attributes
        body.absent = {*function.input[len(inputs) :]}
        for name, value in zip(function.input, inputs, strict=False):
            if value is None:
                body.absent.add(name)
            else:
                body.define(name, value)
        body.convert_all(function.node)
        return tuple(body.find(name) for name in function.output)

    # Sub-graphs

    def subgraph(
        self, proto: onnx.GraphProto, types: Sequence[Type | Value], label: str
    ) -> SubGraph:
        """Import a sub-graph whose formal inputs have these types.

        A formal input given as a (closed) value becomes that value, and is no input of the result.
        """
        scope = Scope(self.importer, self, self.opsets, f"{label}/", self.depth + 1)
        formal: list[Value] = []
        given: list[Value] = []
        for info, t in zip(self._formals(proto, len(types), label), types, strict=True):
            # The depth distinguishes equal names at different depths, and their symbols.
            given.append(t if isinstance(t, Value) else Input(f"{info.name}#{scope.depth}", t)())
            if not isinstance(t, Value):
                formal.append(given[-1])
        results = scope.convert_graph(proto, given)
        names = [info.name for info in proto.output]
        first = {name: i for i, name in reversed([*enumerate(names)])}
        outputs = tuple(
            (name if first[name] == i else f"{name}#{i}", value)
            for i, (name, value) in enumerate(zip(names, results, strict=True))
        )
        graph = Graph(
            (*formal, *scope.captures.values()),
            outputs,
            proto.name or label,
            self.importer.origins,
        )
        return SubGraph(graph, tuple(scope.captures))

    def inline_subgraph(
        self, proto: onnx.GraphProto, label: str, given: Sequence[Value] = ()
    ) -> tuple[Value, ...]:
        """The outputs of a sub-graph on these inputs, as values of this graph."""
        scope = Scope(self.importer, self, self.opsets, f"{label}/", self.depth + 1, closed=False)
        self._formals(proto, len(given), label)
        return scope.convert_graph(proto, given)

    def convert_graph(self, proto: onnx.GraphProto, given: Sequence[Value]) -> tuple[Value, ...]:
        """Convert a sub-graph in this scope with these values as inputs; return its outputs."""
        assert self.parent is not None
        self.attributes = self.parent.attributes
        initialisers = self.importer.model.read_initialisers(proto, self.importer.account)
        formal = [info.name for info in proto.input if info.name not in initialisers]
        for name, value in zip(formal, given, strict=True):
            self.define(name, value)
        self.initialise(initialisers)
        self.convert_all(proto.node)
        return tuple(self.lookup(info.name) for info in proto.output)

    def _formals(self, proto: onnx.GraphProto, count: int, label: str) -> list[onnx.ValueInfoProto]:
        """Return the inputs of a sub-graph; raise an error unless there are `count`."""
        # Old files list initialisers among the inputs.
        named = {t.name for t in proto.initializer}
        named |= {t.values.name for t in proto.sparse_initializer}
        formals = [info for info in proto.input if info.name not in named]
        if len(formals) != count:
            raise ModelError(
                "a sub-graph has the wrong number of inputs",
                node=label,
                expected=count,
                given=len(formals),
            )
        return formals

    def attribute_origin(self, value: Value, label: str) -> None:
        """Set the origin of a value, and of the values built below it, to a node."""
        origins = self.importer.origins
        stack = [value]
        while stack:
            v = stack.pop()
            if v in origins or isinstance(v.op, (Input, Constant)):
                continue
            origins[v] = label
            stack.extend(v.inputs)
