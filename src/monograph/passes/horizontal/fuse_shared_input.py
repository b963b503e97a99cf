"""Dots and convolutions over one input become one; so do gathers from separate tables.

Layers whose weights are codes of few bits are joined with their scales and zero points.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monograph.ir import Constant, Graph, Value, constant, known
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Less, LessEqual, Or, Where
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Concat, Transpose, Unsqueeze
from monograph.passes.base import Environment, Pass, joined_origins, substitute, users_of
from monograph.passes.horizontal.batch_towers import is_layer
from monograph.passes.horizontal.families import AlongAxis, Family, NewAxis
from monograph.rewrite import Work


def is_coded_layer(value: Value) -> bool:
    """A dot with constants [k, n] that are decoded, with scales for each column."""
    if not isinstance(value.op, Dot) or not value.inputs[1].tensor.is_static:
        return False
    if isinstance(value.inputs[0].op, Constant) or not value.tensor.is_static:
        return False
    decoded, columns = _decoded(value)
    op = decoded.op
    if not isinstance(op, Dequantize) or decoded.tensor.rank != 2:
        return False
    if not all(isinstance(v.op, Constant) for v in decoded.inputs):
        return False
    parameters = [v.tensor.static for v in decoded.inputs[1:]]
    count = decoded.tensor.static[columns]
    if op.block:
        return op.axis == 1 - columns and all(s[columns] == count for s in parameters)
    return op.axis == columns and all(s == (count,) for s in parameters)


def coded_kind(layer: Value) -> tuple[object, ...]:
    """The properties that layers must share. Their numbers of columns may differ."""
    decoded, columns = _decoded(layer)
    types = tuple(v.dtype.name for v in decoded.inputs)
    depth = decoded.tensor.static[1 - columns]
    return ("coded", layer.op.digest, decoded.op.digest, columns, depth, *types)


def joined_weights(layers: Sequence[Value]) -> Value:
    """The weights of layers of one kind side by side, still codes."""
    found = [_decoded(v) for v in layers]
    first, columns = found[0]
    operands = []
    for i, operand in enumerate(first.inputs):
        axis = columns if operand.tensor.rank == 2 else 0
        data = [d for v, _ in found if (d := known(v.inputs[i])) is not None]
        operands.append(constant(np.concatenate(data, axis)))
    whole = first.op(*operands)
    return whole if columns == 1 else Transpose((1, 0))(whole)


def _decoded(layer: Value) -> tuple[Value, int]:
    """The op that decodes the weights of a layer, and the axis of their columns."""
    weights = layer.inputs[1]
    if isinstance(weights.op, Transpose) and weights.op.permutation == (1, 0):
        return weights.inputs[0], 0
    return weights, 1


@dataclass(frozen=True)
class FuseSharedInput(Pass):
    """dot(x, A), dot(x, B) -> slices of dot(x, [A, B]); convolutions alike, along channels.

    Weights of few bits stay codes: those are joined, and their scales and zero points.
    """

    def run(self, graph: Graph, environment: Environment) -> Graph:
        replacement: dict[Value, Value] = {}
        origins: dict[Value, str] = {}
        for source, users in users_of(graph).items():
            alike: dict[tuple[object, ...], list[Value]] = defaultdict(list)
            for user in users:
                if user.inputs[0] is not source:
                    continue
                if is_layer(user):
                    alike[_kind(user)].append(user)
                elif is_coded_layer(user):
                    alike[coded_kind(user)].append(user)
            for group in alike.values():
                if len(group) < 2 or environment.exhausted:
                    continue
                if self._pays(graph, group, environment):
                    family = _widened(group)
                    origins[family.stacked] = joined_origins(graph, group)
                    for i, v in enumerate(group):
                        replacement[v] = family.member_value(i)
        return substitute(graph, replacement, origins) if replacement else graph

    def _pays(self, graph: Graph, group: list[Value], environment: Environment) -> bool:
        """Return True if one wide kernel is faster than several; both do the same arithmetic."""
        origin = " + ".join(t for v in group if (t := graph.origin(v)))
        if isinstance(group[0].op, Conv) and group[0].op.groups != 1:
            reason = "convolutions with groups do not share their input channels"
            environment.trace.note_missed(self.name, origin, reason, 100)
            return False
        read = group[0].inputs[0].tensor.nbytes
        before = environment.cost.seconds(Work(len(group), 0, len(group) * read))
        after = environment.cost.seconds(Work(1, 0, read))
        if after >= before:
            reason = (
                "one wide kernel is not faster"
                f" (expected below {before * 1e6:.2f} us, given {after * 1e6:.2f} us)"
            )
            environment.trace.note_missed(self.name, origin, reason, 100)
            return False
        environment.trace.note_fired(
            self.name, origin, f"{len(group)} x {group[0].op.name}", f"1 x {group[0].op.name}"
        )
        return True


def _kind(layer: Value) -> tuple[object, ...]:
    """Layers of one kind may differ only in how many columns or channels they give."""
    shape = list(layer.inputs[1].tensor.static)
    shape[0 if isinstance(layer.op, Conv) else -1] = 0
    return (layer.op.digest, layer.inputs[1].dtype.name, *shape)


def _widened(group: list[Value]) -> Family:
    """The layers as slices of one with all their weights side by side."""
    first = group[0]
    is_conv = isinstance(first.op, Conv)
    if is_layer(first):
        weights = [data for v in group if (data := known(v.inputs[1])) is not None]
        whole = np.concatenate(weights, 0 if is_conv else -1)
        whole.flags.writeable = False  # a constant of it need not be a copy
        joined = constant(whole)
    else:
        joined = joined_weights(group)
    stacked = first.op(first.inputs[0], joined)
    axis = 1 - stacked.tensor.rank if is_conv else -1
    widths = tuple(v.tensor.static[axis] for v in group)
    return Family(tuple(group), stacked, AlongAxis(axis, widths))


@dataclass(frozen=True)
class FuseEmbeddings(Pass):
    """gather(T, i), gather(U, j) -> slices of gather([T; U], [i, j + rows of T]).

    Indices count from the end of their own table where they are negative. One that is out of
    range of its table is out of range of the joined one too, so that it fails as before.
    """

    exact = True

    def run(self, graph: Graph, environment: Environment) -> Graph:
        groups: dict[tuple[object, ...], list[Value]] = defaultdict(list)
        level: dict[Value, int] = {}
        for v in graph.values:
            level[v] = max((level[i] + _is_lookup(i) for i in v.inputs), default=0)
            if _is_lookup(v):
                table, index = v.inputs
                row = table.tensor.static[1:]
                groups[level[v], table.dtype.name, row, index.type].append(v)
        replacement: dict[Value, Value] = {}
        origins: dict[Value, str] = {}
        for group in groups.values():
            if environment.exhausted:
                break
            if len(group) < 2 or not self._pays(graph, group, environment):
                continue
            family = _one_lookup(group)
            origins[family.stacked] = joined_origins(graph, group)
            replacement |= {v: family.member_value(i) for i, v in enumerate(group)}
        return substitute(graph, replacement, origins) if replacement else graph

    def _pays(self, graph: Graph, group: list[Value], environment: Environment) -> bool:
        """One gather and the offset arithmetic, against a gather each."""
        tables = list(dict.fromkeys(v.inputs[0] for v in group))
        rows = sum(t.tensor.static[0] for t in tables)
        before = environment.cost.seconds(Work(len(group), 0, 0))
        # The indices are read and written once more, by one kernel that offsets them all.
        moved = 2 * sum(v.inputs[1].tensor.nbytes for v in group)
        after = environment.cost.seconds(Work(2, 0, moved))
        reason = ""
        if rows > np.iinfo(group[0].inputs[1].dtype.numpy).max:
            reason = f"the joined rows exceed the index type (given {rows:,})"
        elif any(graph.uses[t] > sum(v.inputs[0] is t for v in group) for t in tables):
            reason = "a table has another reader, and would have to be stored twice"
        elif after >= before:
            reason = (
                "offsetting the indices costs as much as it saves"
                f" (expected below {before * 1e6:.2f} us, given {after * 1e6:.2f} us)"
            )
        origin = joined_origins(graph, group)
        if reason:
            environment.trace.note_missed(self.name, origin, reason, 100)
            return False
        environment.trace.note_fired(self.name, origin, f"{len(group)} x gather", "1 x gather")
        return True


def _is_lookup(value: Value) -> bool:
    """Rows of a constant table by an index that is not constant."""
    if not isinstance(value.op, Gather) or value.op.axis != 0:
        return False
    table, index = value.inputs
    is_table = isinstance(table.op, Constant) and table.tensor.rank >= 1
    return is_table and not isinstance(index.op, Constant) and index.tensor.is_static


def _one_lookup(group: list[Value]) -> Family:
    """The lookups as slices of one, in a table of all their rows."""
    tables = list(dict.fromkeys(v.inputs[0] for v in group))
    joined = np.concatenate([data for t in tables if (data := known(t)) is not None])
    first = dict(zip(tables, np.cumsum([0, *(t.tensor.static[0] for t in tables)]), strict=False))
    index_type = group[0].inputs[1].tensor
    along = (len(group), *(1,) * index_type.rank)

    def each(numbers: list[int]) -> Value:
        return constant(np.array(numbers).reshape(along), index_type.dtype)

    rows = [v.inputs[0].tensor.static[0] for v in group]
    offsets = [int(first[v.inputs[0]]) for v in group]
    stacked = Concat(0)(*(Unsqueeze((0,))(v.inputs[1]) for v in group))
    negative = Less()(stacked, constant(0, index_type.dtype))
    counted = Where()(negative, Add()(stacked, each(rows)), stacked)
    above = LessEqual()(each(rows), counted)
    outside = Or()(above, Less()(counted, constant(0, index_type.dtype)))
    beyond = constant(len(joined), index_type.dtype)
    indices = Where()(outside, beyond, Add()(counted, each(offsets)))
    looked_up = Gather(0)(constant(joined), indices)
    return Family(tuple(group), looked_up, NewAxis(len(group)))
