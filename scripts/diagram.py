"""Draws the flowcharts of pages as SVG when the site is built, so that a page loads no script.

A page has Mermaid's text (`flowchart TD`, nodes `name[label]`, edges `a -->|label| b`). Nodes lie
in layers, each below all that lead to it; an edge that crosses layers has a column of its own.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

_FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EDGE = re.compile(r"(\w+)(?:\[(.*?)\])? -->(?:\|(.*?)\|)? (\w+)(?:\[(.*?)\])?")
_LETTER, _HEIGHT, _ROW, _GAP = 8.0, 30, 74, 56
"""Sizes in pixels: a letter, a box, a layer, the space between columns."""


@dataclass
class Flowchart:
    """Nodes with labels, and edges with labels."""

    labels: dict[str, str] = field(default_factory=dict)
    edges: list[tuple[str, str, str]] = field(default_factory=list)


def parse(text: str) -> Flowchart:
    """Read a flowchart; raise ValueError for anything else of Mermaid."""
    first, *lines = [line.strip() for line in text.strip().splitlines()]
    if first != "flowchart TD":
        raise ValueError(f"only `flowchart TD` is drawn, got {first!r}")
    chart = Flowchart()
    for line in lines:
        found = _EDGE.fullmatch(line)
        if found is None:
            raise ValueError(f"an edge is `a[label] -->|label| b[label]`, got {line!r}")
        start, start_label, label, end, end_label = found.groups()
        for name, given in ((start, start_label), (end, end_label)):
            if given or name not in chart.labels:
                chart.labels[name] = given or name
        chart.edges.append((start, end, label or ""))
    return chart


def layers(chart: Flowchart) -> dict[str, int]:
    """Return the layer of each node: one more than the deepest node that leads to it."""
    depth = dict.fromkeys(chart.labels, 0)
    for _ in depth:
        changed = False
        for start, end, _label in chart.edges:
            if depth[end] <= depth[start]:
                depth[end], changed = depth[start] + 1, True
        if not changed:
            return depth
    raise ValueError("the flowchart has a cycle")


def _paths(chart: Flowchart, depth: dict[str, int]) -> list[list[str]]:
    """Return the nodes that each edge passes; the inner ones are columns without a box."""
    paths = []
    for number, (start, end, _) in enumerate(chart.edges):
        inner = [f"{number}:{layer}" for layer in range(depth[start] + 1, depth[end])]
        for name in inner:
            depth[name] = int(name.split(":")[1])
        paths.append([start, *inner, end])
    return paths


def _centres(chart: Flowchart, depth: dict[str, int], paths: list[list[str]]) -> dict[str, float]:
    """Return the horizontal centre of every node: below what leads to it, and beside others."""
    above: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for upper, lower in pairwise(path):
            above[lower].append(upper)
    rows: dict[int, list[str]] = defaultdict(list)
    for name, layer in depth.items():
        rows[layer].append(name)
    centres: dict[str, float] = {}
    for layer in sorted(rows):
        place = {n: _mean([centres[u] for u in above[n]]) for n in rows[layer]}
        order = sorted(rows[layer], key=lambda n: (place[n], n.count(":")))
        edge = -math.inf
        for name in order:
            half = _width(chart.labels.get(name, "")) / 2
            centres[name] = max(place[name], edge + _GAP + half)
            edge = centres[name] + half
        moved = _mean([place[n] - centres[n] for n in order])
        centres |= {n: centres[n] + moved for n in order}
    return centres


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _width(label: str) -> float:
    return len(label) * _LETTER + 20 if label else 0.0


def draw(text: str) -> str:
    """Return a flowchart as SVG in the colours of the text around it."""
    chart = parse(text)
    depth = layers(chart)
    paths = _paths(chart, depth)
    centres = _centres(chart, depth, paths)
    parts = []
    for path, (_, _, label) in zip(paths, chart.edges, strict=True):
        parts += _edge(path, label, centres, depth)
    for name, label in chart.labels.items():
        x, y, width = centres[name], depth[name] * _ROW, _width(label)
        parts.append(
            f'<rect x="{x - width / 2:.0f}" y="{y}" width="{width:.0f}" height="{_HEIGHT}" rx="4"'
            ' fill="none" stroke="currentColor"/>'
        )
        parts.append(f'<text x="{x:.0f}" y="{y + 20}" text-anchor="middle">{escape(label)}</text>')
    edge_widths = [len(label) * _LETTER for _, _, label in chart.edges]
    half = max(abs(x) + _width(chart.labels.get(n, "")) / 2 for n, x in centres.items())
    half = max(half, max(edge_widths, default=0) + 60)
    height = max(depth.values()) * _ROW + _HEIGHT
    return (
        f'<svg class="flowchart" role="img" viewBox="{-half:.0f} -2 {2 * half:.0f} {height + 4}"'
        f' style="max-width: 100%; width: {2 * half:.0f}px" font-size="13" fill="currentColor"'
        ' font-family="ui-monospace, monospace" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}</svg>"
    )


def _edge(
    path: list[str], label: str, centres: dict[str, float], depth: dict[str, int]
) -> list[str]:
    """Return a line with an arrow, and its label beside the end."""
    points = [(centres[path[0]], depth[path[0]] * _ROW + _HEIGHT)]
    for name in path[1:-1]:
        top = depth[name] * _ROW
        points += [(centres[name], top), (centres[name], top + _HEIGHT)]
    x, y = centres[path[-1]], depth[path[-1]] * _ROW
    points.append((x, y))
    line = " ".join(f"{a:.0f},{b:.0f}" for a, b in points)
    parts = [
        f'<polyline points="{line}" fill="none" stroke="currentColor" opacity="0.6"/>',
        f'<path d="M{x:.0f},{y} l-4,-8 h8 z"/>',
    ]
    if label:
        before = points[-2]
        to_left = x < before[0] - 4
        aside = 8 + min(abs(x - before[0]) / 8, 12)
        middle = (before[0] + x) / 2 + (-aside if to_left else aside)
        anchor = "end" if to_left else "start"
        parts.append(
            f'<text x="{middle:.0f}" y="{(before[1] + y) / 2 + 4:.0f}" opacity="0.8"'
            f' text-anchor="{anchor}" font-size="12">{escape(label)}</text>'
        )
    return parts


def with_drawings(markdown: str) -> str:
    """Return a page with its flowcharts drawn."""
    return _FENCE.sub(lambda found: f"<div>{draw(found[1])}</div>", markdown)
