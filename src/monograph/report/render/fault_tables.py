"""Wrong passes and wrong steps as text and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from monograph.report.commands.bisection import BisectResult, PassesChecked, StepsChecked
from monograph.report.render.explain_tables import fired_json
from monograph.report.render.tables import (
    difference_json,
    made_text,
    nodes_text,
    show_verification,
    worst_text,
)
from monograph.runtime.numerics.bisect import BrokenPass, PassError
from monograph.runtime.numerics.stepwise import StepCheck


def place_text(steps: StepsChecked | None, passes: PassesChecked | None) -> str | None:
    """Return the pass or step that is wrong as text; None if none is."""
    if passes is not None and passes.fault is not None:
        return fault_text(passes.fault.fault)
    if steps is None:
        return None
    if (first := steps.first_wrong) is not None:
        return f"step {first.number} ({first.step.region.kind}): {nodes_text(first.step.nodes)}"
    if passes is None:
        return None
    if (drift := steps.first_drift) is not None:
        return (
            "no pass and no step is wrong by itself: errors add up from step"
            f" {drift.number} ({drift.step.region.kind}) on"
        )
    return "passes and steps are right: lowering the graph to steps changes the numbers"


def fault_text(fault: BrokenPass) -> str:
    """Return a wrong pass in one line."""
    rule = "" if fault.rewrite is None else f", rule {fault.rewrite.rule}"
    return f"pass {fault.step} of stage {fault.stage}{rule}"


def show_fault(out: Console, fault: BrokenPass) -> None:
    """Print a wrong pass, its wrong rewrite and the output that differs."""
    out.print(f"[red]pass {fault.step} of stage {fault.stage} is wrong[/red]")
    done = fault.rewrite
    if done is not None:
        numbered = f" (rewrite {fault.number} of the pass)" if fault.number else ""
        _line(out, f"  rule     {done.rule}{numbered}")
        _line(out, f"  nodes    {done.origin or 'unnamed'}")
        _line(out, f"  before   {done.before}")
        _line(out, f"  after    {done.after}")
    _line(out, f"  problem  {fault.problem}")
    if fault.difference is not None and fault.difference.worst is not None:
        _line(out, f"  worst    {worst_text(fault.difference)}")


def show_step(out: Console, check: StepCheck) -> None:
    """Print a wrong step, its worst element and its ONNX nodes."""
    step = check.step
    out.print(f"  [red]step {check.number}: {step.region.kind}[/red] -> {escape(made_text(step))}")
    for d in check.own:
        if not d.ok:
            out.print(f"  {escape(d.problem or '')}; the worst: {escape(worst_text(d))}")
    if check.overwritten:
        listed = ", ".join(map(str, check.overwritten))
        out.print(f"  it reads memory of step {listed} that was written over before")
    out.print("  ONNX nodes:")
    for name in step.nodes or ["none is known"]:
        out.print(f"    {escape(name)}")


def show_bisection(out: Console, result: BisectResult) -> None:
    """Print the wrong pass; if all are right, the wrong step of compiled code."""
    passes = result.passes
    if passes.fault is not None:
        show_fault(out, passes.fault.fault)
        before = ", ".join(passes.verified) or "none"
        _line(out, f"  verified before it: {before}")
        return
    out.print(f"[green]{len(passes.verified)} passes verified[/green]")
    if result.left_out is not None:
        out.print(escape(result.left_out))
    if result.outputs is None or result.steps is None:
        return
    show_verification(out, result.outputs)
    if (first := result.steps.first_wrong) is not None:
        out.print("[red]The passes are right, and a step of compiled code is wrong:[/red]")
        show_step(out, first)
    else:
        out.print(f"[red]{escape(place_text(result.steps, passes) or '')}[/red]")


def bisection_json(path: str, result: BisectResult) -> dict[str, Any]:
    first = None if result.steps is None else result.steps.first_wrong
    return {
        "model": path,
        "target": result.target,
        "ok": result.ok,
        "verified": list(result.passes.verified),
        "random_ops": list(result.passes.skipped),
        "fault": fault_json(result.passes.fault),
        "outputs": None
        if result.outputs is None
        else [difference_json(d) for d in result.outputs.differences],
        "first_wrong": None
        if first is None
        else {"step": first.number, "kind": first.step.region.kind, "nodes": first.step.nodes},
        "place": place_text(result.steps, result.passes),
        "not_compared": result.left_out,
    }


def fault_json(error: PassError | None) -> dict[str, Any] | None:
    """Return a wrong pass and its rewrite for JSON; None if there is none."""
    if error is None:
        return None
    fault = error.fault
    done = fault.rewrite
    return {
        "stage": fault.stage,
        "pass": fault.step,
        "problem": fault.problem,
        "rewrite": fault.number,
        **({"rule": None} if done is None else {"rule": done.rule, **fired_json(done)}),
        "output": None if fault.difference is None else difference_json(fault.difference),
    }


def _line(out: Console, text: str) -> None:
    out.print(text, markup=False, highlight=False)
