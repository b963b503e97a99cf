"""Runs congruent chains of dots (or convolutions) as one batch, layer by layer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from monograph.ir import Array, Graph, Input, Value, constant, known
from monograph.ops.composite import RmsNorm
from monograph.ops.conv import Conv
from monograph.ops.linear import Dot
from monograph.ops.shape import Concat, Unsqueeze
from monograph.passes.base import Environment, Pass, substitute
from monograph.passes.horizontal.blends import blend_work
from monograph.passes.horizontal.families import Family, Lifter
from monograph.passes.horizontal.layers import (
    LayerSchedule,
    Towers,
    is_layer,
    joins_columns,
    layer_kind,
    why_no_layer,
    wide_kind,
)
from monograph.passes.horizontal.stackings import AlongAxis, NewAxis, column_stacking
from monograph.passes.horizontal.weights import stack_weights
from monograph.rewrite import CostModel, Work, rows_normalised


@dataclass(frozen=True)
class BatchTowers(Pass):
    """Towers of layers that agree become one tower of batched layers, their epilogues included.

    Layers agree when shapes and element types do. Towers of unequal depth share their common
    prefix. Layers are computed together only when none needs another. Elementwise work that
    differs between towers is blended where that is faster than batches of their own.
    """

    def run(self, graph: Graph, environment: Environment) -> Graph:
        towers = Towers(graph)
        lifter = Lifter(graph, cost=environment.cost)
        schedule = LayerSchedule(towers, lifter)
        plans = _Plans(towers, lifter, environment)
        while group := schedule.next_group():
            for layers in plans.choose(self.name, group):
                if environment.exhausted:
                    break
                inputs, seed = _seed(layers)
                free = inputs is not None and not any(v in lifter.place for v in inputs.members)
                if inputs is not None and free and schedule.independent(inputs.members):
                    # What else reads the inputs may read the stack, if none needs another.
                    lifter.add(inputs, given=True)
                lifter.add(seed)
                lifter.run()
                self._note(graph, layers, environment)
            schedule.finish(group)
        self._note_dependent(towers, environment)
        self._note_others(graph, environment)
        for value, reason in lifter.reasons:
            environment.trace.note_missed(self.name, graph.place(value), reason, 50)
        replaced = lifter.replacements()
        return substitute(graph, replaced, lifter.origins(graph)) if replaced else graph

    def _note_dependent(self, towers: Towers, environment: Environment) -> None:
        """Says of layers that agree why those that need each other are not computed together."""
        alike: dict[object, list[Value]] = defaultdict(list)
        for v in towers.layers:
            alike[towers.chains[v][0].layer].append(v)
        for first, *others in alike.values():
            for other in others:
                if towers.level[other] != towers.level[first] and towers.needs(other, first):
                    environment.trace.note_missed(
                        self.name,
                        ", ".join(_origins(towers.graph, [first, other])),
                        "they stand at different depths and one needs the other"
                        f" (expected {towers.level[first]} layers before,"
                        f" given {towers.level[other]})",
                        40,
                    )
                    break

    def _note_others(self, graph: Graph, environment: Environment) -> None:
        """Says of dots and convolutions that are no layers why they are not."""
        for value in graph.values:
            if isinstance(value.op, (Dot, Conv)) and not is_layer(value):
                reason = why_no_layer(value)
                environment.trace.note_missed(self.name, graph.place(value), reason, 10)

    def _note(self, graph: Graph, layers: list[Value], environment: Environment) -> None:
        layer = layers[0]
        environment.trace.note_fired(
            self.name,
            " + ".join(_origins(graph, layers)),
            f"{len(layers)} x {layer.op.name} : {layer.type}",
            f"1 x {layer.op.name}, batched",
        )


def _origins(graph: Graph, values: list[Value]) -> list[str]:
    return [text for v in values if (text := graph.origin(v))]


@dataclass(frozen=True)
class _Choice:
    """A set of layers, the time of the fastest way to compute them, and whether that is a batch."""

    layers: list[Value]
    seconds: float
    reason: str
    """The reason why the layers are not batched; "" where they are."""


@dataclass(frozen=True)
class _Plans:
    """Divides congruent layers into batches, by the target's cost model."""

    towers: Towers
    lifter: Lifter
    environment: Environment

    def choose(self, name: str, group: list[Value]) -> list[list[Value]]:
        """The batches of some layers: all of them, or by what follows them, or by their input."""
        chains = self.towers.chains
        # Chains in trie order put towers with a common prefix side by side, at every depth.
        fresh = sorted((v for v in group if v not in self.lifter.place), key=lambda v: chains[v])
        if len(fresh) < 2:
            return []
        divisions: list[Callable[[Value], object]] = [
            lambda v: chains[v][0],
            lambda v: None,
            lambda v: (chains[v][0], v.inputs[0]),
            lambda v: v.inputs[0],
        ]
        depth = max(self.towers.common_depth(fresh, mixed=True), 1)
        plans = [[self._judge(g, depth) for g in _grouped(fresh, key)] for key in divisions]
        plans.append(self._across_inputs(fresh, depth))
        best = min((p for p in plans if p), key=lambda found: sum(c.seconds for c in found))
        for choice in best:
            if choice.reason:
                origin = ", ".join(_origins(self.towers.graph, choice.layers))
                self.environment.trace.note_missed(name, origin, choice.reason, 100)
        return [c.layers for c in best if len(c.layers) > 1 and not c.reason]

    def _across_inputs(self, layers: list[Value], most: int) -> list[_Choice]:
        """Several inputs with as many layers each: a batch of the first of each, of the second ...

        Shared-input fusion joins these batches, because they read one stack of inputs.
        """
        by_input = _grouped(layers, lambda v: v.inputs[0])
        if len({len(g) for g in by_input}) > 1 or len(by_input) < 2 or len(by_input[0]) < 2:
            return []
        first, *others = ([*g] for g in zip(*by_input, strict=True))
        choice = self._judge(first, most)
        if choice.reason:
            return []
        cost = self.environment.cost.seconds
        made = (sum(v.tensor.nbytes for v in g) for g in others)
        more = [_Choice(g, cost(Work(0, 0, n)), "") for g, n in zip(others, made, strict=True)]
        return [choice, *more]

    def _judge(self, layers: list[Value], most: int) -> _Choice:
        """Compares a batch with separate layers and with one wide layer, for `most` layers each."""
        first = layers[0]
        shared = all(v.inputs[0] is first.inputs[0] for v in layers)
        grouped = isinstance(first.op, Conv) and first.op.groups != 1
        batched, wide, apart = self._seconds(layers, shared, most)
        if len(layers) == 1:
            return _Choice(layers, apart, "")
        if shared and grouped:
            reason = "grouped convolutions over one input do not become one convolution"
            return _Choice(layers, apart, reason)
        if shared and self._breaks_up(layers, batched, most):
            reason = "a wide layer with the other layers of the input is faster"
            return _Choice(layers, batched, f"{reason}: left to shared-input fusion")
        figures = f"given {batched * 1e6:.2f} us)"
        if batched >= apart:
            reason = (
                "bringing the inputs together costs more than the launches saved"
                f" (expected below {apart * 1e6:.2f} us, {figures}"
            )
        elif batched >= wide:
            reason = (
                "one wide layer is as fast: left to shared-input fusion"
                f" (expected below {wide * 1e6:.2f} us, {figures}"
            )
        else:
            reason = ""
        return _Choice(layers, min(batched, wide, apart), reason)

    def _breaks_up(self, layers: list[Value], batched: float, most: int) -> bool:
        """Return True if a batch costs more than one layer with others of the same input.

        Others differ in their widths. Layers behind a wide one read its parts through views.
        """
        first = layers[0]
        others = self._beside(first)
        if not others or not isinstance(first.op, Dot):
            return False
        seconds, every = self.environment.cost.seconds, [*layers, *others]
        mixed = len({self.towers.chains[v][0].between for v in layers}) > 1
        depth = self.towers.common_depth(layers, mixed)
        joined, _ = self.towers.launches(layers, depth, most, mixed)
        once = first.inputs[0].tensor.nbytes
        made, more = (sum(v.tensor.nbytes for v in g) for g in (layers, others))
        blend = blend_work([self.lifter.epilogue(v) for v in every], column_stacking(every))
        epilogues = Work(blend.launches, 0, blend.bytes), Work(0, blend.flops, 0)
        extra = min(map(seconds, epilogues)) if blend.flops else 0.0
        wide = seconds(Work(joined, 0, once + made + more)) + extra
        return wide < batched + seconds(Work(1, 0, once + more))

    def _beside(self, layer: Value) -> list[Value]:
        """The layers of other widths that shared-input fusion joins with a layer."""
        if not joins_columns(layer) or (isinstance(layer.op, Conv) and layer.op.groups != 1):
            return []
        own, kind = layer_kind(layer), wide_kind(layer)
        readers = self.towers.users[layer.inputs[0]]
        found = (v for v in readers if v.inputs[0] is layer.inputs[0] and is_layer(v))
        return [
            v
            for v in found
            if v not in self.lifter.place and wide_kind(v) == kind and layer_kind(v) != own
        ]

    def _joined_anyway(self, layers: list[Value]) -> int:
        """The launches that shared-input fusion saves if the layers are left to it."""
        by_input = _grouped(layers, lambda v: v.inputs[0])
        alone = sum(not self._beside(first) for first, *_ in by_input)
        return len(layers) - alone if joins_columns(layers[0]) else 0

    def _seconds(self, layers: list[Value], shared: bool, most: int) -> tuple[float, float, float]:
        """Estimates for the layers as one batch, as one wide layer, and apart.

        The arithmetic is the same, but for epilogues that differ. A batch reads its input once for
        each member, or copies separate inputs together first. A wide layer reads it once, but
        layers behind it need its parts apart. Layers behind the common ones run one by one.
        """
        seconds, chains = self.environment.cost.seconds, self.towers.chains
        mixed = len({chains[v][0].between for v in layers}) > 1
        depth = self.towers.common_depth(layers, mixed)
        joined, each = self.towers.launches(layers, depth, most, mixed)
        blend = self._blend_work(layers) if mixed else Work(0, 0, 0)
        read = sum(v.inputs[0].tensor.nbytes for v in layers)
        once = layers[0].inputs[0].tensor.nbytes
        # Weights that all share are read once for a batch.
        made = sum(v.tensor.nbytes for v in layers)
        weights = sum(v.inputs[1].tensor.nbytes for v in layers)
        siamese = all(v.inputs[1] is layers[0].inputs[1] for v in layers)
        stacked = layers[0].inputs[1].tensor.nbytes if siamese else weights
        join = Work(0, 0, 0)
        if not shared:
            join = Work(_copies(layers, self.environment.cost), 0, 2 * read)
        if not shared or len(layers) == 1:
            each -= self._joined_anyway(layers)
        batched = seconds(Work(joined, 0, read + made + stacked) + join)
        batched += seconds(Work(0, blend.flops, 0))
        apart = seconds(Work(each, 0, read + made + weights))
        wide = float("inf")
        if shared and joins_columns(layers[0]):
            copies = Work(1, 0, 2 * made) if depth > 1 else Work(0, 0, 0)
            epilogues = Work(blend.launches, 0, blend.bytes)
            wide = seconds(Work(joined, 0, once + made + weights) + copies + epilogues)
        return batched, wide, apart

    def _blend_work(self, layers: list[Value]) -> Work:
        found = [self.lifter.epilogue(v) for v in layers]
        return blend_work(found, NewAxis(len(layers)))


def _grouped(layers: list[Value], key: Callable[[Value], object]) -> list[list[Value]]:
    found: dict[object, list[Value]] = defaultdict(list)
    for v in layers:
        found[key(v)].append(v)
    return [*found.values()]


def _copies(layers: list[Value], cost: CostModel) -> int:
    """The kernels that bring inputs together: one for inputs of the graph, one for each repetition.

    Other values are written where the stack has them. A norm that the kernel of a product computes
    itself needs a kernel of its own.
    """
    inputs = dict.fromkeys(v.inputs[0] for v in layers)
    rows = math.prod(layers[0].tensor.static[:-1])
    most = rows_normalised(cost, layers[0].dtype)
    norms = sum(isinstance(v.op, RmsNorm) for v in inputs) if rows <= most else 0
    return any(isinstance(v.op, Input) for v in inputs) + len(layers) - len(inputs) + norms


def _seed(layers: list[Value]) -> tuple[Family | None, Family]:
    """The inputs of some towers where they are several, and the first layer computed as one.

    Weights that all layers share are not repeated.
    """
    first = layers[0]
    shared = all(v.inputs[0] is first.inputs[0] for v in layers)
    siamese = all(v.inputs[1] is first.inputs[1] for v in layers)
    inputs = None if shared else _stacked_inputs(layers, siamese)
    x = first.inputs[0] if inputs is None else inputs.stacked
    if isinstance(first.op, Conv):
        weights = [data for v in layers if (data := known(v.inputs[1])) is not None]
        return inputs, _conv_seed(first.op, x, layers, weights, inputs)
    rank = first.tensor.rank
    stack = first.inputs[1] if siamese else stack_weights([v.inputs[1] for v in layers], rank)
    missing = rank - first.inputs[0].tensor.rank if inputs is not None else 0
    x = Unsqueeze(tuple(range(1, 1 + missing)))(x) if missing else x
    return inputs, Family(tuple(layers), first.op(x, stack), NewAxis(len(layers)))


def _stacked_inputs(layers: list[Value], siamese: bool) -> Family:
    """Separate inputs brought together; what else reads them can read the stack."""
    inputs = tuple(v.inputs[0] for v in layers)
    if isinstance(layers[0].op, Conv):
        axis = 0 if siamese else 1
        width = inputs[0].tensor.static[axis]
        stacking = AlongAxis(axis - inputs[0].tensor.rank, (width,) * len(inputs))
        return Family(inputs, Concat(axis)(*inputs), stacking)
    return Family(inputs, Concat(0)(*map(Unsqueeze((0,)), inputs)), NewAxis(len(inputs)))


def _conv_seed(
    op: Conv, x: Value, layers: list[Value], weights: list[Array], inputs: Family | None
) -> Family:
    """Convolutions over one input become a wide one; over several, one of more groups.

    Those of one kernel over several inputs become one convolution of more images.
    """
    first = layers[0]
    count, rank = len(layers), first.tensor.rank
    if inputs is not None:
        stacking = inputs.stacking
        if isinstance(stacking, AlongAxis) and stacking.axis == -rank:
            return Family(tuple(layers), op(x, first.inputs[1]), stacking)
        op = replace(op, groups=op.groups * count)
    stacked = op(x, constant(np.concatenate(weights, 0)))
    width = first.tensor.static[1]
    return Family(tuple(layers), stacked, AlongAxis(1 - rank, (width,) * count))
