"""Moves elementwise work above the slices of a value."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import islice, pairwise

from monograph.ir import Constant, Graph, TensorType, Value
from monograph.ops.shape import Slice
from monograph.passes.base import Environment, Pass, substitute, users_of
from monograph.passes.families import AlongAxis, Family, is_elementwise, slice_axis
from monograph.passes.lift import Lifter


@dataclass(frozen=True)
class HoistSlices(Pass):
    """f(x[a:b]), f(x[b:c]) -> y = f(x[a:c]); y[a:b], y[b:c] for elementwise chains f.

    The slices must tile their range exactly: no gap and no overlap. Operands of f besides the
    slices may be constants (each slice its own), values that do not vary along the axis, or slices
    of another value that is cut alike.
    """

    exact = True

    def run(self, graph: Graph, environment: Environment) -> Graph:
        lifter = Lifter(graph, allowed=is_elementwise)
        seeds: list[Family] = []
        for source, users in users_of(graph).items():
            if isinstance(source.op, Constant) or len(users) < 2:
                continue
            for axis, slices in _slices_by_axis(source, users).items():
                family = self._family(graph, source, axis, slices, environment)
                if family is not None and not any(v in lifter.place for v in family.members):
                    lifter.add(family)
                    seeds.append(family)
        lifter.run()
        for value, reason in lifter.reasons:
            environment.trace.note_missed(self.name, graph.origin(value) or "", reason, 50)
        starts = {v for f in seeds for v in f.members}
        hoisted = ((v, new) for v, new in lifter.replacements().items() if v not in starts)
        replaced = dict(islice(hoisted, environment.left))
        for value, new in replaced.items():
            environment.trace.note_fired(
                self.name,
                graph.origin(value) or "",
                f"{value.op.name} on a slice : {value.type}",
                f"a slice of {new.inputs[0].type}",
            )
        return substitute(graph, replaced) if replaced else graph

    def _family(
        self,
        graph: Graph,
        source: Value,
        axis: int,
        slices: list[Value],
        environment: Environment,
    ) -> Family | None:
        """The slices of a value along an axis, if they tile their range."""
        if len(slices) < 2:
            return None
        bounds = [_bounds(v, axis) for v in slices]
        for (_, stop), (start, _) in pairwise(bounds):
            if start != stop:
                kind = "overlap" if start < stop else "leave a gap"
                environment.trace.note_missed(
                    self.name,
                    graph.origin(source) or "",
                    f"the slices {kind} (expected a start at {stop}, given {start})",
                    100,
                )
                return None
        whole = slice_axis(source, axis, bounds[0][0], bounds[-1][1])
        widths = tuple(stop - start for start, stop in bounds)
        return Family(tuple(slices), whole, AlongAxis(axis - source.tensor.rank, widths))


def _slices_by_axis(source: Value, users: list[Value]) -> dict[int, list[Value]]:
    """Slices of a value that cut one axis only and take every element there, in order."""
    found: dict[int, list[Value]] = defaultdict(list)
    if not isinstance(source.type, TensorType) or not source.type.is_static:
        return found
    for user in users:
        if not isinstance(user.op, Slice) or any(s != 1 for s in user.op.steps):
            continue
        sizes = zip(source.type.static, user.tensor.static, strict=True)
        cut = [i for i, (whole, part) in enumerate(sizes) if whole != part]
        if len(cut) == 1 and user.tensor.static[cut[0]] > 0:
            found[cut[0]].append(user)
    for axis, slices in found.items():
        slices.sort(key=lambda v: _bounds(v, axis))
    return found


def _bounds(value: Value, axis: int) -> tuple[int, int]:
    assert isinstance(value.op, Slice)
    start = value.op.starts[axis]
    return start, start + value.tensor.static[axis]
