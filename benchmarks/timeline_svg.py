"""Draws what host and device do in a run, before and after capture, on one axis of time.

Pure Python. The colours read on light and on dark pages; there is no ground of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

WIDTH, LEFT, RIGHT = 960, 76, 16
LANE, GAP, HEAD, FOOT = 26, 6, 30, 44
HOST, DEVICE, RUN = "#f58518", "#4c78a8", "#9aa0a6"
LEAST = 0.75
"""Pixels that the shortest interval is wide: all of them are to be seen."""
STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:12px;fill:#57606a}"
    ".t{font-size:13px;font-weight:600}.g{stroke:#8c959f;stroke-opacity:.35}"
    "@media(prefers-color-scheme:dark){text{fill:#adb5bd}}"
)


@dataclass(frozen=True)
class Interval:
    """Something that took from one time to another, in us from the beginning of the run."""

    name: str
    start: float
    end: float
    lane: int = 0
    """Of the device: which stream."""


@dataclass(frozen=True)
class RunTimeline:
    """One run: the call as the host sees it, the launches in it, and the device's work."""

    title: str
    call: Interval
    launches: tuple[Interval, ...]
    work: tuple[Interval, ...]

    @property
    def end(self) -> float:
        return max([self.call.end, *(x.end for x in self.launches), *(x.end for x in self.work)])

    @property
    def busy(self) -> float:
        """The share of the time up to the device's last work in which it does some."""
        last = max((x.end for x in self.work), default=0.0)
        return covered(self.work) / last if last else 0.0

    @property
    def lanes(self) -> int:
        return 1 + max((x.lane for x in self.work), default=0)

    @property
    def text(self) -> str:
        count = len(self.launches)
        launched = f"{count} launch{'' if count == 1 else 'es'}" if count else "launches not seen"
        pieces = f"{len(self.work)} piece{'' if len(self.work) == 1 else 's'} of work"
        return (
            f"{self.title}: {launched}, {pieces}; {self.call.end - self.call.start:.0f} us of the"
            f" host, done after {self.end:.0f} us, device busy {self.busy:.0%}"
        )


def covered(intervals: Iterable[Interval]) -> float:
    """Return how long at least one of some intervals lasts."""
    total, until = 0.0, -math.inf
    for x in sorted(intervals, key=lambda x: x.start):
        total += max(0.0, x.end - max(x.start, until))
        until = max(until, x.end)
    return total


def as_json(runs: Sequence[RunTimeline]) -> list[dict[str, Any]]:
    return [asdict(run) for run in runs]


def from_json(data: Iterable[Mapping[str, Any]]) -> list[RunTimeline]:
    return [
        RunTimeline(
            run["title"],
            Interval(**run["call"]),
            tuple(Interval(**x) for x in run["launches"]),
            tuple(Interval(**x) for x in run["work"]),
        )
        for run in data
    ]


def draw(runs: Sequence[RunTimeline], caption: str = "") -> str:
    """An SVG with a panel for each run, all on the same axis."""
    longest = max((run.end for run in runs), default=1.0) or 1.0
    step = tick(longest)
    scale = (WIDTH - LEFT - RIGHT) / (math.ceil(longest / step) * step)
    parts: list[str] = []
    top = HEAD if caption else 8
    for run in runs:
        panel, height = _panel(run, top, scale)
        parts += panel
        top += height
    bottom = top
    axis = _axis(math.ceil(longest / step), step, scale, HEAD if caption else 8, bottom)
    height = bottom + FOOT
    about = quoteattr("; ".join(run.text for run in runs))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" role="img" aria-label={about}>'
    )
    title = [f'<text x="{LEFT}" y="18">{escape(caption)}</text>'] if caption else []
    return "\n".join([head, f"<style>{STYLE}</style>", *axis, *title, *parts, "</svg>", ""])


def tick(longest: float) -> float:
    """A round distance between the marks of an axis that has about eight of them."""
    raw = longest / 8
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw)


def _panel(run: RunTimeline, top: int, scale: float) -> tuple[list[str], int]:
    """A line of words, the host's row, and a row for each stream of the device."""
    parts = [f'<text class="t" x="{LEFT}" y="{top + 18}">{escape(run.text)}</text>']
    y = top + 26
    parts.append(f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">host</text>')
    parts.append(_block(run.call, y, LANE, scale, RUN, 0.45))
    parts += [_block(x, y + 4, LANE - 8, scale, HOST) for x in run.launches]
    y += LANE + GAP
    row = max(6, LANE // run.lanes)
    high = row * run.lanes
    parts.append(f'<text x="{LEFT - 8}" y="{y + high // 2 + 4}" text-anchor="end">device</text>')
    parts += [_block(x, y + x.lane * row, row - 1, scale, DEVICE) for x in run.work]
    return parts, y + high + 2 * GAP - top


def _block(
    x: Interval, y: int, height: int, scale: float, colour: str, opacity: float = 1.0
) -> str:
    width = max(LEAST, (x.end - x.start) * scale)
    faint = f' fill-opacity="{opacity}"' if opacity < 1 else ""
    told = f"{x.name}: {x.end - x.start:.1f} us at {x.start:.1f} us"
    return (
        f'<rect x="{LEFT + x.start * scale:.2f}" y="{y}" width="{width:.2f}" height="{height}"'
        f' fill="{colour}"{faint}><title>{escape(told)}</title></rect>'
    )


def _axis(count: int, step: float, scale: float, top: int, bottom: int) -> list[str]:
    parts = []
    for i in range(count + 1):
        x = LEFT + i * step * scale
        parts.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{i * step:g}</text>'
        )
    parts.append(f'<text x="{LEFT - 8}" y="{bottom + 16}" text-anchor="end">us</text>')
    legend = (("the call", RUN, 0.45), ("launches", HOST, 1.0), ("kernels and copies", DEVICE, 1.0))
    x = LEFT
    for name, colour, opacity in legend:
        parts.append(
            f'<rect x="{x}" y="{bottom + 26}" width="11" height="11" fill="{colour}"'
            f' fill-opacity="{opacity}"/>'
        )
        parts.append(f'<text x="{x + 16}" y="{bottom + 36}">{name}</text>')
        x += 130
    return parts
