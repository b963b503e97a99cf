"""Pictures as SVG: the timeline, the memory plan, the roofline, errors, decoding, the graphs.

A page embeds them, and `--svg` writes them to files. Marks that stand for a step have its number in
`data-step`. Colours are classes, so that a page has them light or dark; a file brings a style.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from monograph.program.program import lifetimes
from monograph.report.commands.gpu_profile import GpuProfile
from monograph.report.commands.profile import Profile
from monograph.report.render.html import escape
from monograph.report.view.collect import ModelView
from monograph.report.view.layout import HEIGHT as NODE_HEIGHT
from monograph.report.view.layout import WIDTH as NODE_WIDTH

WIDTH = 1000
LEFT = 62
HUES = 10
"""The number of colours; steps of one kind have one colour."""
STYLE = (
    "svg{font-family:system-ui,sans-serif;background:#fff}text{font-size:11px;fill:#5b6575}"
    ".axis{stroke:#d9dee6}.roof{stroke:#5b6575;fill:none}.edge{stroke:#aab3c0;fill:none}"
    ".line{stroke:#2f6fde;fill:none;stroke-width:1.5}.bad{fill:#b3261e}.good{fill:#18794e}"
    ".name{fill:#fff;font-size:10px}"
    + "".join(f".h{i}{{fill:hsl({i * 36 + 210},52%,50%)}}" for i in range(HUES))
)


def kinds(view: ModelView) -> dict[str, int]:
    """Return a colour for each kind of step, the most frequent kinds first."""
    counts: dict[str, int] = {}
    for step in view.steps:
        counts[step.region.kind] = counts.get(step.region.kind, 0) + 1
    ordered = sorted(counts, key=lambda k: (-counts[k], k))
    return {kind: i % HUES for i, kind in enumerate(ordered)}


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


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "axis") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _bar(
    x: float, y: float, width: float, height: float, kind: str, step: int | None, title: str
) -> str:
    mark = "" if step is None else f' data-step="{step}"'
    return (
        f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.4):.2f}"'
        f' height="{max(height, 0.4):.2f}"{mark}><title>{escape(title)}</title></rect>'
    )


def _dot(x: float, y: float, kind: str, step: int, title: str, radius: float = 3.5) -> str:
    return (
        f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" data-step="{step}">'
        f"<title>{escape(title)}</title></circle>"
    )


def _legend(colours: Mapping[str, int], top: float) -> tuple[list[str], float]:
    """Return the kinds with their colours, in rows below a picture, and the height of them."""
    parts, x, y = [], float(LEFT), top
    for kind, colour in colours.items():
        wide = 24 + 6.5 * len(kind)
        if x + wide > WIDTH and x > LEFT:
            x, y = float(LEFT), y + 16
        parts.append(_bar(x, y, 10, 10, f"h{colour}", None, kind))
        parts.append(_text(x + 14, y + 9, kind))
        x += wide
    return parts, y + 18 - top


def seconds_text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def bytes_text(count: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def timeline(view: ModelView) -> str:
    """Return the run with the median time: a row for a thread or stream, a bar for a step."""
    profile = view.profile
    if profile is None:
        return ""
    rows = _streams(profile) if isinstance(profile, GpuProfile) else _threads(profile)
    colours = kinds(view)
    whole = max((end for bars in rows.values() for _, _, end in bars), default=1)
    scale = (WIDTH - LEFT - 6) / whole
    row, top = 30, 8
    parts = []
    for place, (name, bars) in enumerate(rows.items()):
        y = top + place * (row + 8)
        parts.append(_text(4, y + 19, name))
        for number, begin, end in bars:
            kind = profile.steps[number].step.region.kind
            title = f"{number} {kind}: {seconds_text((end - begin) / 1e9)}"
            x, width = LEFT + begin * scale, (end - begin) * scale
            parts.append(_bar(x, y, width, row, f"h{colours[kind]}", number, title))
    height = top + len(rows) * (row + 8) + 22
    for tick in _ticks(whole / 1e9):
        x = LEFT + tick * 1e9 * scale
        parts.append(_line(x, top, x, height - 18))
        parts.append(_text(x, height - 5, seconds_text(tick) if tick else "0", "middle"))
    named, extra = _legend(colours, height + 4)
    return svg(height + 4 + extra, parts + named, "timeline of one run")


Bars = list[tuple[int, int, int]]
"""Steps by number, with the nanoseconds of their begin and end."""


def _threads(profile: Profile) -> dict[str, Bars]:
    """Return the steps of each thread."""
    run = profile.typical
    rows: dict[str, Bars] = {}
    for thread in range(profile.threads):
        bars = rows[f"thread {thread}"] = []
        for timed in profile.steps:
            begin, end = map(int, run.stamps[thread, timed.number])
            if end > begin and (timed.native or not thread):
                bars.append((timed.number, begin - run.begin, end - run.begin))
    return rows


def _streams(profile: GpuProfile) -> dict[str, Bars]:
    """Return the launches of each stream, by the numbers of their steps."""
    rows: dict[str, Bars] = {f"stream {i}": [] for i in range(max(profile.streams, default=0) + 1)}
    launches = zip(profile.launches, profile.streams, profile.typical, strict=True)
    for (number, _), stream, (begin, end) in launches:
        rows[f"stream {stream}"].append((number, int(begin), int(end)))
    return rows


def _ticks(largest: float) -> list[float]:
    """Return round numbers from 0 up to a largest one."""
    if largest <= 0:
        return [0.0]
    size = 10 ** math.floor(math.log10(largest))
    step = next(s * size for s in (0.1, 0.2, 0.5, 1.0, 2.0) if largest / (s * size) <= 10)
    return [i * step for i in range(int(largest / step) + 1)]


def memory(view: ModelView) -> str:
    """Return the arena: addresses upwards, steps to the right, a block for each buffer."""
    program = view.programs[0]
    lives = lifetimes(program.steps, program.places)
    steps, size = len(program.steps), int(program.peak_bytes)
    if not lives or not size or steps == 0:
        return ""
    colours, height, bottom = kinds(view), 360.0, 24
    scale_x, scale_y = (WIDTH - LEFT - 6) / steps, (height - bottom) / size
    parts = []
    for part in range(5):
        y = (height - bottom) * (1 - part / 4)
        parts.append(_line(LEFT, y, WIDTH - 6, y))
        parts.append(_text(LEFT - 4, max(10, y + 4), bytes_text(size * part / 4), "end"))
    for life in lives:
        offset, nbytes = program.memory.offsets.get(life.key, 0), int(life.nbytes)
        kind = program.steps[life.first].region.kind
        title = (
            f"{bytes_text(nbytes)} at {offset}, steps {life.first} to {life.last},"
            f" made by step {life.first} ({kind})"
        )
        x, y = LEFT + life.first * scale_x, height - bottom - (offset + nbytes) * scale_y
        width = (life.last - life.first + 1) * scale_x
        block = _bar(x, y, width, nbytes * scale_y, f"h{colours[kind]} block", life.first, title)
        parts.append(block)
    parts.append(_text(LEFT, height - 6, "step 0"))
    parts.append(_text(WIDTH - 6, height - 6, f"step {steps - 1}", "end"))
    named, extra = _legend(colours, height + 4)
    return svg(height + 4 + extra, parts + named, "memory plan: address by step")


def roofline(view: ModelView) -> str:
    """Return each step's operations per second by its operations per byte, below the peaks."""
    profile = view.profile
    if profile is None:
        return ""
    peaks, colours = profile.peaks, kinds(view)
    known = [s for s in profile.steps if s.seconds > 0 and s.work.bytes > 0 and s.work.flops > 0]
    height, bottom = 320.0, 26
    ridge = peaks.flops_per_second / peaks.bytes_per_second
    x_of = _log_scale(0.05, max(ridge * 30, 100.0), LEFT, WIDTH - 10)
    y_of = _log_scale(peaks.flops_per_second / 3e4, peaks.flops_per_second * 2, height - bottom, 8)
    left, right = 0.05, max(ridge * 30, 100.0)
    top = peaks.flops_per_second
    parts = [
        _line(x_of(left), y_of(left * peaks.bytes_per_second), x_of(ridge), y_of(top), "roof"),
        _line(x_of(ridge), y_of(top), x_of(right), y_of(top), "roof"),
        _text(x_of(ridge), y_of(top) - 8, f"{top / 1e9:.0f} GFLOP/s", "end"),
        _text(
            LEFT + 8,
            y_of(0.12 * peaks.bytes_per_second) - 14,
            f"{peaks.bytes_per_second / 1e9:.0f} GB/s from memory",
        ),
        _text(WIDTH - 12, height + 10, "operations per byte", "end"),
        _text(4, 12, "GFLOP/s"),
    ]
    for power in range(-1, 5):
        if left <= 10.0**power <= right:
            parts.append(_text(x_of(10.0**power), height - 6, f"{10.0**power:g}", "middle"))
    for power in range(-4, 7):
        if 1e9 * 10.0**power > top / 3e4 and 1e9 * 10.0**power < top:
            y = y_of(1e9 * 10.0**power)
            parts += [
                _line(LEFT, y, WIDTH - 6, y),
                _text(LEFT - 4, y + 4, f"{10.0**power:g}", "end"),
            ]
    for timed in known:
        rate, intensity = timed.work.flops / timed.seconds, timed.work.flops / timed.work.bytes
        share = profile.share(timed.seconds)
        kind = timed.step.region.kind
        title = (
            f"{timed.number} {kind}: {seconds_text(timed.seconds)} ({share:.1%}),"
            f" {rate / 1e9:.3g} GFLOP/s"
        )
        radius = 2.5 + 22 * math.sqrt(share)
        x, y = x_of(intensity), y_of(rate)
        parts.append(_dot(x, y, f"h{colours[kind]} dot", timed.number, title, radius))
    named, extra = _legend(colours, height + 18)
    return svg(height + 18 + extra, parts + named, "roofline")


def _log_scale(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    span = math.log(high / low)

    def place(number: float) -> float:
        bounded = min(max(number, low), high)
        return start + (stop - start) * math.log(bounded / low) / span

    return place


def errors(view: ModelView) -> str:
    """Return the errors of each step: its own as a share of the tolerance, and the sum so far."""
    if view.checks is None or not view.checks.checks:
        return ""
    checks = view.checks.checks
    height, bottom = 240.0, 24
    y_of = _log_scale(1e-9, 10.0, height - bottom, 8)
    wide = (WIDTH - LEFT - 8) / len(checks)
    parts = []
    for power in range(-9, 2, 2):
        y = y_of(10.0**power)
        parts += [_line(LEFT, y, WIDTH - 6, y), _text(LEFT - 4, y + 4, f"1e{power}", "end")]
    points = []
    for i, check in enumerate(checks):
        x = LEFT + (i + 0.5) * wide
        drift = max((d.max_rel for d in check.accumulated), default=0.0)
        points.append(f"{x:.1f},{y_of(drift if math.isfinite(drift) else 10.0):.1f}")
        used = check.used if math.isfinite(check.used) else 10.0
        title = f"{check.number} {check.step.region.kind}: {used:.2g} of its own tolerance"
        kind = "good" if check.ok else "bad"
        parts.append(_dot(x, y_of(used), kind, check.number, title))
    parts.append(f'<polyline class="line" points="{" ".join(points)}"/>')
    parts.append(_text(WIDTH - 6, height - 6, f"step {checks[-1].number}", "end"))
    return svg(height, parts, "errors by step")


def decoding(found: Mapping[str, Any]) -> str:
    """Return tokens per second by position, and the share of the floor."""
    rows = found["positions"]
    if not rows:
        return ""
    height, bottom = 240.0, 26
    fastest = max(max(r["tokens_per_second"] / max(r["of_floor"], 1e-9) for r in rows), 1e-9)
    y_of = _linear(0, fastest * 1.05, height - bottom, 8)
    x_of = _linear(0, max(r["position"] for r in rows) * 1.02 or 1, LEFT, WIDTH - 10)
    parts = []
    for tick in _ticks(fastest):
        parts += [_line(LEFT, y_of(tick), WIDTH - 6, y_of(tick))]
        parts += [_text(LEFT - 4, y_of(tick) + 4, _rate(tick), "end")]
    for name, kind in (("tokens_per_second", "line"), ("floor", "roof")):
        numbers = [
            r["tokens_per_second"] / (1.0 if name != "floor" else max(r["of_floor"], 1e-9))
            for r in rows
        ]
        places = [
            f"{x_of(r['position']):.1f},{y_of(n):.1f}" for r, n in zip(rows, numbers, strict=True)
        ]
        parts.append(f'<polyline class="{kind}" points="{" ".join(places)}"/>')
    for row in rows:
        x, y = x_of(row["position"]), y_of(row["tokens_per_second"])
        told = f"{_rate(row['tokens_per_second'])} tokens/s, {row['of_floor']:.0%} of the floor"
        anchor = "start" if x < LEFT + 90 else "end" if x > WIDTH - 90 else "middle"
        parts.append(f'<circle class="good" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        parts.append(_text(x, y - 9, told, anchor))
        parts.append(_text(x, height - bottom + 14, str(row["position"]), "middle"))
    parts.append(_text(4, height - bottom + 14, "position"))
    return svg(height, parts, "decoding by position")


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def _linear(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    return lambda number: start + (stop - start) * (number - low) / (high - low)


def graph(
    labels: Sequence[tuple[str, int]],
    edges: Iterable[Sequence[int]],
    places: Sequence[Sequence[int]],
) -> str:
    """Return a graph: a box for each node with its label, in a colour by number."""
    parts = []
    for source, target in edges:
        (x1, y1), (x2, y2) = places[source], places[target]
        y1, y2 = y1 + NODE_HEIGHT // 2, y2 - NODE_HEIGHT // 2
        middle = (y1 + y2) / 2
        path = f"M{x1} {y1}C{x1} {middle:.0f} {x2} {middle:.0f} {x2} {y2}"
        parts.append(f'<path class="edge" d="{path}"/>')
    for (label, colour), (x, y) in zip(labels, places, strict=True):
        left, top = x - NODE_WIDTH / 2, y - NODE_HEIGHT / 2
        parts.append(_bar(left, top, NODE_WIDTH, NODE_HEIGHT, f"h{colour}", None, label))
        parts.append(_text(x, y + 4, _clipped(label), "middle", "name"))
    width = max((p[0] for p in places), default=0) + NODE_WIDTH
    height = max((p[1] for p in places), default=0) + NODE_HEIGHT
    return svg(height, parts, "graph", width)


def _clipped(label: str) -> str:
    return label if len(label) <= 24 else f"{label[:11]}..{label[-11:]}"
