"""Dots and convolutions over one input become one; so do gathers from separate tables.

Layers whose weights are codes of few bits are joined with their scales and zero points.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from monograph.ir import Constant, Graph, Op, Value, constant, known
from monograph.ir.sizes import any_open
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Less, LessEqual, Or, Where
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.shape import Concat, Reshape, Unsqueeze
from monograph.passes.base import Environment, Pass, joined_origins, substitute
from monograph.passes.horizontal.blends import blend_work
from monograph.passes.horizontal.families import Family, Lifter
from monograph.passes.horizontal.layers import is_layer, joins_columns, wide_kind
from monograph.passes.horizontal.stackings import (
    AlongAxis,
    NewAxis,
    column_stacking,
    is_elementwise,
    is_row_op,
)
from monograph.passes.horizontal.weights import join_columns
from monograph.rewrite import Work


def _follows(op: Op) -> bool:
    """Work that is computed together behind layers of one input."""
    return is_elementwise(op) or is_row_op(op) or isinstance(op, Dot)


@dataclass(frozen=True)
class FuseSharedInput(Pass):
    """dot(x, A), dot(x, B) -> slices of dot(x, [A, B]); convolutions alike, along channels.

    Weights of few bits stay codes: those are joined, and their scales and zero points. What follows
    the layers is computed together where it agrees; elementwise work that differs is blended where
    that is faster.
    """

    def run(self, graph: Graph, environment: Environment) -> Graph:
        lifter = Lifter(graph, allowed=_follows, cost=environment.cost)
        for source, users in lifter.users.items():
            alike: dict[tuple[object, ...], list[Value]] = defaultdict(list)
            for user in users:
                if user.inputs[0] is not source or user in lifter.place:
                    continue
                if is_layer(user) and joins_columns(user):
                    alike[wide_kind(user)].append(user)
            self._note_different(graph, [g[0] for g in alike.values()], environment)
            for group in alike.values():
                if len(group) < 2 or environment.exhausted:
                    continue
                if self._pays(graph, group, lifter, environment):
                    lifter.add(_widened(group))
                    lifter.run()
        for value, reason in lifter.reasons:
            environment.trace.note_missed(self.name, graph.place(value), reason, 50)
        replaced = lifter.replacements()
        return substitute(graph, replaced, lifter.origins(graph)) if replaced else graph

    def _note_different(self, graph: Graph, layers: list[Value], environment: Environment) -> None:
        """Say of layers of one input why they are not alike."""
        for first, other in pairwise(layers):
            expected, given = _differences(first, other)
            reason = (
                f"the layers differ in more than their width (expected {expected}, given {given})"
            )
            origin = joined_origins(graph, (first, other))
            environment.trace.note_missed(self.name, origin, reason, 40)

    def _pays(
        self, graph: Graph, group: list[Value], lifter: Lifter, environment: Environment
    ) -> bool:
        """Return True if one wide kernel is faster than several; both do the same arithmetic.

        Epilogues that differ are blended, or have kernels of their own behind a wide one.
        """
        origin = " + ".join(t for v in group if (t := graph.origin(v)))
        if isinstance(group[0].op, Conv) and group[0].op.groups != 1:
            reason = "convolutions with groups do not share their input channels"
            environment.trace.note_missed(self.name, origin, reason, 100)
            return False
        read = group[0].inputs[0].tensor.nbytes
        before = environment.cost.seconds(Work(len(group), 0, len(group) * read))
        work = blend_work([lifter.epilogue(v) for v in group], column_stacking(group))
        epilogues = Work(work.launches, 0, work.bytes), Work(0, work.flops, 0)
        more = min(map(environment.cost.seconds, epilogues)) if work.flops else 0.0
        after = environment.cost.seconds(Work(1, 0, read)) + more
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


def _differences(first: Value, other: Value) -> tuple[str, str]:
    """The attributes in which two layers differ, and their weights, as a text for each."""
    own, others = first.op.attributes, other.op.attributes
    names = [n for n in own if n in others and own[n] != others[n]]
    texts = [", ".join(f"{n} {a[n]}" for n in names) for a in (own, others)]
    weights = [f"weights {v.inputs[1].type}" for v in (first, other)]
    expected, given = (", ".join(filter(None, p)) for p in zip(texts, weights, strict=True))
    return expected, given


def _widened(group: list[Value]) -> Family:
    """The layers as slices of one with all their weights side by side."""
    first = group[0]
    is_conv = isinstance(first.op, Conv)
    if isinstance(first.inputs[1].op, Constant):
        weights = [data for v in group if (data := known(v.inputs[1])) is not None]
        whole = np.concatenate(weights, 0 if is_conv else -1)
        whole.flags.writeable = False  # a constant of it need not be a copy
        joined = constant(whole)
    else:
        joined = join_columns([v.inputs[1] for v in group])
    stacked = first.op(first.inputs[0], joined)
    return Family(tuple(group), stacked, column_stacking(group))


@dataclass(frozen=True)
class FuseEmbeddings(Pass):
    """gather(T, i), gather(U, j) -> slices of gather([T; U], [i, j + rows of T]).

    Indices count from the end of their own table where they are negative. One that is out of
    range of its table is out of range of the joined one too, so that it fails as before. Indices of
    different shapes are joined flat.
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
                # Which lookup an index belongs to is a constant: it needs sizes that are known.
                alone = index.type if any_open(index.tensor.dims) else index.dtype.name
                groups[level[v], table.dtype.name, row, alone].append(v)
        replacement: dict[Value, Value] = {}
        origins: dict[Value, str] = {}
        for group in groups.values():
            if environment.exhausted:
                break
            if len(group) < 2 or not self._pays(graph, group, environment):
                continue
            looked_up, parts = _one_lookup(group)
            origins[looked_up] = joined_origins(graph, group)
            replacement |= dict(zip(group, parts, strict=True))
        return substitute(graph, replacement, origins) if replacement else graph

    def _pays(self, graph: Graph, group: list[Value], environment: Environment) -> bool:
        """One gather and the offset arithmetic, against a gather each."""
        tables = list(dict.fromkeys(v.inputs[0] for v in group))
        rows = sum(t.tensor.static[0] for t in tables)
        before = environment.cost.seconds(Work(len(group), 0, 0))
        # The indices are read and written once more, by one kernel that offsets them all. Those of
        # different shapes have an offset and a number of rows each.
        alike = len({v.inputs[1].type for v in group}) == 1
        moved = (2 if alike else 4) * sum(v.inputs[1].tensor.nbytes for v in group)
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


def _one_lookup(group: list[Value]) -> tuple[Value, list[Value]]:
    """One lookup in a table of all rows, and the parts of it that the lookups are."""
    tables = list(dict.fromkeys(v.inputs[0] for v in group))
    joined = np.concatenate([data for t in tables if (data := known(t)) is not None])
    first = dict(zip(tables, np.cumsum([0, *(t.tensor.static[0] for t in tables)]), strict=False))
    indices = [v.inputs[1] for v in group]
    dtype, sizes = indices[0].dtype, [v.tensor.size for v in indices]
    alike = len({v.type for v in indices}) == 1
    if alike:
        stacked = Concat(0)(*map(Unsqueeze((0,)), indices))
        along = (len(group), *(1,) * indices[0].tensor.rank)
    else:
        stacked = Concat(0)(*(Reshape((v.tensor.size,))(v) for v in indices))
        along = (sum(sizes),)

    def each(numbers: list[int]) -> Value:
        spread = np.array(numbers) if alike else np.repeat(numbers, sizes)
        return constant(spread.reshape(along), dtype)

    rows = [v.inputs[0].tensor.static[0] for v in group]
    offsets = [int(first[v.inputs[0]]) for v in group]
    negative = Less()(stacked, constant(0, dtype))
    counted = Where()(negative, Add()(stacked, each(rows)), stacked)
    above = LessEqual()(each(rows), counted)
    outside = Or()(above, Less()(counted, constant(0, dtype)))
    beyond = constant(len(joined), dtype)
    at = Where()(outside, beyond, Add()(counted, each(offsets)))
    looked_up = Gather(0)(constant(joined), at)
    if alike:
        family = Family(tuple(group), looked_up, NewAxis(len(group)))
        return looked_up, [family.member_value(i) for i in range(len(group))]
    flat = AlongAxis(-looked_up.tensor.rank, tuple(sizes))
    parts = (flat.member(looked_up, i) for i in range(len(group)))
    return looked_up, [Reshape(v.tensor.static)(p) for v, p in zip(group, parts, strict=True)]
