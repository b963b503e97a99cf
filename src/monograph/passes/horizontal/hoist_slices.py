"""Moves elementwise work, reductions, softmax and norms above the slices of a value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from monograph.ir import Constant, Graph, Op, TensorType, Value
from monograph.ops.shape import Slice
from monograph.passes.base import Environment, Pass, substitute, users_of
from monograph.passes.horizontal.families import Family, Lifter
from monograph.passes.horizontal.stackings import AlongAxis, is_elementwise, is_row_op


@dataclass(frozen=True)
class HoistSlices(Pass):
    """f(x[a:b]), f(x[b:c]) -> y = f(x[a:c]); y[a:b], y[b:c] for elementwise chains f.

    The slices must tile their range exactly: no gap and no overlap. Operands of f besides the
    slices may be constants (each slice its own), values that do not vary along the axis, or slices
    of another value that is cut alike.
    """

    exact = True

    def hoists(self, op: Op) -> bool:
        """Return True for ops that move above slices."""
        return is_elementwise(op)

    def run(self, graph: Graph, environment: Environment) -> Graph:
        lifter = Lifter(graph, allowed=self.hoists)
        users = users_of(graph)
        for source, readers in users.items():
            if isinstance(source.op, Constant) or len(readers) < 2:
                continue
            for axis, slices in self._alike(graph, source, readers, users, environment):
                for run in self._runs(graph, source, axis, slices, environment):
                    if not any(v in lifter.place for v in run.members):
                        lifter.add(run, given=True)
        lifter.run()
        for value, reason in lifter.reasons:
            environment.trace.note_missed(self.name, graph.place(value), reason, 50)
        replaced = lifter.replacements()
        if environment.left is not None:
            replaced = dict(list(replaced.items())[: environment.left])
        for value, new in replaced.items():
            environment.trace.note_fired(
                self.name,
                graph.place(value),
                f"{value.op.name} on a slice : {value.type}",
                f"a slice of {new.inputs[0].type}",
            )
        return substitute(graph, replaced, lifter.origins(graph)) if replaced else graph

    def _alike(
        self,
        graph: Graph,
        source: Value,
        readers: list[Value],
        users: Mapping[Value, list[Value]],
        environment: Environment,
    ) -> list[tuple[int, list[Value]]]:
        """Slices of a value that differ along one axis and are read by the same op."""
        found: dict[tuple[object, ...], list[Value]] = defaultdict(list)
        for value in readers:
            if not isinstance(value.op, Slice):
                continue
            work = [u.op.digest for u in users[value] if self.hoists(u.op)]
            if not work:
                continue
            reason = _unfit(source, value)
            if reason:
                origin = graph.place(value)
                environment.trace.note_missed(self.name, origin, reason, 20)
                continue
            ranges = _ranges(value)
            cut = [i for i, d in enumerate(source.tensor.static) if ranges[i] != (0, d)]
            for axis in cut:
                others = (*ranges[:axis], *ranges[axis + 1 :])
                found[axis, others, min(work)].append(value)
        return [(key[0], v) for key, v in found.items() if isinstance(key[0], int) and len(v) > 1]

    def _runs(
        self,
        graph: Graph,
        source: Value,
        axis: int,
        slices: list[Value],
        environment: Environment,
    ) -> list[Family]:
        """Slices along an axis, in stretches that tile their range exactly."""
        ordered = sorted(slices, key=lambda v: _ranges(v)[axis])
        runs = [[ordered[0]]]
        for before, value in pairwise(ordered):
            stop, start = _ranges(before)[axis][1], _ranges(value)[axis][0]
            if start == stop:
                runs[-1].append(value)
                continue
            kind = "overlap" if start < stop else "leave a gap"
            environment.trace.note_missed(
                self.name,
                graph.place(source),
                f"the slices {kind} (expected a start at {stop}, given {start})",
                100,
            )
            runs.append([value])
        return [_family(source, axis, run) for run in runs if len(run) > 1]


@dataclass(frozen=True)
class HoistRows(HoistSlices):
    """f(x[a:b]), f(x[b:c]) -> slices of f(x[a:c]) for reductions, softmax and norms f, too.

    Where f works along the axis of the slices they have one width; x[a:c] is then reshaped to
    [slices, width], and f works along the width.
    """

    exact = False

    def hoists(self, op: Op) -> bool:
        return is_elementwise(op) or is_row_op(op)


def _family(source: Value, axis: int, slices: list[Value]) -> Family:
    """Slices side by side as parts of one slice over all of them."""
    ranges = list(_ranges(slices[0]))
    ranges[axis] = (ranges[axis][0], _ranges(slices[-1])[axis][1])
    starts, stops = (tuple(r[i] for r in ranges) for i in (0, 1))
    whole = source
    if stops != source.tensor.static or any(starts):
        whole = Slice(starts, stops, (1,) * len(starts))(source)
    widths = tuple(v.tensor.static[axis] for v in slices)
    return Family(tuple(slices), whole, AlongAxis(axis - source.tensor.rank, widths))


def _unfit(source: Value, value: Value) -> str:
    """Return why a slice can be no part of a tiling; "" where it can."""
    if not isinstance(source.type, TensorType) or not source.type.is_static:
        return f"the sizes are not known (expected a static shape, given {source.type})"
    assert isinstance(value.op, Slice)
    if any(s != 1 for s in value.op.steps):
        return f"the slice leaves elements out (expected steps of 1, given {value.op.steps})"
    return "" if value.tensor.size else "the slice is empty"


def _ranges(value: Value) -> tuple[tuple[int, int], ...]:
    """(start, stop) of a slice in every dimension."""
    assert isinstance(value.op, Slice)
    sizes = zip(value.op.starts, value.tensor.static, strict=True)
    return tuple((start, start + size) for start, size in sizes)
