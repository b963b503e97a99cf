"""The pass that chooses the order of dimensions of convolutions, and moves transposes away.

Every convolution gets the requested layout. Each other value may be stored in any order that its op
works in (`Op.follow_order`, `Op.reach_order`). A transpose stands wherever a value is read in
another order than it is stored in. The pass minimises the cost of these transposes by the cost
model: sweeps through the graph, from the inputs and from the outputs in turn, pick the best order
of each value for those of its neighbours. Ties keep transposes away from convolutions, so they end
at inputs, at outputs, and at ops that work in one order only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from monograph.errors import ConfigError
from monograph.ir import Constant, Graph, Input, TensorType, Value, constant, known
from monograph.ir.layout import LayoutPlan, Need, Order, channels_last, plain, same_memory
from monograph.ir.sizes import hint_of
from monograph.ops.shape import Reshape, Transpose, Unsqueeze
from monograph.ops.window import CHANNELS_LAST
from monograph.passes.base import Environment, Pass, users_of
from monograph.rewrite import CostModel, Work

KEEP = "keep"
ROUNDS = 4
"""The largest number of sweeps; they end early when nothing changes."""


def has_order(value: Value) -> bool:
    """Return True if the dimensions of a value could be stored in another order."""
    return isinstance(value.type, TensorType) and value.type.shape is not None


def plain_need(value: Value) -> Need:
    return Need(plain(value.tensor.rank) if has_order(value) else ())


def plain_plan(value: Value) -> LayoutPlan:
    """Return the op as it is, on operands as they are."""
    return LayoutPlan(value.op, tuple(map(plain_need, value.inputs)), plain_need(value).order)


def layer_plan(value: Value) -> LayoutPlan | None:
    """Return a convolution with its channels last; None for any other value."""
    return value.op.layer_plan(value) if _is_ranked(value) else None


def follow(value: Value, index: int, order: Order) -> LayoutPlan | None:
    """Return a plan for an operand `index` in this order; None where there is none."""
    return value.op.follow_order(value, index, order) if _is_ranked(value) else None


def reach(value: Value, order: Order) -> LayoutPlan | None:
    """Return a plan for a result in this order; None where there is none."""
    if not value.inputs or not _is_ranked(value):
        return None
    return value.op.reach_order(value, order)


def _is_ranked(value: Value) -> bool:
    return all(map(has_order, (value, *value.inputs)))


@dataclass(frozen=True)
class ChooseLayout(Pass):
    """Keeps convolutions channels-last where asked to, with transposes at the edges only.

    The types of a graph's inputs and outputs stay. Sums may run in another order.
    """

    layout: str = KEEP
    """"keep", or "channels_last" for targets whose convolutions want [N, *S, C]."""
    planes: bool = False
    """True for targets whose depthwise convolutions are as fast with channels first."""

    def run(self, graph: Graph, environment: Environment) -> Graph:
        if self.layout not in (KEEP, CHANNELS_LAST):
            raise ConfigError(
                "`layout` must be a known layout",
                expected=f"{KEEP} | {CHANNELS_LAST}",
                given=self.layout,
            )
        if self.layout == KEEP:
            return graph
        layers = {v: p for v in graph.values if (p := layer_plan(v)) is not None}
        layers = dict(list(layers.items())[: environment.left])
        if not layers:
            return graph
        either = {v for v in layers if self.planes and v.op.suits_planes(v)}
        plans = _Chooser(graph, layers, either, environment.cost).run()
        return _Builder(graph, plans, self.name, environment).run(layers)


class _Chooser:
    """Chooses an order for every value."""

    def __init__(
        self, graph: Graph, layers: dict[Value, LayoutPlan], either: set[Value], cost: CostModel
    ) -> None:
        self.graph = graph
        self.layers = layers
        self.either = either
        """The layers that may keep their channels first."""
        self.cost = cost
        self.plans: dict[Value, LayoutPlan] = {}
        self.free: list[Value] = []
        self.wanted: dict[Value, Counter[Order]] = {v: Counter() for v in graph.values}
        """The number of users (outputs included) that read a value in an order."""
        self.users = users_of(graph)
        self.known_costs: dict[tuple[object, Order, Order], int] = {}
        for value in graph.values:
            follows = value not in layers or value.op.any_spatial_order(value)
            if value in either or (follows and follow_any(value)):
                self.free.append(value)
            else:
                self._take(value, layers.get(value) or plain_plan(value))
        for _, value in graph.outputs:
            if has_order(value):
                self.wanted[value][plain(value.tensor.rank)] += 1

    def run(self) -> dict[Value, LayoutPlan]:
        stale = set(self.free)
        for _ in range(ROUNDS):
            for value in (*self.free, *reversed(self.free)):
                if value in stale:
                    stale.discard(value)
                    if self._choose(value):
                        stale.update(value.inputs, self.users[value])
            if stale.isdisjoint(self.free):
                break
        return self.plans

    def _take(self, value: Value, plan: LayoutPlan) -> None:
        self.plans[value] = plan
        for v, need in zip(value.inputs, plan.needs, strict=True):
            self.wanted[v][need.order] += 1

    def _release(self, value: Value) -> None:
        plan = self.plans.get(value)
        if plan is None:
            return
        for v, need in zip(value.inputs, plan.needs, strict=True):
            self.wanted[v][need.order] -= 1
            if not self.wanted[v][need.order]:
                del self.wanted[v][need.order]

    def _choose(self, value: Value) -> bool:
        """Give a value the best order; return True if its neighbours see a change."""
        self._release(value)
        before = self.plans.get(value)
        best = min(self._options(value), key=lambda plan: self._rank(value, plan))
        self._take(value, best)
        return before is None or (before.order, before.needs) != (best.order, best.needs)

    def _rank(self, value: Value, plan: LayoutPlan) -> tuple[int, bool, bool]:
        """Return the cost of a plan; ties prefer another than the plain order, then the present."""
        cost = self._own(value, plan) + self._around(value, plan.order)
        reads = {(v, need.order) for v, need in zip(value.inputs, plan.needs, strict=True)}
        for v, order in reads:
            if order not in self.wanted[v]:
                cost += self._cost(v, self.plans[v].order, order)
        return cost, plan.order == plain(len(plan.order)), plan != self.plans.get(value)

    def _options(self, value: Value) -> list[LayoutPlan]:
        """Return the plain plan (or a layer's own), and those for orders of operands and users."""
        found = [self.layers.get(value) or plain_plan(value)]
        if value in self.either:
            found.append(plain_plan(value))
        for i, v in enumerate(value.inputs):
            order = self.plans[v].order
            if order != plain(len(order)) and (plan := follow(value, i, order)) is not None:
                found.append(plan)
        for order in self.wanted[value]:
            if order != plain(len(order)) and (plan := reach(value, order)) is not None:
                found.append(plan)
        return found

    def _own(self, value: Value, plan: LayoutPlan) -> int:
        """Return the cost of a transpose of the graph that the plan keeps."""
        if not isinstance(plan.op, Transpose):
            return 0
        (x,) = value.inputs
        return self._cost(x, plain(x.tensor.rank), plan.op.permutation)

    def _around(self, value: Value, order: Order) -> int:
        """Return the cost of the transposes to the users of a value in this order."""
        return sum(self._cost(value, order, wanted) for wanted in self.wanted[value])

    def _cost(self, value: Value, given: Order, wanted: Order) -> int:
        """Return the cost of a transpose in whole femtoseconds, so that equal sums are equal."""
        if given == wanted or isinstance(value.op, Constant):
            return 0
        key = (value.type, given, wanted)
        if key not in self.known_costs:
            free = same_memory(value.tensor, given, wanted)
            # A symbol counts as 1: what is known of a size still tells large from small.
            sizes = [hint_of(d) for d in value.tensor.dims if isinstance(d, int)]
            moved = 2 * int(np.prod(sizes, dtype=np.float64)) * value.dtype.itemsize
            seconds = 0.0 if free else self.cost.seconds(Work(1, 0, moved))
            self.known_costs[key] = round(seconds * 1e15)
        return self.known_costs[key]


def follow_any(value: Value) -> bool:
    """Return True if a value can be computed in another order than the plain one."""
    for i, v in enumerate(value.inputs):
        if not has_order(v):
            return False
        rank = v.tensor.rank
        orders = {plain(rank), channels_last(rank) if rank > 1 else plain(rank)}
        if any(follow(value, i, order) is not None for order in orders):
            return True
    return False


@dataclass
class _Builder:
    """Builds the graph of the chosen orders."""

    graph: Graph
    plans: dict[Value, LayoutPlan]
    rule: str
    environment: Environment
    kept: dict[Value, Value] = field(default_factory=dict)
    origins: dict[Value, str] = field(default_factory=dict)

    def run(self, layers: dict[Value, LayoutPlan]) -> Graph:
        graph = self.graph
        for value in graph.values:
            plan = self.plans[value]
            operands = [
                self._read(v, need, value.op.name)
                for v, need in zip(value.inputs, plan.needs, strict=True)
            ]
            made = value
            if operands:
                made = operands[0] if plan.op is None else plan.op(*operands)
            self.kept[value] = made
            self._name(made, graph.origin(value))
            if value in layers and plan.op == value.op:
                reason = "windows of one channel are as fast with channels first"
                self.environment.trace.note_missed(self.rule, graph.place(value), reason, 100)
            elif value in layers:
                self.environment.trace.note_fired(
                    self.rule,
                    graph.place(value),
                    f"{value.op.name} : {value.type}",
                    f"{value.op.name}, channels last : {made.type}",
                )
        outputs = tuple(
            (name, self._read(v, plain_need(v), "the output")) for name, v in graph.outputs
        )
        return Graph(graph.inputs, outputs, graph.name, self.origins, graph.donations)

    def _read(self, value: Value, need: Need, reader: str) -> Value:
        """Return a value in the order that a user needs."""
        made = self.kept[value]
        data = known(made)
        if data is not None:
            # A transpose of a constant is the constant, kept in another order.
            given = self.plans[value].order
            order = tuple(given.index(d) for d in need.order)
            if order == plain(data.ndim) and not need.new_axes:
                return made
            moved = np.expand_dims(np.transpose(data, order), need.new_axes)
            return constant(np.ascontiguousarray(moved))
        if not has_order(value):
            return made
        given = self.plans[value].order
        if given != need.order:
            made = self._reordered(made, value, need.order, reader)
        return Unsqueeze(need.new_axes)(made) if need.new_axes else made

    def _reordered(self, made: Value, value: Value, wanted: Order, reader: str) -> Value:
        given = self.plans[value].order
        origin = self.graph.origin(value)
        if value.tensor.is_static and same_memory(value.tensor, given, wanted):
            moved = Reshape(tuple(value.tensor.static[d] for d in wanted))(made)
        else:
            moved = Transpose(tuple(given.index(d) for d in wanted))(made)
            reason = f"{reader} reads it in another order than it is kept in"
            orders = f"expected {list(wanted)}, given {list(given)}"
            self.environment.trace.note_missed(
                self.rule, self.graph.place(value), f"{reason} ({orders})", 50
            )
        self._name(moved, origin)
        return moved

    def _name(self, made: Value, origin: str | None) -> None:
        if origin is not None and not isinstance(made.op, (Input, Constant)):
            self.origins.setdefault(made, origin)
