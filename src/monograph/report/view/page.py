"""The report as one page: its content is compressed, and a script of its own draws it."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from monograph.report.render.html import escape, page
from monograph.report.view import charts
from monograph.report.view.collect import ModelView
from monograph.report.view.marks import COLOURS, PALETTE

MAX_CODE = 900_000
"""The most bytes of compressed code in a page; the code of the slowest steps comes first."""
SECTIONS = (
    ("overview", "Overview"),
    ("graph", "Graph"),
    ("passes", "Passes"),
    ("steps", "Steps"),
    ("timeline", "Timeline"),
    ("memory", "Memory"),
    ("errors", "Errors"),
    ("decoding", "Decoding"),
    ("compare", "Compare"),
)


def packed(content: Any) -> str:
    """Return JSON as base64 of gzip: safe in a page, whatever names are in it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def code_of(view: ModelView, data: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the code that a page holds: texts without repetition, and the text of each step."""
    steps, texts = data["steps"], dict[str, int]()
    ordered = sorted(view.code or {}, key=lambda n: -(steps[n].get("seconds") or 0.0))
    kept: dict[int, int] = {}
    size = 0
    for number in ordered:
        text = (view.code or {})[number]
        if text not in texts:
            size += len(gzip.compress(text.encode(), 6))
            if size > MAX_CODE:
                break
            texts[text] = len(texts)
        kept[number] = texts[text]
    return {"texts": list(texts), "of": [kept.get(n, -1) for n in range(len(steps))]}


def pictures(view: ModelView, decoding: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the pictures of a report by name; those without content are left out."""
    made = {
        "timeline": charts.timeline(view),
        "memory": charts.memory(view),
        "roofline": charts.roofline(view),
        "errors": charts.errors(view),
        "decoding": charts.decoding(decoding) if decoding is not None else "",
    }
    return {name: picture for name, picture in made.items() if picture}


def view_page(
    data: Mapping[str, Any], shown: Mapping[str, str], code: Mapping[str, Any], title: str
) -> str:
    """Return the page of a report."""
    assets = files("monograph.report.view").joinpath("assets")
    style = assets.joinpath("view.css").read_text("utf-8") + COLOURS
    script = "".join(assets.joinpath(name).read_text("utf-8") for name in ("pane.js", "view.js"))
    tabs = "".join(
        f'<button role="tab" id="tab-{name}" aria-controls="{name}" data-tab="{name}">{label}'
        "</button>"
        for name, label in SECTIONS
    )
    sections = "".join(
        f'<section id="{name}" role="tabpanel" aria-labelledby="tab-{name}" hidden>'
        f"{_TOLD.get(name, '')}{_picture(name, shown)}<div class='filled'></div></section>"
        for name, _ in SECTIONS
    )
    body = (
        f'<header><h1>{escape(title)}</h1><p id="subtitle"></p></header>'
        f'<nav role="tablist" aria-label="parts of the report">{tabs}</nav>'
        f'<main>{sections}</main>{_KEYS}<aside id="details" hidden aria-live="polite"></aside>'
        f'<script type="text/plain" id="data">{packed({**data, "palette": PALETTE})}</script>'
        f'<script type="text/plain" id="pictures">{packed(shown)}</script>'
        f'<script type="text/plain" id="code">{packed(code)}</script>'
    )
    return page(f"{title}: Monograph", body, style, script)


def _picture(section: str, shown: Mapping[str, str]) -> str:
    """Return the place of a section's picture; the script unpacks it when it is looked at."""
    name = "roofline" if section == "steps" else section
    return (
        f'<div class="picture" tabindex="0" data-picture="{name}"></div>' if name in shown else ""
    )


_KEYS = (
    "<footer>Keys: 1 to 9 open the parts, / finds a node or a step, j and k go to the next and the"
    " previous step, Escape closes the details. On a graph: arrows move, + and - zoom, 0 shows the"
    " whole.</footer>"
)
_TOLD = {
    "timeline": "<p>The run with the median time, from its call on. A bar is a step on a thread;"
    " click it for its kernel and its ONNX nodes. On a GPU steps are timed one after the other, and"
    " the rows are the streams on which they run side by side in a captured graph.</p>",
    "memory": "<p>The arena of temporaries: a block is a buffer, from its first write to its last"
    " read. It has the colour of the kind of step that makes it.</p>",
    "errors": "<p>A dot is a step's own error, given what it read: the share of its tolerance that"
    " the worst element uses; above 1 it is wrong. The line is the error that has added up from the"
    " inputs on, relative to the largest element.</p>",
    "decoding": "<p>Tokens per second by position. The floor is the time in which memory is read"
    " once for each token; the dashed line is the rate that this allows. A model that stays in"
    " caches can be faster.</p>",
    "steps": "<p>A step is one kernel. In the picture its area is its share of the time; the dashed"
    " lines are the peaks of this machine. Operations are those that the model asks for: a"
    " convolution may need fewer by Winograd's method, and caches are faster than memory, so a step"
    " can lie above the lines, and its share of the peak above 100%.</p>",
}
