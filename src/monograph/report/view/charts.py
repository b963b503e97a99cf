"""Pictures as SVG: the timeline, the memory plan, the roofline, errors, decoding, the graphs.

A page embeds them, and `--svg` writes them to files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monograph.program.program import lifetimes
from monograph.report.commands.bench import Peaks
from monograph.report.commands.gpu_profile import GpuProfile
from monograph.report.commands.profile import Profile, StepTime, Timed
from monograph.report.view import marks
from monograph.report.view.collect import ModelView
from monograph.report.view.layout import HEIGHT as NODE_HEIGHT
from monograph.report.view.layout import WIDTH as NODE_WIDTH
from monograph.report.view.marks import HUES, LEFT, WIDTH, bar, dot, key, legend, line, svg, words

EXACT = 1e-9
"""The least error that the picture of errors shows: smaller ones lie there too."""
WRONG = 1.0
"""The share of its tolerance from which a step is wrong."""


def kinds(view: ModelView) -> dict[str, int]:
    """Return a colour for each kind of step, the most frequent kinds first."""
    counts: dict[str, int] = {}
    for step in view.steps:
        counts[step.region.kind] = counts.get(step.region.kind, 0) + 1
    ordered = sorted(counts, key=lambda k: (-counts[k], k))
    return {kind: i % HUES for i, kind in enumerate(ordered)}


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


def rate_text(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


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
    height = top + len(rows) * (row + 8) + 22
    parts = []
    for tick in marks.ticks(whole / 1e9):
        x = LEFT + tick * 1e9 * scale
        anchor = "end" if x > WIDTH - 30 else "middle"
        parts.append(line(x, top, x, height - 18))
        parts.append(words(x, height - 5, seconds_text(tick) if tick else "0", anchor))
    for place, (name, bars) in enumerate(rows.items()):
        y = top + place * (row + 8)
        parts.append(words(4, y + 19, name))
        for number, begin, end in bars:
            kind = profile.steps[number].step.region.kind
            title = f"{number} {kind}: {seconds_text((end - begin) / 1e9)}"
            x, width = LEFT + begin * scale, (end - begin) * scale
            parts.append(bar(x, y, width, row, f"h{colours[kind]}", number, title))
    named, extra = legend(colours, height + 4)
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


def memory(view: ModelView) -> str:
    """Return the arena of the program that needs the most memory.

    Addresses lead upwards, steps to the right; a block is a buffer.
    """
    first, program = view.fullest
    lives = lifetimes(program.steps, program.places)
    steps, size = len(program.steps), int(program.peak_bytes)
    if not lives or not size or steps == 0:
        return ""
    colours, height, bottom = kinds(view), 360.0, 24
    scale_x, scale_y = (WIDTH - LEFT - 6) / steps, (height - bottom) / size
    parts = []
    for part in range(5):
        y = (height - bottom) * (1 - part / 4)
        parts.append(line(LEFT, y, WIDTH - 6, y))
        parts.append(words(LEFT - 4, max(10, y + 4), bytes_text(size * part / 4), "end"))
    for life in lives:
        offset, nbytes = program.memory.offsets.get(life.key, 0), int(life.nbytes)
        kind = program.steps[life.first].region.kind
        title = (
            f"{bytes_text(nbytes)} at address {offset:,}, steps {first + life.first} to"
            f" {first + life.last}, made by step {first + life.first} ({kind})"
        )
        x, y = LEFT + life.first * scale_x, height - bottom - (offset + nbytes) * scale_y
        wide, high = (life.last - life.first + 1) * scale_x, nbytes * scale_y
        parts.append(bar(x, y, wide, high, f"h{colours[kind]} block", first + life.first, title))
    parts.append(words(LEFT, height - 6, f"step {first}"))
    parts.append(words(WIDTH - 6, height - 6, f"step {first + steps - 1}", "end"))
    named, extra = legend(colours, height + 4)
    return svg(height + 4 + extra, parts + named, "memory plan: address by step")


def roofline(view: ModelView) -> str:
    """Return each step's operations per second by its operations per byte, below the peaks."""
    profile = view.profile
    if profile is None:
        return ""
    colours, height = kinds(view), 320.0
    known = [s for s in profile.steps if s.seconds > 0 and s.work.bytes > 0 and s.work.flops > 0]
    dense = [s.work.flops / s.work.bytes for s in known]
    rates = [s.work.flops / s.seconds for s in known]
    x_of, y_of, parts = _roof(profile.peaks, dense, rates, height)
    parts += [
        _roof_dot(profile, s, colours, x_of(i), y_of(r))
        for s, i, r in zip(known, dense, rates, strict=True)
    ]
    named, extra = legend(colours, height + 18)
    return svg(height + 18 + extra, parts + named, "roofline")


def _roof(
    peaks: Peaks, dense: Sequence[float], rates: Sequence[float], height: float
) -> tuple[marks.Scale, marks.Scale, list[str]]:
    """Return the scales of both axes, which hold all steps, and the axes with the peaks."""
    top, read = peaks.flops_per_second, peaks.bytes_per_second
    ridge = top / read
    left, right = min([0.05, *(0.8 * x for x in dense)]), max([ridge * 30, 100.0, *dense])
    low, high = (
        min([top / 3e4, *(0.7 * r for r in rates)]),
        max([2 * top, *(1.3 * r for r in rates)]),
    )
    x_of = marks.log_scale(left, right, LEFT, WIDTH - 10)
    y_of = marks.log_scale(low, high, height - 26, 8)
    parts = [words(x_of(x), height - 6, f"{x:g}", "middle") for x in marks.powers(left, right)]
    for rate in marks.powers(low / 1e9, top / 1e9):
        y = y_of(1e9 * rate)
        parts += [line(LEFT, y, WIDTH - 6, y), words(LEFT - 4, y + 4, f"{rate:g}", "end")]
    parts += [
        line(x_of(left), y_of(left * read), x_of(ridge), y_of(top), "roof"),
        line(x_of(ridge), y_of(top), x_of(right), y_of(top), "roof"),
        words(x_of(ridge), y_of(top) - 8, f"{top / 1e9:.0f} GFLOP/s", "end"),
        words(LEFT + 6, y_of(left * read) - 30, f"{read / 1e9:.0f} GB/s from memory"),
        words(WIDTH - 12, height + 10, "operations per byte", "end"),
        words(4, 12, "GFLOP/s"),
    ]
    return x_of, y_of, parts


def _roof_dot(
    profile: Timed, timed: StepTime, colours: Mapping[str, int], x: float, y: float
) -> str:
    kind, share = timed.step.region.kind, profile.share(timed.seconds)
    rate = timed.work.flops / timed.seconds
    title = (
        f"{timed.number} {kind}: {seconds_text(timed.seconds)} ({share:.1%}),"
        f" {rate / 1e9:.3g} GFLOP/s"
    )
    radius = 2.5 + 22 * math.sqrt(share)
    return dot(x, y, f"h{colours[kind]} dot", timed.number, title, radius)


def errors(view: ModelView) -> str:
    """Return the errors of each step: its own as a share of the tolerance, and the sum so far."""
    if view.checks is None or not view.checks.checks:
        return ""
    checks = view.checks.checks
    height, bottom = 240.0, 24
    used = [c.used if math.isfinite(c.used) else math.inf for c in checks]
    highest = max([10.0, *(2 * u for u in used if u < math.inf)])
    y_of = marks.log_scale(EXACT, highest, height - bottom, 8)
    wide = (WIDTH - LEFT - 8) / len(checks)
    parts = []
    for power in marks.powers(EXACT, highest)[:: 2 if highest < 1e4 else 4]:
        y = y_of(power)
        label = f"{power:.0e}".replace("e+0", "e").replace("e-0", "e-")
        label = f"<{label}" if power <= 1.01 * EXACT else label
        parts += [line(LEFT, y, WIDTH - 6, y), words(LEFT - 4, y + 4, label, "end")]
    parts.append(line(LEFT, y_of(WRONG), WIDTH - 6, y_of(WRONG), "roof"))
    points = []
    for i, (check, share) in enumerate(zip(checks, used, strict=True)):
        x = LEFT + (i + 0.5) * wide
        drift = max((d.max_rel for d in check.accumulated), default=0.0)
        points.append((x, y_of(drift if math.isfinite(drift) else highest)))
        title = f"{check.number} {check.step.region.kind}: {share:.2g} of its own tolerance"
        kind = "good" if check.ok else "bad"
        parts.append(dot(x, y_of(share), kind, check.number, title))
    parts.append(marks.polyline(points, "line"))
    parts.append(words(LEFT, height - 6, f"step {checks[0].number}"))
    parts.append(words(WIDTH - 6, height - 6, f"step {checks[-1].number}", "end"))
    named, extra = key(
        {
            "a step's own error / its tolerance": "good",
            "a wrong step": "bad",
            "wrong from here on": "roof",
            "error from the inputs on / largest element": "line",
        },
        height + 4,
    )
    return svg(height + 4 + extra, parts + named, "errors by step")


def decoding(found: Mapping[str, Any]) -> str:
    """Return tokens per second by position, and the share of the floor."""
    rows = found["positions"]
    if not rows:
        return ""
    height, bottom = 240.0, 26
    allowed = [r["tokens_per_second"] / max(r["of_floor"], 1e-9) for r in rows]
    rates = [r["tokens_per_second"] for r in rows]
    fastest = max(*allowed, *rates, 1e-9)
    y_of = marks.linear(0, fastest * 1.12, height - bottom, 8)
    x_of = marks.linear(0, max(r["position"] for r in rows) * 1.02 or 1, LEFT, WIDTH - 10)
    xs = [x_of(r["position"]) for r in rows]
    parts = []
    for tick in marks.ticks(fastest):
        parts += [line(LEFT, y_of(tick), WIDTH - 6, y_of(tick))]
        parts += [words(LEFT - 4, y_of(tick) + 4, rate_text(tick), "end")]
    parts.append(marks.polyline(zip(xs, map(y_of, allowed), strict=True), "roof"))
    parts.append(marks.polyline(zip(xs, map(y_of, rates), strict=True), "line"))
    for row, x in zip(rows, xs, strict=True):
        y = y_of(row["tokens_per_second"])
        below = 0.6 < row["of_floor"] < 1.02  # else the words would lie on the dashed line
        told = f"{rate_text(row['tokens_per_second'])} tokens/s, {row['of_floor']:.0%} of the floor"
        anchor = "start" if x < LEFT + 90 else "end" if x > WIDTH - 90 else "middle"
        parts.append(f'<circle class="good" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        parts.append(words(x, y + 18 if below else y - 9, told, anchor))
        parts.append(words(x, height - bottom + 14, str(row["position"]), "middle"))
    parts.append(words(4, height - bottom + 14, "position"))
    named, extra = key(
        {"tokens per second": "line", "the floor: memory is read once for each": "roof"}, height + 4
    )
    return svg(height + 4 + extra, parts + named, "decoding by position")


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
        parts.append(bar(left, top, NODE_WIDTH, NODE_HEIGHT, f"h{colour}", None, label))
        parts.append(words(x, y + 4, marks.clipped(label), "middle", "name"))
    width = max((p[0] for p in places), default=0) + NODE_WIDTH
    height = max((p[1] for p in places), default=0) + NODE_HEIGHT
    return svg(height, parts, "graph", width)
