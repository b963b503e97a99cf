"""Runs congruent chains of dots (or convolutions) as one batch, layer by layer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from monograph.ir import Array, Constant, Graph, Op, TensorType, Value, constant, known
from monograph.ops.conv import Conv
from monograph.ops.linear import Dot
from monograph.ops.reduce import Reduction
from monograph.ops.shape import Broadcast, Concat, Reshape, Squeeze, Transpose, Unsqueeze
from monograph.ops.window import CHANNELS_FIRST
from monograph.passes.base import Environment, Pass, substitute, users_of
from monograph.passes.families import AlongAxis, Family, NewAxis, is_elementwise
from monograph.passes.lift import Lifter
from monograph.rewrite import Work

Layer: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""What a layer is (op and operand types), and the ops that stand behind it."""
MAX_CHAIN = 64
_BETWEEN = (Reduction, Reshape, Broadcast, Squeeze, Unsqueeze, Transpose)


@dataclass(frozen=True)
class BatchTowers(Pass):
    """Towers of layers that agree become one tower of batched layers, their epilogues included.

    Layers agree when shapes, element types and what follows them do. Towers of unequal depth share
    their common prefix. Layers of one level (as many layers before them) never depend on each
    other, which is what makes computing them together safe.
    """

    def run(self, graph: Graph, environment: Environment) -> Graph:
        towers = _Towers(graph)
        lifter = Lifter(graph)
        seeds: list[Value] = []
        for group in towers.groups():
            if environment.exhausted:
                break
            fresh = [v for v in group if v not in lifter.place]
            if len(fresh) < 2 or not self._pays(graph, towers, fresh, environment):
                continue
            lifter.add(_seed(fresh))
            lifter.run()
            seeds += fresh
            self._note(graph, fresh, environment)
        towers.note_dependent(graph, environment)
        for value, reason in lifter.reasons:
            environment.trace.note_missed(self.name, graph.origin(value) or "", reason, 50)
        if not seeds:
            return graph
        return substitute(graph, lifter.replacements(), " + ".join(_origins(graph, seeds)))

    def _pays(
        self, graph: Graph, towers: _Towers, layers: list[Value], environment: Environment
    ) -> bool:
        """Whether launches saved outweigh the copies that bring separate inputs together."""
        depth = towers.common_depth(layers)
        shared = all(v.inputs[0] is layers[0].inputs[0] for v in layers)
        reason = ""
        if shared and depth < 2:
            reason = "a single layer on one input: left to shared-input fusion"
        elif shared and isinstance(layers[0].op, Conv) and layers[0].op.groups != 1:
            reason = "grouped convolutions over one input do not become one convolution"
        else:
            copied = 0 if shared else 2 * sum(v.inputs[0].tensor.nbytes for v in layers)
            before = environment.cost.seconds(Work(len(layers) * depth, 0, 0))
            after = environment.cost.seconds(Work(depth, 0, copied))
            if after < before:
                return True
            reason = (
                "bringing the inputs together costs more than the launches saved"
                f" (expected below {before * 1e6:.1f} us, given {after * 1e6:.1f} us)"
            )
        origin = ", ".join(_origins(graph, layers))
        environment.trace.note_missed(self.name, origin, reason, 100)
        return False

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


def _seed(layers: list[Value]) -> Family:
    """The first layer of some towers, computed as one."""
    first = layers[0]
    shared = all(v.inputs[0] is first.inputs[0] for v in layers)
    weights = [data for v in layers if (data := known(v.inputs[1])) is not None]
    if isinstance(first.op, Conv):
        return _conv_seed(first.op, layers, weights, shared)
    stacking = NewAxis(len(layers))
    rank = first.tensor.rank
    stack = np.stack(weights)
    stack = stack.reshape(len(layers), *(1,) * (rank - stack.ndim + 1), *stack.shape[1:])
    x = first.inputs[0]
    if not shared:
        x = Concat(0)(*(Unsqueeze((0,))(v.inputs[0]) for v in layers))
        missing = rank - first.inputs[0].tensor.rank
        x = Unsqueeze(tuple(range(1, 1 + missing)))(x) if missing else x
    return Family(tuple(layers), first.op(x, constant(stack)), stacking)


def _conv_seed(
    op: Conv,
    layers: list[Value],
    weights: list[Array],
    shared: bool,
) -> Family:
    """Convolutions over one input become a wide one; over several, one of more groups."""
    first = layers[0]
    count = len(layers)
    rank, width = first.tensor.rank, first.tensor.static[1]
    stacked_weights = constant(np.concatenate(weights, 0))
    if shared:
        stacked = op(first.inputs[0], stacked_weights)
    else:
        x = Concat(1)(*(v.inputs[0] for v in layers))
        fields = {**op.attributes, "groups": op.groups * count}
        stacked = Conv(**fields)(x, stacked_weights)
    return Family(tuple(layers), stacked, AlongAxis(1 - rank, (width,) * count))


class _Towers:
    """The layers of a graph: dots and convolutions with constant weights and static shapes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = users_of(graph)
        self.layers = [v for v in graph.values if is_layer(v)]
        self.level = self._levels()
        self.chains = {v: self._chain(v) for v in self.layers}

    def _levels(self) -> dict[Value, int]:
        """How many layers stand before each value, at most."""
        level: dict[Value, int] = {}
        layers = set(self.layers)
        for v in self.graph.values:
            level[v] = max((level[i] + (i in layers) for i in v.inputs), default=0)
        return level

    def groups(self) -> list[list[Value]]:
        """Layers of one level that agree, lowest level first, alike chains side by side."""
        found: dict[tuple[int, Layer], list[Value]] = defaultdict(list)
        for v in self.layers:
            found[self.level[v], self.chains[v][0]].append(v)
        # Chains in trie order put towers with a common prefix side by side, at every depth.
        ordered = sorted(found.items(), key=lambda item: item[0][0])
        return [sorted(g, key=lambda v: tuple(map(str, self.chains[v]))) for _, g in ordered]

    def common_depth(self, layers: list[Value]) -> int:
        """For how many layers at least two of these towers agree."""
        depth = 0
        prefixes = [self.chains[v] for v in layers]
        while True:
            # A layer joins the batch by its own kind; what follows it matters to the next one.
            heads = [str((c[:depth], c[depth][0])) for c in prefixes if len(c) > depth]
            if len(heads) < 2 or len(set(heads)) == len(heads):
                return depth
            depth += 1

    def _chain(self, layer: Value) -> tuple[Layer, ...]:
        """The layers that follow one another from here, each with what stands behind it."""
        chain: list[Layer] = []
        current: Value | None = layer
        while current is not None and len(chain) < MAX_CHAIN:
            between, following = self._epilogue(current)
            types = tuple(str(v.type) for v in current.inputs)
            chain.append(((current.op.digest.hex(), *types), tuple(between)))
            current = following
        return tuple(chain)

    def _epilogue(self, layer: Value) -> tuple[list[str], Value | None]:
        """The ops between a layer and the next, and the next layer, if there is one."""
        seen: set[Value] = {layer}
        names: list[str] = []
        following: Value | None = None
        stack = [layer]
        while stack:
            for user in self.users[stack.pop()]:
                if user in seen:
                    continue
                seen.add(user)
                if is_layer(user):
                    following = following or user
                elif is_between(user.op):
                    names.append(user.op.digest.hex())
                    stack.append(user)
        return sorted(names), following

    def note_dependent(self, graph: Graph, environment: Environment) -> None:
        """Says of layers that agree why those of different levels are not computed together."""
        alike: dict[Layer, list[Value]] = defaultdict(list)
        for v in self.layers:
            alike[self.chains[v][0]].append(v)
        for group in alike.values():
            first = group[0]
            for other in group[1:]:
                if self.level[other] != self.level[first]:
                    environment.trace.note_missed(
                        BatchTowers.name,
                        ", ".join(_origins(graph, [first, other])),
                        "they stand at different depths, one may need the other"
                        f" (expected {self.level[first]} layers before,"
                        f" given {self.level[other]})",
                        40,
                    )
                    break


def is_layer(value: Value) -> bool:
    """A dot or channels-first convolution with constant weights and static shapes."""
    if not isinstance(value.op, (Dot, Conv)) or len(value.inputs) != 2:
        return False
    if isinstance(value.op, Conv) and value.op.layout != CHANNELS_FIRST:
        return False
    x, w = value.inputs
    static = all(isinstance(v.type, TensorType) and v.type.is_static for v in (x, w, value))
    return static and isinstance(w.op, Constant) and not isinstance(x.op, Constant)


def is_between(op: Op) -> bool:
    """Work that travels with the layers it stands between."""
    return is_elementwise(op) or isinstance(op, _BETWEEN)
