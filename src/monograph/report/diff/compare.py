"""Compares two sides tensor by tensor: what is there, what each step adds, and whose fault it is.

Two numbers belong to each tensor. The *accumulated* difference is that of the two sides. A side's
*own* difference is what the reference, given the tensors that the side has before, would have made
instead: only that can be the fault of what lies between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monograph.ir import Array, Constant, Graph, Input, Value
from monograph.ir.evaluate import apply
from monograph.passes.base import ORIGINS_BETWEEN
from monograph.report.commands.bisection import check_passes
from monograph.report.diff.points import TensorPoint, distance
from monograph.report.diff.sides import Observed
from monograph.report.diff.tensors import NodeInfo, OnnxTensors
from monograph.runtime.numerics.bisect import BrokenPass
from monograph.runtime.numerics.compare import Difference, OutputPath, compare
from monograph.runtime.numerics.spread import Spread, tolerances
from monograph.runtime.numerics.stepwise import StepCheck
from monograph.runtime.numerics.tolerance import Tolerance, tolerance_for, variances

KERNEL, REWRITE, LOWERING, MODEL, SIDE = "kernel", "rewrite", "lowering", "model", "side"
PRECISION, ROUNDING = "precision", "rounding"


@dataclass(frozen=True)
class Own:
    """The difference that a side adds at a tensor, and the nodes since the tensors before."""

    difference: Difference
    share: float
    """The root mean square, relative to that of the tensor."""
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One tensor on both sides."""

    tensor: str
    node: NodeInfo | None
    check: StepCheck | None
    """The step that made it, on the first side that has steps."""
    accumulated: Difference
    share: float
    own: tuple[Own | None, Own | None]
    """The difference that each side adds; None for the reference, or if it is not known."""

    @property
    def ok(self) -> bool:
        return self.accumulated.ok


@dataclass(frozen=True)
class Culprit:
    """The origin of the first difference."""

    kind: str
    """"kernel", "rewrite", "lowering", "model", "precision", "rounding" or "side"."""
    side: int
    tensor: str | None
    nodes: tuple[NodeInfo, ...]
    check: StepCheck | None = None
    fault: BrokenPass | None = None
    differences: tuple[str, ...] = ()
    """Differences between these nodes in the files of both sides; or the range of a rounding."""


@dataclass(frozen=True)
class DiffResult:
    """Two sides, compared."""

    sides: tuple[Observed, Observed]
    rows: tuple[Row, ...]
    culprit: Culprit | None
    """None where the sides agree, or where roundings add up."""
    absent: tuple[str, ...] = ()
    """Tensors of other shapes on the two sides."""

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows) and self.culprit is None

    @property
    def first(self) -> Row | None:
        """The first tensor beyond its tolerance."""
        return next((row for row in self.rows if not row.ok), None)

    @property
    def largest(self) -> Row | None:
        """The tensor at which a side adds the most."""
        known = [row for row in self.rows if added(row) > 0]
        return max(known, key=added, default=None)


def added(row: Row) -> float:
    """Return the larger share that a side adds at a tensor."""
    return max((own.share for own in row.own if own is not None), default=0.0)


def compare_sides(a: Observed, b: Observed, base: OnnxTensors, *, same_model: bool) -> DiffResult:
    """Compare two sides; `base` is the graph that the second is held to.

    same_model: both sides run this graph, so a difference is no property of the models.
    """
    own = [_replayed(side, base) if side.rounds or not same_model else {} for side in (a, b)]
    if not same_model:
        own[1] = {}
    rows = _rows(a, b, base, own, same_model)
    culprit = _culprit(rows, (a, b), base, same_model)
    if culprit is not None and culprit.kind in (REWRITE, LOWERING):
        # What lies behind a lossy rewrite is other tensors than the file's, and like them.
        loose = [replace(s, points={**s.points, **s.alike}) for s in (a, b)]
        rows = _rows(loose[0], loose[1], base, own, same_model)
    shapes = {n: (a.points[n].data.shape, b.points[n].data.shape) for n in _common(a, b, base)}
    absent = tuple(n for n, (left, right) in shapes.items() if left != right)
    return DiffResult((a, b), rows, culprit, absent)


def _common(a: Observed, b: Observed, base: OnnxTensors) -> list[str]:
    return [n for n in base.values if n in a.points and n in b.points]


def _rows(
    a: Observed,
    b: Observed,
    base: OnnxTensors,
    own: Sequence[Mapping[str, Own]],
    same_model: bool,
) -> tuple[Row, ...]:
    names = [n for n in _common(a, b, base) if a.points[n].data.shape == b.points[n].data.shape]
    allowed = _allowed(base, names, 1 + (a.rounds and b.rounds and same_model))
    return tuple(_row(n, a, b, base, allowed[n], own) for n in names)


def _row(
    name: str,
    a: Observed,
    b: Observed,
    base: OnnxTensors,
    allowed: Tolerance,
    own: Sequence[Mapping[str, Own]],
) -> Row:
    given, expected = (_as(side.points[name].data, base, name) for side in (a, b))
    found = compare(OutputPath(name), given, expected, allowed)
    check = a.points[name].check or b.points[name].check
    return Row(
        name,
        base.made_by.get(name),
        check,
        found,
        distance(given, expected),
        (own[0].get(name), own[1].get(name)),
    )


def _as(data: Array, base: OnnxTensors, name: str) -> Array:
    """Return a side's data in the element type of the file."""
    reference = base.reference[base.values[name]]
    return data.astype(reference.dtype, copy=False) if isinstance(reference, np.ndarray) else data


def _allowed(base: OnnxTensors, names: Sequence[str], sides: int) -> dict[str, Tolerance]:
    """Return the tolerance of each tensor; twice that of one side where both round."""
    graph = replace(base.graph, outputs=tuple((n, base.values[n]) for n in names))
    found = tolerances(graph, base.feeds, ties=True)
    return {n: replace(t, rtol=t.rtol * sides, atol=t.atol * sides) for n, t in found.items()}


def _replayed(side: Observed, base: OnnxTensors) -> dict[str, Own]:
    """Return what a side adds at each tensor, beside the reference on the tensors before."""
    points = {base.values[n]: p for n, p in side.points.items() if n in base.values}
    current: dict[Value, Any] = {
        v: base.feeds[name]
        for v, name in zip(base.graph.inputs, base.graph.input_names, strict=True)
    }
    found: dict[str, Own] = {}
    for value in base.graph.values:
        if value not in current:
            current[value] = apply(value, [current[v] for v in value.inputs])
        point = points.get(value)
        if point is None or isinstance(value.op, Constant):
            continue
        right = current[value]
        if not isinstance(right, np.ndarray) or right.shape != point.data.shape:
            continue
        given = point.data.astype(right.dtype, copy=False)
        if isinstance(value.op, Input):
            found[point.tensor] = _own_of_input(point, given, right, value, base)
        else:
            found[point.tensor] = _own(point, given, right, value, points, current, base.graph)
        current[value] = given
    # Two names of one value are one tensor.
    return {
        n: found[points[v].tensor]
        for n, v in base.values.items()
        if v in points and points[v].tensor in found
    }


def _own_of_input(
    point: TensorPoint, given: Array, right: Array, value: Value, base: OnnxTensors
) -> Own:
    """Return what a node adds that only rounds an input of the model."""
    found = compare(OutputPath(point.tensor), given, right, tolerance_for(value.type, 0.0))
    made = base.made_by.get(point.tensor)
    return Own(found, distance(given, right), () if made is None else (made.label,))


def _own(
    point: TensorPoint,
    given: Array,
    right: Array,
    value: Value,
    points: Mapping[Value, TensorPoint],
    current: Mapping[Value, Any],
    graph: Graph,
) -> Own:
    body, leaves = _between(value, points)
    known = {v: current[v] for v in leaves}
    spread = Spread(body, known, [(point.tensor, value)])
    variance = variances(body, dict.fromkeys(leaves, 0.0))[value]
    allowed = replace(tolerance_for(value.type, variance), spread=spread)
    found = compare(OutputPath(point.tensor), given, right, allowed)
    labels = [n for v in body for n in (graph.origin(v) or "").split(ORIGINS_BETWEEN) if n]
    return Own(found, distance(given, right), tuple(dict.fromkeys(labels)))


def _between(value: Value, points: Mapping[Value, TensorPoint]) -> tuple[list[Value], list[Value]]:
    """Return the values between a tensor and the tensors before it, in order, and these tensors."""
    body: list[Value] = []
    leaves: dict[Value, None] = {}
    done: set[Value] = set()
    stack = [(value, False)]
    while stack:
        found, expanded = stack.pop()
        if expanded:
            body.append(found)
        elif found not in done:
            done.add(found)
            if found is not value and (found in points or isinstance(found.op, Input)):
                leaves[found] = None
                continue
            stack.append((found, True))
            stack.extend((v, False) for v in reversed(found.inputs))
    return body, list(leaves)


def _culprit(
    rows: Sequence[Row], sides: tuple[Observed, Observed], base: OnnxTensors, same_model: bool
) -> Culprit | None:
    """Return where the first difference that a side adds comes from."""
    wrong = [(i, c) for i, side in enumerate(sides) for c in side.checks if not c.ok]
    early = _first_added(rows, wrong[0][1].number if wrong else None)
    if early is not None:
        side, row, own = early
        nodes = base.nodes_of(own.nodes)
        if not same_model:
            return Culprit(MODEL, side, row.tensor, nodes, row.check)
        if sides[side].session is None:
            return Culprit(SIDE, side, row.tensor, nodes, row.check)
        fault = _broken_pass(sides[side], row.tensor, base)
        if fault is None:
            kind = PRECISION if _is_precision(sides[side], base) else LOWERING
            return Culprit(kind, side, row.tensor, nodes, row.check)
        done = fault.rewrite
        named = base.nodes_of(done.origin.split(ORIGINS_BETWEEN)) if done is not None else ()
        return Culprit(REWRITE, side, row.tensor, named or nodes, row.check, fault)
    if not wrong:
        return None
    side, check = wrong[0]
    made = [n for n, p in sides[side].points.items() if p.check is check]
    tensor = made[-1] if made else None
    return Culprit(KERNEL, side, tensor, base.nodes_of(check.step.nodes), check)


def _first_added(rows: Sequence[Row], before: int | None) -> tuple[int, Row, Own] | None:
    """Return the first tensor at which a side adds a difference that is no step's own.

    before: the number of the first wrong step; what comes later may follow from it.
    """
    for row in rows:
        for side, own in enumerate(row.own):
            if own is None or own.difference.ok:
                continue
            if row.check is not None and not row.check.ok:
                return None
            if before is not None and row.check is not None and row.check.number >= before:
                return None
            return side, row, own
    return None


def _is_precision(side: Observed, base: OnnxTensors) -> bool:
    """Return True if a side has a lower precision, which explains how far its outputs are."""
    session = side.session
    assert session is not None
    if session.config.precision == "f32" and not session.config.tf32:
        return False
    allowed = session.tolerances(base.feeds, reference=True)
    known = [n for n in allowed if n in side.points and n in base.values]
    pairs = ((n, side.points[n].data, base.reference[base.values[n]]) for n in known)
    return bool(known) and all(
        compare(OutputPath(n), _as(data, base, n), right, allowed[n]).ok for n, data, right in pairs
    )


def _broken_pass(side: Observed, tensor: str, base: OnnxTensors) -> BrokenPass | None:
    """Return the pass of a side that changes the numbers: of its outputs, else of one tensor."""
    session = side.session
    assert session is not None
    whole = session.bound_graph(base.feeds)
    part = replace(base.graph, outputs=((tensor, base.values[tensor]),), donations=())
    for graph in (whole, part):
        found = check_passes(graph, base.feeds, session.config)
        if found.fault is not None:
            return found.fault.fault
    return None
