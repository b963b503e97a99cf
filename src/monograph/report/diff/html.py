"""A comparison of two sides as a page: the verdict, a chart of how it grows, and every tensor."""

from __future__ import annotations

import math
from pathlib import Path

from monograph.report.diff.compare import DiffResult, Row
from monograph.report.diff.show import culprit_facts, headline, own_text
from monograph.report.render.html import escape, page
from monograph.runtime.atomic_write import replacing_named

STYLE = """
:root{--bg:#fff;--fg:#1c2330;--dim:#5b6575;--line:#d9dee6;--bad:#b3261e;--good:#18794e;--a:#2f6fde}
@media(prefers-color-scheme:dark){:root{--bg:#12161d;--fg:#e4e8ef;--dim:#98a2b3;--line:#2b3340;
--bad:#ff8a80;--good:#5fd39b;--a:#7fb0ff}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:1100px;
margin:0 auto;padding:1.5rem}h1{font-size:1.3rem}.bad{color:var(--bad)}.good{color:var(--good)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;width:100%}
td,th{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums}dl{display:grid;
grid-template-columns:max-content 1fr;gap:.2rem 1rem}dt{color:var(--dim)}dd{margin:0;
overflow-wrap:anywhere;font-family:ui-monospace,monospace;font-size:.85rem}
h2{font-size:1.05rem}svg{width:100%;min-width:640px;height:auto}.axis{stroke:var(--line)}text{fill:var(--dim);font-size:11px}
.total{fill:none;stroke:var(--a);stroke-width:1.5}.own{fill:var(--bad)}.ok{fill:var(--good)}
p{color:var(--dim)}
"""
WIDTH, HEIGHT, LEFT = 1000, 260, 50
LOWEST = 1e-9
"""The least difference that the chart shows."""


def diff_page(found: DiffResult) -> str:
    """Return the page of a comparison."""
    a, b = (escape(side.side.text) for side in found.sides)
    colour = "good" if found.ok else "bad"
    facts = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in culprit_facts(found))
    body = (
        f"<h1>{a} and {b}</h1><p class={colour}><strong>{escape(headline(found))}</strong></p>"
        f"<dl>{facts}</dl><h2>How it grows</h2><div class=wide>{chart(found)}</div>"
        "<p>The line is the difference of the two sides at each tensor, relative to its root mean"
        " square. A dot is what a side adds there, given the tensors before: green where its"
        " roundings explain it.</p><h2>Tensors</h2><div class=wide><table><tr><th>tensor<th>ONNX"
        " node<th>step<th class=n>difference<th class=n>of tolerance<th class=n>added by A"
        f"<th class=n>added by B<th>Python</tr>{''.join(map(_row, found.rows))}</table></div>"
    )
    return page(f"{found.sides[0].side.text} and {found.sides[1].side.text}", body, STYLE)


def write_diff(target: Path, found: DiffResult) -> None:
    """Write the page of a comparison to a file."""
    with replacing_named(target) as file:
        file.write(diff_page(found).encode())


def _row(row: Row) -> str:
    step = "" if row.check is None else f"{row.check.number} {row.check.step.region.kind}"
    node, source = ("", "") if row.node is None else (str(row.node), row.node.source)
    mark = "" if row.ok else " class=bad"
    own = "".join(f"<td class=n>{escape(own_text(o))}</td>" for o in row.own)
    return (
        f"<tr{mark}><td>{escape(row.tensor)}</td><td>{escape(node)}</td><td>{escape(step)}</td>"
        f"<td class=n>{row.share:.1e}</td><td class=n>{row.accumulated.used:.2g}</td>{own}"
        f"<td>{escape(source)}</td></tr>"
    )


def chart(found: DiffResult) -> str:
    """Return the differences of all tensors as a picture, on a logarithmic scale."""
    rows = found.rows
    if not rows:
        return "<p>The sides have no tensor in common.</p>"
    parts = []
    for power in range(-9, 2, 2):
        y = _height(10.0**power)
        parts.append(f'<line class=axis x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="4" y="{y + 4:.1f}">1e{power}</text>')
    places = [LEFT + (WIDTH - LEFT - 8) * (i + 0.5) / len(rows) for i in range(len(rows))]
    line = " ".join(f"{x:.1f},{_height(r.share):.1f}" for x, r in zip(places, rows, strict=True))
    parts.append(f'<polyline class=total points="{line}"/>')
    for x, row in zip(places, rows, strict=True):
        for own in row.own:
            if own is not None and own.share > LOWEST:
                kind = "ok" if own.difference.ok else "own"
                told = escape(f"{row.tensor}: {own.share:.1e}")
                parts.append(
                    f'<circle class={kind} cx="{x:.1f}" cy="{_height(own.share):.1f}" r="3">'
                    f"<title>{told}</title></circle>"
                )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def _height(share: float) -> float:
    """Return the height in the chart of a difference: 1e-9 at the bottom, 10 at the top."""
    bounded = min(max(share, LOWEST), 10.0) if not math.isnan(share) else 10.0
    return 10 + (HEIGHT - 20) * (1 - (math.log10(bounded) + 9) / 10)
