"""Marks of the pictures of a report: lines, bars, dots and words as SVG, scales, and colours.

Marks that stand for a step have its number in `data-step`. Colours are classes, so that a page has
them light or dark; a file brings a style.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from monograph.report.render.html import escape

WIDTH = 1000
LEFT = 62
PALETTE = (
    "#3f7cc0",
    "#c0622b",
    "#3a8a4d",
    "#b23a5b",
    "#7a55b8",
    "#2b8a8a",
    "#94740f",
    "#b0479b",
    "#5f7a2a",
    "#56657d",
)
"""Colours that white letters are legible on; neighbours in this order are easy to tell apart."""
HUES = len(PALETTE)
"""The number of colours; steps of one kind have one colour."""
COLOURS = "".join(f".h{i}{{fill:{colour}}}" for i, colour in enumerate(PALETTE))
"""The style of the classes of the palette."""
STYLE = (
    "svg{font-family:system-ui,sans-serif;background:#fff}text{font-size:11px;fill:#5b6575;"
    "paint-order:stroke;stroke:#fff;stroke-width:3px}"
    ".axis{stroke:#d9dee6}.roof{stroke:#5b6575;fill:none;stroke-dasharray:5 4}"
    ".edge{stroke:#aab3c0;fill:none}"
    ".line{stroke:#2f6fde;fill:none;stroke-width:1.5}.bad{fill:#b3261e}.good{fill:#18794e}"
    f".name{{fill:#fff;font-size:10px;stroke:none}}{COLOURS}"
)


def svg(height: float, parts: Iterable[str], label: str, width: float = WIDTH) -> str:
    """Return a picture that scales to the width that it has."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
        f' aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def styled(picture: str) -> str:
    """Return a picture as a file of its own: with its style."""
    head, body = picture.split(">", 1)
    return f"{head}><style>{STYLE}</style>{body}\n"


def words(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "axis") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def bar(
    x: float, y: float, width: float, height: float, kind: str, step: int | None, title: str
) -> str:
    mark = "" if step is None else f' data-step="{step}"'
    return (
        f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.4):.2f}"'
        f' height="{max(height, 0.4):.2f}"{mark}><title>{escape(title)}</title></rect>'
    )


def dot(x: float, y: float, kind: str, step: int, title: str, radius: float = 3.5) -> str:
    return (
        f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" data-step="{step}">'
        f"<title>{escape(title)}</title></circle>"
    )


def polyline(points: Iterable[tuple[float, float]], kind: str) -> str:
    placed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{placed}"/>'


def legend(colours: Mapping[str, int], top: float) -> tuple[list[str], float]:
    """Return the kinds with their colours, in rows below a picture, and the height of them."""
    return key({kind: f"h{colour}" for kind, colour in colours.items()}, top)


def key(entries: Mapping[str, str], top: float) -> tuple[list[str], float]:
    """Return words with the marks that they explain, by class, and the height of their rows."""
    parts, x, y = [], float(LEFT), top
    for text, kind in entries.items():
        wide = 24 + 6.5 * len(text)
        if x + wide > WIDTH and x > LEFT:
            x, y = float(LEFT), y + 16
        if kind in ("line", "roof"):
            parts.append(line(x - 2, y + 5, x + 12, y + 5, kind))
        elif kind in ("good", "bad"):
            parts.append(f'<circle class="{kind}" cx="{x + 5:.1f}" cy="{y + 5:.1f}" r="3.5"/>')
        else:
            parts.append(bar(x, y, 10, 10, kind, None, text))
        parts.append(words(x + 16, y + 9, text))
        x += wide
    return parts, y + 18 - top


def ticks(largest: float) -> list[float]:
    """Return round numbers from 0 up to a largest one."""
    if largest <= 0:
        return [0.0]
    size = 10 ** math.floor(math.log10(largest))
    step = next(s * size for s in (0.1, 0.2, 0.5, 1.0, 2.0) if largest / (s * size) <= 10)
    return [i * step for i in range(int(largest / step) + 1)]


Scale = Callable[[float], float]
"""The place of a number on an axis."""


def powers(low: float, high: float) -> list[float]:
    """Return the powers of ten from one positive number to another."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    return [10.0**power for power in range(first, last + 1)]


def log_scale(low: float, high: float, start: float, stop: float) -> Scale:
    """Return the place of a number on a logarithmic axis; what lies outside is at its end."""
    span = math.log(high / low)

    def place(number: float) -> float:
        bounded = min(max(number, low), high)
        return start + (stop - start) * math.log(bounded / low) / span

    return place


def linear(low: float, high: float, start: float, stop: float) -> Scale:
    return lambda number: start + (stop - start) * (number - low) / (high - low)


def clipped(label: str) -> str:
    return label if len(label) <= 24 else f"{label[:11]}..{label[-11:]}"
