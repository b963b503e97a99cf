"""A comparison of two sides as text and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from monograph.report.diff.compare import (
    KERNEL,
    LOWERING,
    MODEL,
    PRECISION,
    REWRITE,
    ROUNDING,
    SIDE,
    Culprit,
    DiffResult,
    Own,
    Row,
)
from monograph.report.render.console import table
from monograph.report.render.tables import difference_json, made_text

SHOWN = 20
"""The number of tensors in the table; the JSON and the HTML page hold all."""
_BLAME = {
    KERNEL: "a kernel is wrong: given the same operands, the reference computes other numbers",
    REWRITE: "a rewrite changes the numbers",
    LOWERING: "kernels and passes are right: lowering the graph to steps changes the numbers",
    MODEL: "the two models differ here",
    PRECISION: "the precision of this side explains the difference: its outputs are as near as that"
    " allows",
    ROUNDING: "of all activations that are rounded to integers, this one changes the model most",
    SIDE: "this side computes other numbers here than the reference does from the same operands",
}
ADDS_UP = "no step and no rewrite is wrong by itself: roundings add up"
AGREE = "the sides agree: every tensor lies within its tolerance"


def headline(found: DiffResult) -> str:
    """Return the result in one line."""
    if found.ok:
        return AGREE
    if found.culprit is None:
        return ADDS_UP
    return _BLAME[found.culprit.kind]


def culprit_facts(found: DiffResult) -> list[tuple[str, str]]:
    """Return where the first difference comes from, as labelled facts."""
    culprit = found.culprit
    if culprit is None:
        return []
    facts = [("side", found.sides[culprit.side].side.text)]
    check = culprit.check
    if check is not None:
        facts.append(
            ("step", f"{check.number}: {check.step.region.kind} -> {made_text(check.step)}")
        )
    if culprit.fault is not None:
        facts.append(("pass", f"{culprit.fault.step} (stage {culprit.fault.stage})"))
        done = culprit.fault.rewrite
        if done is not None:
            facts += [("rule", done.rule), ("before", done.before), ("after", done.after)]
    facts += [("ONNX node", str(node)) for node in culprit.nodes[:8]]
    if len(culprit.nodes) > 8:
        facts.append(("", f"and {len(culprit.nodes) - 8} more nodes"))
    label = "rounding" if culprit.kind == ROUNDING else "in the files"
    facts += [(label if i == 0 else "", t) for i, t in enumerate(culprit.differences)]
    facts += [("Python", s) for s in dict.fromkeys(n.source for n in culprit.nodes if n.source)]
    if culprit.tensor is not None:
        facts.append(("tensor", culprit.tensor))
    return facts


def show_diff(out: Console, found: DiffResult) -> None:
    """Print the verdict, where it comes from, and how the difference grows."""
    a, b = (side.side.text for side in found.sides)
    colour = "green" if found.ok else "red"
    out.print(f"{escape(a)} and {escape(b)}: [{colour}]{headline(found)}[/{colour}]")
    for label, text in culprit_facts(found):
        out.print(f"  {label:<14}{escape(text)}", highlight=False)
    blames_most = found.culprit is not None and found.culprit.kind == ROUNDING
    if found.first is not None and not blames_most:
        first = found.first
        worst = first.accumulated.problem or ""
        out.print(f"first tensor beyond its tolerance: {escape(first.tensor)} ({escape(worst)})")
    if found.largest is not None and not found.ok and not blames_most:
        out.print(f"the most is added at: {escape(found.largest.tensor)}")
    _show_rows(out, found)
    if found.absent:
        out.print(f"{len(found.absent)} tensors have other shapes on the two sides")


def chosen_rows(found: DiffResult) -> list[Row]:
    """Return the rows of the table: those around the first difference, then outputs."""
    rows = list(found.rows)
    if len(rows) <= SHOWN:
        return rows
    first = found.first
    start = max(0, rows.index(first) - 3) if first is not None else len(rows) - SHOWN
    return rows[start : start + SHOWN]


def _show_rows(out: Console, found: DiffResult) -> None:
    rows = chosen_rows(found)
    columns = ("tensor", "node", "step", "difference", "of tolerance", "added by A", "added by B")
    shown = table(
        f"{len(rows)} of {len(found.rows)} tensors that both sides have, in order",
        *columns,
        right=(2, 3, 4, 5, 6),
    )
    for row in rows:
        mark = "" if row.ok else "[red]"
        shown.add_row(
            mark + escape(row.tensor),
            escape(row.node.op if row.node is not None else ""),
            "" if row.check is None else f"{row.check.number} {escape(row.check.step.region.kind)}",
            f"{row.share:.1e}",
            f"{row.accumulated.used:.2g}",
            *(own_text(own) for own in row.own),
        )
    out.print(shown)


def own_text(own: Own | None) -> str:
    """Return what a side adds at a tensor as text; "!" marks more than roundings explain."""
    return "" if own is None else f"{own.share:.1e}{'' if own.difference.ok else ' !'}"


def diff_json(found: DiffResult) -> dict[str, Any]:
    return {
        "a": found.sides[0].side.text,
        "b": found.sides[1].side.text,
        "ok": found.ok,
        "verdict": headline(found),
        "culprit": None if found.culprit is None else _culprit_json(found.culprit),
        "first": None if found.first is None else found.first.tensor,
        "largest": None if found.largest is None else found.largest.tensor,
        "tensors": [_row_json(row) for row in found.rows],
        "other_shapes": list(found.absent),
    }


def _culprit_json(culprit: Culprit) -> dict[str, Any]:
    check, fault = culprit.check, culprit.fault
    done = None if fault is None else fault.rewrite
    return {
        "kind": culprit.kind,
        "side": "ab"[culprit.side],
        "tensor": culprit.tensor,
        "nodes": [{"name": n.label, "op": n.op, "source": n.source or None} for n in culprit.nodes],
        "step": None if check is None else check.number,
        "kernel": None if check is None else check.step.region.kind,
        "pass": None if fault is None else fault.step,
        "rule": None if done is None else done.rule,
        "before": None if done is None else done.before,
        "after": None if done is None else done.after,
        "differences": list(culprit.differences),
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "tensor": row.tensor,
        "node": None if row.node is None else row.node.label,
        "op": None if row.node is None else row.node.op,
        "step": None if row.check is None else row.check.number,
        "kernel": None if row.check is None else row.check.step.region.kind,
        "share": row.share,
        "difference": difference_json(row.accumulated),
        "added": [
            None if o is None else {"share": o.share, "ok": o.difference.ok, "nodes": list(o.nodes)}
            for o in row.own
        ],
    }
