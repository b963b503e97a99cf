"""The command `monograph verify --per-step`: compare every step with the reference."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape

from monograph.errors import ConfigError
from monograph.ir import subgraphs
from monograph.report.commands.bisection import (
    PassesChecked,
    StepsChecked,
    check_passes_of,
    check_steps,
)
from monograph.report.commands.execute import Notes, RunRequest, VerifyResult, verify_model
from monograph.report.render.console import table
from monograph.report.render.fault_tables import fault_json, place_text, show_fault, show_step
from monograph.report.render.tables import (
    difference_json,
    made_text,
    nodes_text,
    show_verification,
    verification_json,
)
from monograph.runtime.numerics.compare import Difference
from monograph.runtime.numerics.stepwise import StepCheck

HOW = "every step is a launch of its own here; a normal run is one launch"
SHOWN = 20
"""The number of steps in the table; the JSON holds all."""


@dataclass(frozen=True)
class PerStep:
    """The results of all steps and of the outputs."""

    steps: StepsChecked
    outputs: VerifyResult
    """The outputs of one launch, compared with the reference."""
    passes: PassesChecked | None = None
    """The result of the passes, if every step is right and outputs differ."""

    @property
    def checks(self) -> tuple[StepCheck, ...]:
        return self.steps.checks

    @property
    def stages(self) -> int:
        return self.steps.stages

    @property
    def launches(self) -> tuple[Difference, ...]:
        return self.steps.launches

    @property
    def ok(self) -> bool:
        agree = all(d.ok for d in self.launches) or bool(self.outputs.random)
        return self.outputs.ok and agree and all(c.ok for c in self.checks)

    @property
    def first_wrong(self) -> StepCheck | None:
        return self.steps.first_wrong

    @property
    def first_drift(self) -> StepCheck | None:
        return self.steps.first_drift

    @property
    def compared(self) -> int:
        return sum(c.not_compared is None for c in self.checks)


def verify_steps(
    request: RunRequest,
    note: Notes,
    rtol: float | None = None,
    atol: float | None = None,
    any_order: Collection[str] = (),
    only: Collection[str] = (),
) -> PerStep:
    """Run a model step by step on the target, and every step by the reference."""
    session = request.load()
    if session.config.target != "cpu":
        raise ConfigError(
            "--per-step compares the steps of compiled code",
            expected="cpu",
            given=session.config.target,
            hint="add --target cpu",
        )
    outputs = verify_model(request, None, note, rtol, atol, any_order, only)
    steps = check_steps(session, outputs.inputs.feeds)
    passes: PassesChecked | None = None
    differ = any(not d.ok for d in outputs.differences)
    if differ and steps.first_wrong is None and not outputs.random:
        passes = check_passes_of(session, outputs, any_order)
    return PerStep(steps, outputs, passes)


def left_out(found: PerStep) -> list[str]:
    """Describe the steps that were not compared, or not on their own."""
    lines = []
    reasons: dict[str, list[StepCheck]] = {}
    for check in found.checks:
        if check.not_compared is not None:
            reasons.setdefault(check.not_compared, []).append(check)
    for reason, steps in reasons.items():
        listed = ", ".join(f"{c.number} ({c.step.region.kind})" for c in steps)
        lines.append(f"not compared by itself, because it {reason}: step {listed}")
    inner = [c for c in found.checks if any(subgraphs(v.op) for v in c.step.region.body)]
    if inner:
        listed = ", ".join(f"{c.number} ({c.step.region.kind})" for c in inner)
        lines.append(f"compared as a whole, not step by step inside: {listed}")
    if found.stages > 1:
        lines.append(
            f"data decide shapes, so that the run is made of {found.stages} programs:"
            " accumulated errors begin anew with each"
        )
    return lines


def per_step_json(path: str, found: PerStep) -> dict[str, Any]:
    first = found.first_wrong
    return verification_json(path, found.outputs) | {
        "ok": found.ok,
        "stages": found.stages,
        "steps": [_step_json(c) for c in found.checks],
        "steps_compared": found.compared,
        "steps_wrong": [c.number for c in found.checks if not c.ok],
        "first_wrong": None if first is None else first.number,
        "first_drift": None if found.first_drift is None else found.first_drift.number,
        "fault": None if found.passes is None else fault_json(found.passes.fault),
        "place": place_text(found.steps, found.passes),
        "one_launch_agrees": all(d.ok for d in found.launches),
        "how": HOW,
        "captured": False,
        "notes": left_out(found),
    }


def _step_json(check: StepCheck) -> dict[str, Any]:
    return {
        "step": check.number,
        "stage": check.stage,
        "kind": check.step.region.kind,
        "nodes": check.step.nodes,
        "results": [str(v.type) for v in check.step.region.outputs],
        "ok": check.ok,
        "own": [difference_json(d) for d in check.own],
        "accumulated": [difference_json(d) for d in check.accumulated],
        "reads_overwritten": list(check.overwritten),
        "not_compared": check.not_compared,
    }


def show_per_step(out: Console, found: PerStep) -> None:
    """Print the worst steps, the outputs, and the first wrong step in full."""
    worst = sorted(found.checks, key=lambda c: (c.ok, -c.used))
    wrong = sum(not c.ok for c in found.checks)
    shown = worst[: max(SHOWN, wrong)]
    title = f"steps of {found.outputs.target} against the reference, the worst first"
    columns = ("step", "kind", "ONNX nodes", "makes", "error", "allowed", "used")
    rows = table(title, *columns, "accumulated", "used", "result", right=(0, 4, 5, 6, 7, 8))
    for check in shown:
        rows.add_row(*_row(check), style="" if check.ok else "red")
    out.print(rows)
    if len(found.checks) > len(shown):
        out.print(f"and {len(found.checks) - len(shown)} more steps that use less (--json has all)")
    out.print(
        "error: of the step alone, given what it read. accumulated: from the model's inputs on."
        " Both relative to the result's largest element."
    )
    out.print(HOW)
    for line in left_out(found):
        out.print(f"[yellow]{escape(line)}[/yellow]")
    show_verification(out, found.outputs)
    _show_verdict(out, found, wrong)


def _show_verdict(out: Console, found: PerStep, wrong: int) -> None:
    first, drift = found.first_wrong, found.first_drift
    if not found.outputs.random and (bad := [d for d in found.launches if not d.ok]):
        names = escape(", ".join(d.name for d in bad))
        out.print(
            f"[red]One launch for all steps gives other bits than one launch a step: {names}.[/red]"
            " A step does not wait for another that it needs."
        )
    if first is not None:
        out.print(f"[red]{wrong} of {found.compared} steps are wrong. The first:[/red]")
        show_step(out, first)
    else:
        out.print(f"[green]{found.compared} of {found.compared} compared steps agree[/green]")
    if found.passes is not None and found.passes.fault is not None:
        out.print("Every step computes what its graph says, and a pass has changed the graph:")
        show_fault(out, found.passes.fault.fault)
    elif found.passes is not None:
        out.print(f"[red]{escape(place_text(found.steps, found.passes) or '')}[/red]")
    if drift is not None and (first is None or drift.number < first.number):
        out.print(
            f"errors add up to more than roundings explain from step {drift.number}"
            f" ({drift.step.region.kind}, {escape(nodes_text(drift.step.nodes))}) on;"
            " no step before it is wrong by itself"
        )


def _row(check: StepCheck) -> tuple[str, ...]:
    step = check.step
    verdict = "ok" if check.ok else "WRONG"
    if check.not_compared is not None:
        verdict = "not compared"
    elif check.ok and check.drifted:
        verdict = "ok, but drifted"
    what = (str(check.number), step.region.kind, nodes_text(step.nodes), made_text(step))
    return (*map(escape, what), *_figures(check.own, True), *_figures(check.accumulated), verdict)


def _figures(differences: tuple[Difference, ...], with_allowed: bool = False) -> tuple[str, ...]:
    """Return the error of the worst result, the tolerance, and the used share of it."""
    if not differences:
        return ("-",) * (3 if with_allowed else 2)
    d = max(differences, key=lambda d: (not d.ok, d.used))
    allowed = "equal" if d.tolerance.rtol == 0 else f"{d.tolerance.rtol:.1e}"
    if d.tolerance.rtol == 0 and d.tolerance.atol:
        allowed = f"{d.tolerance.atol:g}"
    comparable = d.ok or d.worst is not None
    error = f"{d.max_rel:.1e}" if comparable and d.max_rel else ("0" if comparable else "-")
    share = (f"{d.used:.0%}" if d.used < 10 else f"{d.used:,.0f}x") if comparable else "-"
    return (error, allowed, share) if with_allowed else (error, share)
