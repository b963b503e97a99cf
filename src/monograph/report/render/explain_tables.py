"""Explanations of rewrites as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from monograph.report.commands.explain import Explanation, RuleRecord, op_counts
from monograph.report.commands.launch_regions import launching_json, show_launching
from monograph.report.render.console import table
from monograph.report.render.tables import seconds_text
from monograph.rewrite import Fired

PLACES_SHOWN, MISSES_SHOWN = 2, 1
"""The number of places and misses of each rule in the overview."""


def show_explanation(out: Console, path: str, found: Explanation) -> None:
    before, after = op_counts(found.before).total(), op_counts(found.after).total()
    taken = seconds_text(sum(p.seconds for p in found.passes))
    out.print(
        f"[bold]{escape(path)}[/bold] for {found.target}:"
        f" {before:,} ops become {after:,} in {taken}",
    )
    _show_stages(out, found)
    _show_passes(out, found)
    if found.launching is not None:
        show_launching(out, found.launching)
    fired = [r for r in found.rules.values() if r.fired]
    missed = [r for r in found.rules.values() if not r.fired and r.misses]
    far = sorted(r.name for r in found.rules.values() if not r.fired and not r.misses)
    if fired:
        out.print("\n[bold]Fired[/bold]")
    for record in sorted(fired, key=lambda r: -len(r.fired)):
        _show_rule(out, record, PLACES_SHOWN, MISSES_SHOWN)
    if missed:
        out.print("\n[bold]Did not fire; the nearest miss of each[/bold]")
    for record in sorted(missed, key=lambda r: (-r.misses[0].score, r.name)):
        _show_rule(out, record, PLACES_SHOWN, MISSES_SHOWN)
    if far:
        out.print("\n[bold]Never came near[/bold]")
        out.print(escape(", ".join(far)), highlight=False)
    out.print("\nAll of one rule: --rule NAME. The graph behind a pass: --after PASS.")


def show_rules(out: Console, records: Sequence[RuleRecord]) -> None:
    """Print everything about some rules."""
    for record in records:
        _show_rule(out, record, len(record.fired), len(record.misses))
        if not record.fired and not record.misses:
            _line(out, "  It did not fire, and nothing in the model comes near its pattern.")


def explanation_json(path: str, found: Explanation) -> dict[str, Any]:
    return {
        "model": path,
        "target": found.target,
        "seconds": sum(p.seconds for p in found.passes),
        "ops": {name: dict(op_counts(graph)) for name, graph in found.stages.items()},
        "passes": [
            {
                "stage": p.stage,
                "name": p.name,
                "label": p.label,
                "purpose": p.purpose,
                "seconds": p.seconds,
                "rewrites": len(p.fired),
                "ops": op_counts(p.graph).total(),
            }
            for p in found.passes
        ],
        "rules": [rule_json(r) for r in found.rules.values()],
        "launches": None if found.launching is None else launching_json(found.launching),
    }


def rules_json(name: str, records: Sequence[RuleRecord]) -> dict[str, Any]:
    """Return one rule, or the rules of a pass, for JSON."""
    if [r.name for r in records] == [name]:
        return rule_json(records[0])
    return {"pass": name, "rules": [rule_json(r) for r in records]}


def rule_json(record: RuleRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "equation": record.equation,
        "exact": record.exact,
        "passes": record.passes,
        "fired": [{"pass": label, **fired_json(f)} for label, f in record.fired],
        "misses": [
            {"nodes": _nodes(m.origin), "reason": m.reason, "score": m.score} for m in record.misses
        ],
    }


def fired_json(done: Fired) -> dict[str, Any]:
    """Return a rewrite and its ONNX nodes for JSON."""
    return {"nodes": _nodes(done.origin), "before": done.before, "after": done.after}


def _nodes(origin: str) -> list[str]:
    return [name for name in origin.split(" + ") if name]


def _show_stages(out: Console, found: Explanation) -> None:
    counts = {name: op_counts(graph) for name, graph in found.stages.items()}
    most = {n: max(c[n] for c in counts.values()) for c in counts.values() for n in c}
    rows = table("ops behind each stage", "op", *counts, right=tuple(range(1, 1 + len(counts))))
    for name in sorted(most, key=lambda n: (-most[n], n)):
        rows.add_row(escape(name), *(f"{c[name]:,}" if c[name] else "-" for c in counts.values()))
    rows.add_row("[bold]all[/bold]", *(f"{c.total():,}" for c in counts.values()))
    out.print(rows)


def _show_passes(out: Console, found: Explanation) -> None:
    rows = table("passes", "stage", "pass", "rewrites", "ops after", "time", right=(2, 3, 4))
    for p in found.passes:
        ops = f"{op_counts(p.graph).total():,}"
        rows.add_row(p.stage, p.label, f"{len(p.fired):,}", ops, seconds_text(p.seconds))
    out.print(rows)


def _show_rule(out: Console, record: RuleRecord, places: int, misses: int) -> None:
    kind = "exact" if record.exact else "reassociating"
    times = "did not fire"
    if record.fired:
        times = "fired once" if len(record.fired) == 1 else f"fired {len(record.fired):,} times"
    where = ", ".join(dict.fromkeys(record.passes))
    head = f"\n[bold]{escape(record.name)}[/bold] ({kind}; in {escape(where)}): {times}"
    out.print(head)
    _line(out, f"  {record.equation}")
    for _, done in record.fired[:places]:
        _line(out, f"  at {done.origin or 'unnamed nodes'}")
        _line(out, f"     {done.before}")
        _line(out, f"  -> {done.after}")
    _more(out, len(record.fired) - places, "place", record.name)
    for missed in record.misses[:misses]:
        _line(out, f"  not at {missed.origin or 'unnamed nodes'}: {missed.reason}")
    _more(out, len(record.misses) - misses, "miss", record.name)


def _more(out: Console, count: int, what: str, rule: str) -> None:
    if count > 0:
        plural = {"place": "places", "miss": "misses"}[what]
        _line(out, f"  and {count:,} more {what if count == 1 else plural}: --rule {rule}")


def _line(out: Console, text: str) -> None:
    out.print(text, markup=False, highlight=False)
