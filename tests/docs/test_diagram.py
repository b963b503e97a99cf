"""Flowcharts of pages are drawn when the site is built."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from scripts.diagram import draw, layers, parse, with_drawings

CHART = """flowchart TD
    a[start <1>] -->|first| b[middle]
    b --> c[end]
    a -->|around| c
"""
SVG = "{http://www.w3.org/2000/svg}"


def test_nodes_edges_and_labels_are_read() -> None:
    chart = parse(CHART)
    assert chart.labels == {"a": "start <1>", "b": "middle", "c": "end"}
    assert chart.edges == [("a", "b", "first"), ("b", "c", ""), ("a", "c", "around")]
    assert layers(chart) == {"a": 0, "b": 1, "c": 2}


def test_the_drawing_has_every_text_and_arrow() -> None:
    tree = ET.fromstring(draw(CHART))
    assert {e.text for e in tree.iter(f"{SVG}text")} == {
        "start <1>", "middle", "end", "first", "around",
    }  # fmt: skip
    assert len(list(tree.iter(f"{SVG}rect"))) == 3
    assert len(list(tree.iter(f"{SVG}path"))) == 3


def test_boxes_of_a_layer_do_not_overlap() -> None:
    lines = "".join(f"  a[top] --> n{i}[a long label {i}]\n" for i in range(5))
    boxes = sorted(
        (float(e.get("x", "")), float(e.get("width", "")))
        for e in ET.fromstring(draw(f"flowchart TD\n{lines}")).iter(f"{SVG}rect")
        if e.get("y") != "0"
    )
    assert len(boxes) == 5
    assert all(x + width < after for (x, width), (after, _) in pairwise(boxes))


def test_an_edge_goes_around_the_boxes_of_layers_between() -> None:
    tree = ET.fromstring(draw(CHART))
    around = [e.get("points", "").split() for e in tree.iter(f"{SVG}polyline")][-1]
    middle = next(e for e in tree.iter(f"{SVG}rect") if e.get("y") == "74")
    left = float(middle.get("x", ""))
    right = left + float(middle.get("width", ""))
    x = float(around[1].split(",")[0])
    assert not left <= x <= right


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("graph LR\n a --> b", "only `flowchart TD`"),
        ("flowchart TD\n a -.-> b", "an edge is"),
        ("flowchart TD\n a --> b\n b --> a", "a cycle"),
    ],
)
def test_other_charts_are_refused(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        draw(text)


def test_pages_have_drawings_in_the_place_of_text() -> None:
    page = f"before\n\n```mermaid\n{CHART}```\n\nafter\n"
    assert re.fullmatch(r"before\n\n<div><svg.*</svg></div>\n\nafter\n", with_drawings(page))
