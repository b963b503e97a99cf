"""A layered layout of a directed graph: edges lead downwards, and cross little.

Layers are longest paths; the order in a layer follows the mean position of neighbours, swept down
and up; a node lies below the mean of its operands where there is room. Time is linear in nodes and
edges, but for the sorting of layers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 150, 34
"""The size of a node."""
GAP_X, GAP_Y = 26, 30
SWEEPS = 3


@dataclass(frozen=True)
class LayeredLayout:
    """The centre of each node, and the extent of all."""

    places: tuple[tuple[int, int], ...]
    width: int
    height: int


def layered(
    count: int, edges: Sequence[tuple[int, int]], late: Collection[int] = frozenset()
) -> LayeredLayout:
    """Return the layout of a graph without cycles; `late` nodes lie just above their users."""
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target in dict.fromkeys(edges):
        above[target].append(source)
        below[source].append(target)
    level = _levels(above, below, late)
    layers: list[list[int]] = [[] for _ in range(max(level, default=-1) + 1)]
    for node in range(count):
        layers[level[node]].append(node)
    position = _ordered(layers, above, below)
    x = _coordinates(layers, above, below, position)
    least = min(x, default=0.0)
    places = tuple(
        (round(x[n] - least) + WIDTH // 2, level[n] * (HEIGHT + GAP_Y) + HEIGHT // 2)
        for n in range(count)
    )
    width = max((px for px, _ in places), default=0) + WIDTH // 2
    return LayeredLayout(places, width, len(layers) * (HEIGHT + GAP_Y))


def _levels(
    above: Sequence[Sequence[int]], below: Sequence[Sequence[int]], late: Collection[int]
) -> list[int]:
    """Return the longest distance of each node from a node without operands."""
    level = [0] * len(above)
    missing = [len(a) for a in above]
    ready = [n for n, left in enumerate(missing) if left == 0]
    for node in ready:
        for user in below[node]:
            level[user] = max(level[user], level[node] + 1)
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    for node in reversed(ready):
        if node in late and below[node]:
            level[node] = min(level[user] for user in below[node]) - 1
    return level


def _ordered(
    layers: list[list[int]], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]
) -> list[float]:
    """Sort each layer by the mean position of neighbours; return the positions."""
    position = [0.0] * len(above)
    for layer in layers:
        for i, node in enumerate(layer):
            position[node] = float(i)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for layer in layers if down else reversed(layers):
            mean = {n: _mean([position[m] for m in near[n]], position[n]) for n in layer}
            layer.sort(key=lambda n: mean[n])
            for i, node in enumerate(layer):
                position[node] = float(i)
    return position


def _coordinates(
    layers: Sequence[Sequence[int]],
    above: Sequence[Sequence[int]],
    below: Sequence[Sequence[int]],
    position: Sequence[float],
) -> list[float]:
    """Return the x of each node: near the mean of its neighbours, without overlap."""
    step = WIDTH + GAP_X
    x = [p * step for p in position]
    for near, order in ((above, layers), (below, layers[::-1]), (above, layers)):
        for layer in order:
            wanted = [_mean([x[m] for m in near[n]], x[n]) for n in layer]
            for node, place in zip(layer, _apart(wanted, step), strict=True):
                x[node] = place
    return x


def _apart(wanted: Sequence[float], step: float) -> list[float]:
    """Return places at least one step apart, in order, near the wanted ones.

    Neighbours that want the same room form a block around the mean of their wanted positions.
    """
    blocks: list[tuple[float, int]] = []  # (mean start, length)
    for place in wanted:
        start, length = place, 1
        while blocks and blocks[-1][0] + blocks[-1][1] * step > start:
            before, many = blocks.pop()
            start = (before * many + (start - many * step) * length) / (many + length)
            length += many
        blocks.append((start, length))
    return [start + k * step for start, length in blocks for k in range(length)]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
