"""The GPU benchmarks as a page and as a plot. Nothing here needs a GPU or a plotting library."""

from __future__ import annotations

import math
from typing import Any
from xml.sax.saxutils import escape

OURS = "monograph"
COLOURS = ("#888888", "#4c78a8", "#f58518", "#54a24b")


def peers(record: dict[str, Any]) -> list[str]:
    """The other contenders, in the order in which they first appear."""
    found: dict[str, None] = {}
    for model in record["models"].values():
        found |= dict.fromkeys(c for c in model["contenders"] if c != OURS)
    return list(found)


def ratio(model: dict[str, Any], peer: str, figure: str = "device_us") -> float | None:
    """Return the speed against a peer."""
    ours, theirs = (model["contenders"].get(c) for c in (OURS, peer))
    return theirs[figure] / ours[figure] if ours and theirs else None


def tables(record: dict[str, Any]) -> str:
    """Markdown: device times beside the peers', then all figures of every contender."""
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    lines = [
        f"# GPU benchmarks, {record['date']}",
        "",
        f"{record['device']}; {versions}; Python {record['python']};"
        f" {record['precision']}, tuned {record['tune']}; torch.compile"
        f" mode {record['torch_compile_mode']}.",
        "",
        "Device time of a run in us; x: how many times faster Monograph is.",
        "",
    ]
    lines += _devices(record) + [""] + _details(record)
    failures = [
        f"- {name}, {who}: {why}"
        for name, model in record["models"].items()
        for who, why in model["failed"].items()
    ]
    return "\n".join([*lines, *(["", "Not measured:", "", *failures] if failures else []), ""])


def _devices(record: dict[str, Any]) -> list[str]:
    names = peers(record)
    rows = [["model", OURS, *names, *(f"x {p}" for p in names), "kernels"]]
    for name, model in record["models"].items():
        found = model["contenders"]
        times = [_us(found, c) for c in (OURS, *names)]
        ratios = [f"{r:.2f}" if (r := ratio(model, p)) else "" for p in names]
        rows.append([name, *times, *ratios, str(found.get(OURS, {}).get("kernels", ""))])
    means = []
    for p in names:
        logs = [math.log(r) for m in record["models"].values() if (r := ratio(m, p))]
        means.append(f"{math.exp(sum(logs) / len(logs)):.2f}" if logs else "")
    rows.append(["geometric mean", "", *[""] * len(names), *means, ""])
    return table(rows)


def _us(found: dict[str, Any], contender: str) -> str:
    return f"{found[contender]['device_us']:.1f}" if contender in found else "-"


def _details(record: dict[str, Any]) -> list[str]:
    heads = ["model", "contender", "device us", "synced us", "from numpy us", "copies"]
    rows = [[*heads, "SM MHz", "kernels", "error", "s to make"]]
    for name, model in record["models"].items():
        for contender, f in model["contenders"].items():
            error = f"{f['error']:.1e}" if f["error"] is not None else ""
            clock = f"{f['sm_mhz']:.0f}" if f["sm_mhz"] else ""
            rows.append([
                name, contender, f"{f['device_us']:.1f}", f"{f['synced_us']:.1f}",
                f"{f['end_to_end_us']:.1f}", f"{f['copies']:.0%}", clock,
                str(f["kernels"] or ""), error, f"{f['seconds_to_make']:.1f}",
            ])  # fmt: skip
    return table(rows)


def table(rows: list[list[str]]) -> list[str]:
    """Rows of Markdown, their columns as wide as they need."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: list[str]) -> str:
        cells = [
            c.ljust(w) if i < 1 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join(cells)} |"

    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return [line(rows[0]), rule, *map(line, rows[1:])]


def plot(record: dict[str, Any]) -> str:
    """An SVG of the ratios to each peer, on a logarithmic axis."""
    names, models = peers(record), record["models"]
    bar, gap, left, width = 12, 10, 150, 560
    group = bar * max(len(names), 1) + gap
    top, height = 40, 40 + group * len(models) + 40
    ratios = [r for m in models.values() for p in names if (r := ratio(m, p))]
    low = min([0.5, *ratios]) * 0.9
    high = max([2.0, *ratios]) * 1.1

    def x(value: float) -> float:
        return left + width * (math.log(value / low) / math.log(high / low))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 70}" height="{height}"'
        ' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="16">times faster than the peer, device time,'
        f" {escape(record['device'])}, {record['date']}</text>",
    ]
    for i, name in enumerate(names):
        parts.append(f'<rect x="{left + 130 * i}" y="22" width="10" height="10" fill="{_hue(i)}"/>')
        parts.append(f'<text x="{left + 14 + 130 * i}" y="31">{escape(name)}</text>')
    for row, (name, model) in enumerate(models.items()):
        y = top + row * group
        middle = y + (group - gap) / 2 + 4
        parts.append(f'<text x="{left - 8}" y="{middle}" text-anchor="end">{escape(name)}</text>')
        for i, p in enumerate(names):
            found = ratio(model, p)
            if found is None:
                continue
            start, end = sorted((x(1.0), x(found)))
            at = y + i * bar
            parts.append(
                f'<rect x="{start:.1f}" y="{at}" width="{end - start:.1f}"'
                f' height="{bar - 2}" fill="{_hue(i)}"/>'
            )
            parts.append(f'<text x="{end + 4:.1f}" y="{at + 9}">{found:.2f}</text>')
    parts.append(
        f'<line x1="{x(1.0):.1f}" x2="{x(1.0):.1f}" y1="{top - 4}" y2="{height - 40}"'
        ' stroke="black"/>'
    )
    return "\n".join([*parts, "</svg>", ""])


def _hue(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
