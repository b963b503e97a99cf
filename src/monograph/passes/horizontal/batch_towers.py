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
from monograph.passes.horizontal.families import AlongAxis, Family, Lifter, NewAxis, is_elementwise
from monograph.rewrite import Work

Layer: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""A layer (op and operand types) and the ops after it."""
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
            inputs, seed = _seed(fresh)
            if inputs is not None and not any(v in lifter.place for v in inputs.members):
                lifter.add(inputs, given=True)
            lifter.add(seed)
            lifter.run()
            seeds += fresh
            self._note(graph, fresh, environment)
        towers.note_dependent(graph, environment)
        self._note_others(graph, environment)
        for value, reason in lifter.reasons:
            environment.trace.note_missed(self.name, graph.origin(value) or "", reason, 50)
        if not seeds:
            return graph
        return substitute(graph, lifter.replacements(), lifter.origins(graph))

    def _pays(
        self, graph: Graph, towers: _Towers, layers: list[Value], environment: Environment
    ) -> bool:
        """Return True if a batch is faster than separate layers and than one wide layer."""
        depth = towers.common_depth(layers)
        shared = all(v.inputs[0] is layers[0].inputs[0] for v in layers)
        reason = ""
        if shared and isinstance(layers[0].op, Conv) and layers[0].op.groups != 1:
            reason = "grouped convolutions over one input do not become one convolution"
        else:
            batched, wide, apart = _seconds(layers, depth, shared, environment)
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
                return True
        origin = ", ".join(_origins(graph, layers))
        environment.trace.note_missed(self.name, origin, reason, 100)
        return False

    def _note_others(self, graph: Graph, environment: Environment) -> None:
        """Says of dots and convolutions that are no layers why they are not."""
        for value in graph.values:
            if isinstance(value.op, (Dot, Conv)) and not is_layer(value):
                constant_weights = isinstance(value.inputs[1].op, Constant)
                reason = "the shapes are not static" if constant_weights else "dynamic weights"
                origin = graph.origin(value) or ""
                environment.trace.note_missed(self.name, origin, reason, 10)

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


def _seconds(
    layers: list[Value], depth: int, shared: bool, environment: Environment
) -> tuple[float, float, float]:
    """Estimates for the layers as one batch, as one wide layer, and apart.

    The arithmetic is the same. A batch reads its input once for each member, or copies separate
    inputs together first. A wide layer reads it once, but layers behind it need its parts apart.
    """
    seconds = environment.cost.seconds
    read = sum(v.inputs[0].tensor.nbytes for v in layers)
    once = layers[0].inputs[0].tensor.nbytes
    made = sum(v.tensor.nbytes for v in layers)
    moved = read if shared else 3 * read
    batched = seconds(Work(depth, 0, moved + made))
    apart = seconds(Work(len(layers) * depth, 0, read + made))
    copies = 2 * made if depth > 1 else 0
    wide = seconds(Work(depth, 0, once + made + copies)) if shared else float("inf")
    return batched, wide, apart


def _seed(layers: list[Value]) -> tuple[Family | None, Family]:
    """The inputs of some towers where they are several, and the first layer computed as one."""
    first = layers[0]
    shared = all(v.inputs[0] is first.inputs[0] for v in layers)
    inputs = None if shared else _stacked_inputs(layers)
    weights = [data for v in layers if (data := known(v.inputs[1])) is not None]
    x = first.inputs[0] if inputs is None else inputs.stacked
    if isinstance(first.op, Conv):
        return inputs, _conv_seed(first.op, x, layers, weights, shared)
    rank = first.tensor.rank
    stack = np.stack(weights)
    stack = stack.reshape(len(layers), *(1,) * (rank - stack.ndim + 1), *stack.shape[1:])
    missing = rank - first.inputs[0].tensor.rank if inputs is not None else 0
    x = Unsqueeze(tuple(range(1, 1 + missing)))(x) if missing else x
    return inputs, Family(tuple(layers), first.op(x, constant(stack)), NewAxis(len(layers)))


def _stacked_inputs(layers: list[Value]) -> Family:
    """Separate inputs brought together; what else reads them can read the stack."""
    inputs = tuple(v.inputs[0] for v in layers)
    if isinstance(layers[0].op, Conv):
        width = inputs[0].tensor.static[1]
        stacking = AlongAxis(1 - inputs[0].tensor.rank, (width,) * len(inputs))
        return Family(inputs, Concat(1)(*inputs), stacking)
    return Family(inputs, Concat(0)(*map(Unsqueeze((0,)), inputs)), NewAxis(len(inputs)))


def _conv_seed(
    op: Conv, x: Value, layers: list[Value], weights: list[Array], shared: bool
) -> Family:
    """Convolutions over one input become a wide one; over several, one of more groups."""
    first = layers[0]
    count = len(layers)
    rank, width = first.tensor.rank, first.tensor.static[1]
    stacked_weights = constant(np.concatenate(weights, 0))
    if not shared:
        op = Conv(**{**op.attributes, "groups": op.groups * count})
    return Family(tuple(layers), op(x, stacked_weights), AlongAxis(1 - rank, (width,) * count))


class _Towers:
    """The layers of a graph: dots and convolutions with constant weights and static shapes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = users_of(graph)
        self.layers = [v for v in graph.values if is_layer(v)]
        self.level = self._levels()
        self.chains = self._all_chains()

    def _levels(self) -> dict[Value, int]:
        """Return the largest number of layers before each value."""
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
        return [sorted(g, key=lambda v: self.chains[v]) for _, g in ordered]

    def common_depth(self, layers: list[Value]) -> int:
        """For how many layers at least two of these towers agree."""
        depth = 0
        prefixes = [self.chains[v] for v in layers]
        while True:
            # A layer joins the batch by its own kind; what follows it matters to the next one.
            heads = [(c[:depth], c[depth][0]) for c in prefixes if len(c) > depth]
            if len(heads) < 2 or len(set(heads)) == len(heads):
                return depth
            depth += 1

    def _all_chains(self) -> dict[Value, tuple[Layer, ...]]:
        """For each layer, the layers that follow one another from it, and what is behind each.

        Built from the back, so that every layer looks only at what lies up to the next one.
        """
        chains: dict[Value, tuple[Layer, ...]] = {}
        for layer in reversed(self.layers):
            between, following = self._epilogue(layer)
            types = tuple(str(v.type) for v in layer.inputs)
            own = ((layer.op.digest.hex(), *types), tuple(between))
            rest = chains.get(following, ()) if following is not None else ()
            chains[layer] = (own, *rest[: MAX_CHAIN - 1])
        return chains

    def _epilogue(self, layer: Value) -> tuple[list[str], Value | None]:
        """The ops between a layer and the next, and the next layer, if there is one."""
        seen: set[Value] = {layer}
        names: list[str] = []
        following: Value | None = None
        stack = [layer]
        while stack:
            users = [u for u in self.users[stack.pop()] if u not in seen]
            layers = [u for u in users if u in self.level and is_layer(u)]
            seen.update(users)
            if layers:
                # Here the next layer begins; what else reads its input is not between the two.
                following = following or layers[0]
                continue
            for user in users:
                if is_between(user.op):
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
