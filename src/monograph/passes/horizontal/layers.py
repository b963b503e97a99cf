"""The layers of a graph: what they are, what follows them, and an order that groups them.

A layer is a dot or a convolution with constant weights. `Towers` describes the chain that starts at
each layer; `LayerSchedule` hands out groups of congruent layers that can run at the same time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TypeAlias

from monograph.ir import Constant, Graph, Op, TensorType, Value
from monograph.ops.conv import Conv
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Broadcast, Reshape, Squeeze, Transpose, Unsqueeze
from monograph.ops.window import CHANNELS_FIRST
from monograph.passes.base import users_of
from monograph.passes.horizontal.families import Lifter
from monograph.passes.horizontal.stackings import is_elementwise, is_row_op
from monograph.passes.horizontal.weights import (
    are_constant,
    columns_kind,
    has_column_scales,
    weights_kind,
)

MAX_CHAIN = 64
MOST_VISITED = 4096
"""The most values that a search for dependences visits before it assumes one."""
_VIEWS = (Reshape, Broadcast, Squeeze, Unsqueeze, Transpose)
Kind: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, order=True)
class ChainLink:
    """A layer (op and operand types) and the ops after it, as digests."""

    layer: tuple[str, ...]
    between: tuple[tuple[int, str], ...]
    """The ops after it, each with the number of ops before it."""
    rest: tuple[str, ...]
    """The ops after it that are not elementwise."""


Chain: TypeAlias = tuple[ChainLink, ...]


def is_layer(value: Value) -> bool:
    """A dot or channels-first convolution with constant weights and static shapes."""
    if not isinstance(value.op, (Dot, Conv)) or len(value.inputs) != 2:
        return False
    if isinstance(value.op, Conv) and value.op.layout != CHANNELS_FIRST:
        return False
    x, w = value.inputs
    static = all(isinstance(v.type, TensorType) and v.type.is_static for v in (x, w, value))
    if not static or isinstance(x.op, Constant):
        return False
    return isinstance(w.op, Constant) or (isinstance(value.op, Dot) and are_constant(w))


def why_no_layer(value: Value) -> str:
    """Return the reason why a dot or convolution is no layer."""
    op, (x, w, *rest) = value.op, value.inputs
    if rest:
        return f"it has further operands (expected 2 operands, given {2 + len(rest)})"
    if not w.closed:
        return "dynamic weights"
    if not all(isinstance(v.type, TensorType) and v.type.is_static for v in (x, w, value)):
        return f"the shapes are not static (given {value.type})"
    if isinstance(op, Conv) and op.layout != CHANNELS_FIRST:
        return f"the layout is not channels first (expected {CHANNELS_FIRST}, given {op.layout})"
    if x.closed:
        return "the input is constant"
    how = "decodes" if isinstance(w.op, Dequantize) else "computes"
    return f"every run {how} the weights from constants (expected one constant, given {w.op.name})"


def is_between(op: Op) -> bool:
    """Work that travels with the layers it stands between."""
    return is_elementwise(op) or is_row_op(op) or isinstance(op, _VIEWS)


def layer_kind(layer: Value) -> Kind:
    """The properties that layers of one batch share."""
    x, w = layer.inputs
    return (layer.op.digest.hex(), str(x.type), *map(str, weights_kind(w)))


def joins_columns(layer: Value) -> bool:
    """Return True if the weights of a layer can lie beside others, as columns or channels."""
    weights = layer.inputs[1]
    return isinstance(weights.op, Constant) or has_column_scales(weights)


def wide_kind(layer: Value) -> Kind:
    """The properties of layers that become one wide layer: all but the columns or channels."""
    weights = layer.inputs[1]
    if not isinstance(weights.op, Constant):
        return (layer.op.digest, *columns_kind(weights))
    shape = list(weights.tensor.static)
    shape[0 if isinstance(layer.op, Conv) else -1] = 0
    return (layer.op.digest, weights.dtype.name, *shape)


class Towers:
    """The layers of a graph, and the chain of layers that starts at each."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = users_of(graph)
        self.layers = [v for v in graph.values if is_layer(v)]
        self.level = self._levels()
        self.bits = {v: 1 << i for i, v in enumerate(self.layers)}
        self.later = self._later()
        """For each layer, the bits of the layers that need it."""
        self.following: dict[Value, Value] = {}
        self.chains = self._all_chains()

    def needs(self, layer: Value, other: Value) -> bool:
        """Return True if a layer needs another."""
        return bool(self.later[other] & self.bits[layer])

    def _levels(self) -> dict[Value, int]:
        """Return the largest number of layers before each value."""
        level: dict[Value, int] = {}
        layers = set(self.layers)
        for v in self.graph.values:
            level[v] = max((level[i] + (i in layers) for i in v.inputs), default=0)
        return level

    def _later(self) -> dict[Value, int]:
        reached: dict[Value, int] = {}
        for v in reversed(self.graph.values):
            found = 0
            for u in self.users[v]:
                found |= reached[u] | self.bits.get(u, 0)
            reached[v] = found
        return {v: reached[v] for v in self.bits}

    def common_depth(self, layers: Sequence[Value], mixed: bool = False) -> int:
        """For how many layers at least two of these towers agree."""
        depth = 0
        while depth < MAX_CHAIN:
            heads = self._heads(layers, depth, mixed)
            if all(len(found) < 2 for found in heads.values()):
                break
            depth += 1
        return depth

    def launches(
        self, layers: Sequence[Value], depth: int, most: int, mixed: bool
    ) -> tuple[int, int]:
        """The launches of the first `most` layers of towers: batched up to a depth, and apart."""
        batched = apart = 0
        for at in range(most):
            heads = self._heads(layers, at, mixed)
            distinct = len(set().union(*heads.values()))
            batched += len(heads) if at < depth else distinct
            apart += distinct
        return batched, apart

    def _heads(
        self, layers: Sequence[Value], depth: int, mixed: bool
    ) -> dict[tuple[object, ...], set[Value]]:
        """The layers at a depth of some towers, by the kinds of layers up to there.

        With `mixed`, elementwise ops between the layers may differ.
        """
        heads: dict[tuple[object, ...], set[Value]] = defaultdict(set)
        for tower in layers:
            chain = self.chains[tower]
            if len(chain) <= depth:
                continue
            current = tower
            for _ in range(depth):
                current = self.following[current]
            # A layer joins the batch by its own kind; what follows it matters to the next one.
            told = (c.layer + (c.rest if mixed else c.between) for c in chain[:depth])
            heads[*told, chain[depth].layer].add(current)
        return heads

    def _all_chains(self) -> dict[Value, Chain]:
        """For each layer, the layers that follow one another from it, and what is behind each.

        Built from the back, so that every layer looks only at what lies up to the next one.
        """
        chains: dict[Value, Chain] = {}
        for layer in reversed(self.layers):
            between, following = self._epilogue(layer)
            names = tuple(sorted((d, op.digest.hex()) for d, op in between))
            others = (op for _, op in between if not is_elementwise(op))
            rest = tuple(sorted(op.digest.hex() for op in others))
            own = ChainLink(tuple(map(str, layer_kind(layer))), names, rest)
            after = chains.get(following, ()) if following is not None else ()
            if following is not None:
                self.following[layer] = following
            chains[layer] = (own, *after[: MAX_CHAIN - 1])
        return chains

    def _epilogue(self, layer: Value) -> tuple[list[tuple[int, Op]], Value | None]:
        """The ops between a layer and the next, and the next layer, if there is one."""
        seen: set[Value] = {layer}
        between: list[tuple[int, Op]] = []
        following: Value | None = None
        queue = deque([(0, layer)])
        while queue:
            before, value = queue.popleft()
            users = [u for u in self.users[value] if u not in seen]
            layers = [u for u in users if u in self.bits]
            seen.update(users)
            if layers:
                # Here the next layer begins; what else reads its input is not between the two.
                following = following or layers[0]
                continue
            for user in users:
                if is_between(user.op):
                    between.append((before, user.op))
                    queue.append((before + 1, user))
        return between, following


class LayerSchedule:
    """An order of the layers in which those that agree and do not need each other meet.

    A layer is ready when everything that it needs has run; families of a lifter run whole. Layers
    that are ready together need each other neither directly nor through a family, so computing
    them together makes no cycle. A kind waits while layers of that kind may still become ready
    which do not need those that are.
    """

    def __init__(self, towers: Towers, lifter: Lifter) -> None:
        self.lifter = lifter
        self.users = towers.users
        self.bits = towers.bits
        self.kinds = {v: layer_kind(v) for v in towers.layers}
        self.later = towers.later
        self.pending: dict[Kind, int] = defaultdict(int)
        for v, kind in self.kinds.items():
            self.pending[kind] |= self.bits[v]
        self.ready: dict[Kind, list[Value]] = {}
        self.done: set[Value] = set()
        self.arrived: set[Value] = set()
        self.missing = {v: len(set(v.inputs)) for v in towers.graph.values}
        self._settle([v for v in towers.graph.values if not v.inputs])

    def next_group(self) -> list[Value]:
        """Layers of one kind that are ready; none where all layers have run."""
        self._follow_lifter()
        if not self.ready:
            return []
        chosen = next((k for k in self.ready if not self._waits(k)), None)
        if chosen is None:
            chosen = max(self.ready, key=lambda k: len(self.ready[k]))
        group = sorted(self.ready.pop(chosen), key=lambda v: self.bits[v])
        for v in group:
            self.pending[chosen] &= ~self.bits[v]
        return group

    def finish(self, group: Iterable[Value]) -> None:
        """Runs layers that were handed out, alone or in the families that they have joined."""
        self._settle(group)

    def independent(self, values: Sequence[Value]) -> bool:
        """Return True if no value that has run needs another of these, also through families."""
        targets = set(values)
        seen: set[Value] = set()
        stack = list(values)
        while stack:
            for user in self.users[stack.pop()]:
                if user in seen or user not in self.done:
                    continue
                together = self._family_of(user)
                if not targets.isdisjoint(together) or len(seen) > MOST_VISITED:
                    return False
                seen.update(together)
                stack.extend(together)
        return True

    def _waits(self, kind: Kind) -> bool:
        """Return True if a layer of this kind may join those that are ready."""
        group = self.ready[kind]
        own = reduce(or_, (self.bits[v] for v in group))
        after = reduce(or_, (self.later[v] for v in group))
        return bool(self.pending[kind] & ~own & ~after)

    def _follow_lifter(self) -> None:
        """Takes note of layers that have joined a family as users of another."""
        joined, self.lifter.joined = self.lifter.joined, []
        again = []
        for v in joined:
            if v not in self.bits:
                continue
            kind = self.kinds[v]
            self.pending[kind] &= ~self.bits[v]
            if v in self.ready.get(kind, ()):
                self.ready[kind].remove(v)
                if not self.ready[kind]:
                    del self.ready[kind]
                again.append(v)
        self._settle(again)

    def _family_of(self, value: Value) -> tuple[Value, ...]:
        family = self.lifter.first.get(value)
        return (value,) if family is None else family.members

    def _settle(self, values: Iterable[Value]) -> None:
        """Runs values whose operands have run, and all that follows without a layer."""
        stack = list(values)
        handed = set(stack)
        while stack:
            value = stack.pop()
            family = self.lifter.first.get(value)
            run = [value]
            if family is not None:
                own = [v for v in family.members if self.lifter.first[v] is family]
                run = [v for v in own if v not in self.done]
                self.arrived.add(value)
                if not self.arrived.issuperset(run):
                    continue
            elif value in self.bits and value not in handed:
                self.ready.setdefault(self.kinds[value], []).append(value)
                continue
            for member in run:
                self.done.add(member)
                for user in self.users[member]:
                    self.missing[user] -= 1
                    if self.missing[user] == 0:
                        stack.append(user)
