"""Reports for tests: their content, and pages of content that no model has made."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

from monograph.report.view.layout import layered
from monograph.report.view.marks import svg
from monograph.report.view.page import view_page


def content_of(page: str, block: str = "data") -> Any:
    """Return the content that a page holds."""
    found = re.search(rf'<script type="text/plain" id="{block}">([^<]*)</script>', page)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def large_page(count: int) -> str:
    """Return a page of a graph with many nodes; each is a step with a mark in the pictures."""
    edges = [(max(0, i - 1 - i % 7), i) for i in range(1, count)]
    places = [list(p) for p in layered(count, edges).places]
    step = {"makes": "f32[8]", "ops": ["add"], "seconds": 1e-6, "share": 1 / count}
    data = {
        "format": 1,
        "model": "large.onnx",
        "version": "0",
        "target": "cpu",
        "facts": {
            "nodes": count, "ops_before": count, "ops_after": count, "steps": count,
            "parameters": 0, "weight_bytes": 0, "arena_bytes": 0, "launches": "1 region",
            "inputs": [], "outputs": [], "run_seconds": 0.01, "step_seconds": 0.01,
        },
        "notes": [],
        "nodes": [[f"node_{i}", "Add", ""] for i in range(count)],
        "edges": edges,
        "places": places,
        "steps": [
            {"kind": "pointwise", "nodes": [i], "origin": [f"node_{i}"], **step}
            for i in range(count)
        ],
        "step_edges": edges,
        "step_places": places,
        "passes": [
            {"stage": "clean", "name": n, "purpose": "", "ops": [count, count], "fired": []}
            for n in ("simplify", "fold_scales")
        ],
        "rules": [],
        "launches": [],
        "kinds": {"pointwise": 0},
    }  # fmt: skip
    marks = [
        f'<rect class="h{i % 10}" x="{1000 * i / count:.2f}" y="8" width="0.4" height="30"'
        f' data-step="{i}"><title>{i} pointwise: 1 us</title></rect>'
        for i in range(count)
    ]
    names = ("timeline", "memory", "roofline", "errors")
    pictures = {name: svg(60, marks, name) for name in names}
    return view_page(data, pictures, {"texts": [], "of": [-1] * count}, "large.onnx")
