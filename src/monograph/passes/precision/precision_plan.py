"""The precision plan: the values that a narrow float type computes, and why others stay in f32.

These rules decide, in this order:

1. An op that must stay in f32 does (see `precision_rules`).
2. Arithmetic on nothing but values that stay, stays: the mean, the variance and its square root.
   Arithmetic that joins such a value of wide range (a sum, a power, an integer) with others stays
   too: a whole norm or softmax then runs in f32, whatever arithmetic it is written in.
3. A value whose numbers do not fit the narrow type stays, and so does what reads it. One run on
   drawn inputs estimates how large they become (`range_probe`), with room for other inputs; no room
   is needed where a bound is proved. Numbers may overflow where only saturating ops see
   it: the sigmoid of a large number is that of infinity. bf16 has the range of f32: nothing stays
   for its range. Of what grows faster than the inputs do (its degree) an estimate says nothing: it
   stays unless a bound is proved. What logarithms, squares and angles are made of stays with them
   (`front_ends`).
4. Arithmetic whose every user stays, stays: squares that are summed, differences that e is raised
   to. So do moves of numbers in f32 to users in f32.
5. Views of such values convert where all their users are converted: half the bytes are moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import ml_dtypes

from monograph.ir import (
    Constant,
    DType,
    Graph,
    Input,
    Narrowing,
    TensorType,
    Value,
    known,
    subgraphs,
)
from monograph.ir.dtype import BOOL
from monograph.ir.sizes import is_open
from monograph.ir.types import holds_open
from monograph.passes.base import users_of
from monograph.passes.precision.front_ends import find_degrees, find_front_ends, is_trusted
from monograph.passes.precision.precision_rules import (
    GROWS,
    TOO_LARGE,
    VANISHES,
    Magnitude,
    find_f32_reason,
    has_range_of_f32,
    has_wide_range,
    is_f32,
    is_flexible,
    is_layer,
    is_move,
    range_reason,
)
from monograph.passes.precision.range_probe import Rehearsal

BYTE = 8


def find_bounds(graph: Graph) -> dict[Value, float]:
    """Return the bound of every value of a graph that has one."""
    bounds: dict[Value, float] = {}
    for value in graph.values:
        if isinstance(value.type, TensorType) and (found := _bound(value, bounds)) < math.inf:
            bounds[value] = found
    return bounds


def _bound(value: Value, bounds: Mapping[Value, float]) -> float:
    if isinstance(value.op, Constant):
        return _of_constant(value)
    if value.dtype.is_integer:
        # Integers wrap: their arithmetic proves nothing that their type does not.
        return 2.0**value.dtype.bits
    if not value.dtype.is_float:
        return 1.0 if value.dtype.kind == BOOL else math.inf
    return value.op.bound(value, [bounds.get(v, math.inf) for v in value.inputs])


def _of_constant(value: Value) -> float:
    data = known(value)
    if value.dtype.is_integer and value.dtype.bits < BYTE:
        return 2.0**value.dtype.bits
    numbers = value.dtype.is_float or value.dtype.is_integer
    if data is None or not numbers or not data.size:
        return math.inf
    if holds_open(data):
        ends = [n.scope.bounds(n.expression) if is_open(n) else (n, n) for n in data.flat]
        return float(max(abs(end) for pair in ends for end in pair))
    low, high = float(data.min()), float(data.max())
    # NaN bounds nothing.
    return math.inf if math.isnan(low + high) else max(abs(low), abs(high))


KEEP, CONVERT = "keep", "convert"
FOLLOWS = "what it reads stays in f32"
JOINS = "it reads a sum or another value of wide range"
FEEDS = "all that reads it stays in f32"
MISFIT = "it reads numbers that do not fit"
DONATED = "it is written into the memory of an input"
UNPROVED = "its range is not proved: it may grow faster than the inputs do"


def is_comparison(value: Value) -> bool:
    return value.op.narrowing is Narrowing.COMPARISON


def converts(value: Value) -> bool:
    """Return True if a value could be computed in another float type: it reads or gives f32."""
    if isinstance(value.op, (Input, Constant)):
        return False
    if is_comparison(value):
        return is_f32(value.inputs[0].type)
    return is_f32(value.type)


class Magnitudes:
    """The magnitudes of a graph and its sub-graphs, for a type whose range may not hold them."""

    def __init__(self, graph: Graph, to: DType) -> None:
        needed = not has_range_of_f32(to) and _may_convert(graph, to)
        self.rehearsal = Rehearsal(graph) if needed else None

    @property
    def unknown(self) -> dict[Value, str]:
        return self.rehearsal.unknown if self.rehearsal is not None else {}

    def of(self, graph: Graph) -> dict[Value, Magnitude]:
        """Return the magnitudes of one of these graphs, whose sub-graphs may have changed."""
        if self.rehearsal is None:
            return {}
        largest = self.rehearsal.largest
        if any(v not in largest for v in graph.values if is_f32(v.type)):
            self.rehearsal.replay(graph)
        bounds = find_bounds(graph)
        return {
            v: Magnitude(largest.get(v), bounds.get(v, math.inf))
            for v in graph.values
            if is_f32(v.type)
        }


def _may_convert(graph: Graph, to: DType) -> bool:
    """Return True if any value, also of a sub-graph, would be converted if all numbers fitted."""
    kept = plan_precision(graph, to)
    return any(converts(v) and v not in kept for v in graph.values) or any(
        _may_convert(body, to) for v in graph.values for body in subgraphs(v.op)
    )


def plan_precision(
    graph: Graph, to: DType, edges: str = KEEP, sizes: Mapping[Value, Magnitude] | None = None
) -> dict[Value, str]:
    """Return the values that stay in f32, with the reasons; `sizes` are their magnitudes."""
    sizes = sizes or {}
    unproved = _unproved(graph, to, sizes)
    plan = _Plan(to, _misfits(graph, to, sizes), unproved, find_front_ends(graph, unproved))
    donated = {name for name, _ in graph.donations} if edges == KEEP else set()
    written = {v for name, v in graph.outputs if name in donated}
    for value in graph.values:
        if reads_f32(value) or converts(value):
            plan.decide(value, DONATED if value in written else None)
    _keep_what_feeds(graph, plan.reasons, edges)
    return {v: r for v, r in plan.reasons.items() if converts(v)}


@dataclass
class _Plan:
    """The decisions on values, in the order in which they are computed."""

    to: DType
    misfits: dict[Value, str]
    """The values whose numbers do not fit, with the reasons."""
    degrees: Mapping[Value, float]
    """The degrees of values, for a type whose range may not hold them."""
    front_ends: Mapping[Value, str]
    """The values that stay because of a reader, with the reasons."""
    reasons: dict[Value, str] = field(default_factory=dict)
    wide: set[Value] = field(default_factory=set)
    """The values that stay and whose op may exceed the narrow type."""
    masks: set[Value] = field(default_factory=set)
    """The values whose large numbers are constants: their readers clip them."""

    def decide(self, value: Value, reason: str | None) -> None:
        operands = [v for v in value.inputs if is_f32(v.type) and not isinstance(v.op, Constant)]
        flexible = is_flexible(value.op) and bool(operands)
        reason = reason or find_f32_reason(value, self.to) or self._unproved(value)
        if reason is None:
            reason = self.front_ends.get(value)
        if reason is None and flexible:
            reason = self._from_operands(value, operands)
        follows = reason in (FOLLOWS, JOINS) and any(v in self.masks for v in operands)
        set_by_constant = not is_layer(value.op) and (reason or "").startswith(TOO_LARGE)
        if follows or set_by_constant:
            self.masks.add(value)
            self.misfits.pop(value, None)
        if reason in (None, FOLLOWS):
            reason = self.misfits.get(value) or self._misfit(value, operands) or reason
        if reason is None:
            return
        self.reasons[value] = reason
        carries = flexible and all(v in self.wide for v in operands)
        if carries or has_wide_range(value, reason) or reason == UNPROVED:
            self.wide.add(value)

    def _unproved(self, value: Value) -> str | None:
        """Return the reason if no estimate serves for a value, or for an operand of a layer."""
        read = value.inputs[:3] if is_layer(value.op) else ()
        if all(is_trusted(self.degrees.get(v, 0.0)) for v in (value, *read)):
            return None
        return UNPROVED

    def _from_operands(self, value: Value, operands: list[Value]) -> str | None:
        if all(v in self.reasons for v in operands):
            return FOLLOWS
        if any(v in self.wide for v in operands):
            return JOINS
        if is_comparison(value) and any(v in self.reasons for v in operands):
            return FOLLOWS
        return None

    def _misfit(self, value: Value, operands: list[Value]) -> str | None:
        """Return the reason if an operand does not fit the narrow type."""
        if value.op.clipped_from is not None:
            # A mask that is too large hides its keys as well when it is clipped.
            operands = [v for v in operands if v in value.inputs[: value.op.clipped_from]]
        for v in operands:
            small = self.misfits.get(v, GROWS).startswith(VANISHES)
            if v in self.misfits and not (small and value.op.adds_terms):
                return f"{MISFIT} ({self.misfits[v].partition('(')[2]}"
        return None


def _unproved(graph: Graph, to: DType, sizes: Mapping[Value, Magnitude]) -> Mapping[Value, float]:
    """Return the degrees of values, for a type whose range may not hold them."""
    if has_range_of_f32(to) or not sizes:
        return {}
    top = float(ml_dtypes.finfo(to.numpy).max)  # type: ignore[no-untyped-call]
    return find_degrees(graph, lambda v: v in sizes and sizes[v].bound <= top)


def reads_f32(value: Value) -> bool:
    return any(is_f32(v.type) for v in value.inputs)


def _keep_what_feeds(graph: Graph, reasons: dict[Value, str], edges: str) -> None:
    """Apply steps 4 and 5: values between those that stay, and views that need not stay."""
    users = users_of(graph)
    outputs = {v for _, v in graph.outputs}
    moved = _moved(graph, reasons) if edges == KEEP else set()
    for value in reversed(graph.values):
        if value in moved and all(u in reasons for u in users[value]):
            reasons.setdefault(value, FEEDS)
            continue
        if value in outputs or not users[value] or not converts(value):
            continue
        follows = reasons.get(value) == FOLLOWS
        if value.op.narrowing is Narrowing.ARITHMETIC and value not in reasons:
            if all(reasons.get(u, FEEDS) != FEEDS for u in users[value]):
                reasons[value] = FEEDS
        elif is_move(value.op) and follows and _all_narrow(users[value], reasons):
            del reasons[value]


def _moved(graph: Graph, reasons: Mapping[Value, str]) -> set[Value]:
    """Return the values that only move f32 numbers: a narrow type on the way would lose digits."""
    found: set[Value] = set(graph.inputs)
    for value in graph.values:
        operands = [v for v in value.inputs if is_f32(v.type) and not isinstance(v.op, Constant)]
        whole = all(v in found or v in reasons for v in operands)
        if is_move(value.op) and is_f32(value.type) and operands and whole:
            found.add(value)
    return found.difference(graph.inputs)


def _all_narrow(users: list[Value], reasons: dict[Value, str]) -> bool:
    return all(converts(u) and u not in reasons for u in users)


def _misfits(graph: Graph, to: DType, sizes: Mapping[Value, Magnitude]) -> dict[Value, str]:
    """Return the values that do not fit a type and whose overflow is harmful, with reasons."""
    found = {v: why for v, m in sizes.items() if (why := range_reason(m, to)) is not None}
    users, outputs = users_of(graph), {v for _, v in graph.outputs}
    harmless: set[Value] = set()
    for value in reversed(graph.values):
        if value in outputs or not users[value]:
            continue
        if all(_absorbs(user, value, found, harmless) for user in users[value]):
            harmless.add(value)
    return {v: why for v, why in found.items() if why.startswith(VANISHES) or v not in harmless}


def _absorbs(user: Value, value: Value, misfits: Mapping[Value, str], harmless: set[Value]) -> bool:
    """Return True if an overflow of a value to infinity does not change the results of a user."""
    if user.op.saturates:
        return True
    alone = not any(v in misfits for v in user.inputs if v is not value)
    return user in harmless and user.op.passes_infinity(user, value, alone)
