"""A report's content as JSON: what the page's script reads, and what `--against` compares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import monograph
from monograph.ir import Graph, TensorType
from monograph.ir.op import STRUCTURE
from monograph.passes.base import ORIGINS_BETWEEN
from monograph.program.fusion.op_classes import is_leaf
from monograph.program.program import Step
from monograph.report.commands.bench import known
from monograph.report.commands.gpu_profile import GpuProfile
from monograph.report.commands.profile import Profile, StepTime, Timed, rates_json
from monograph.report.diff.tensors import NodeInfo, main_node
from monograph.report.render.tables import made_text, seconds_text
from monograph.report.view.collect import ModelView, step_edges
from monograph.report.view.layout import layered
from monograph.runtime.cpu.host_cost import processor
from monograph.runtime.numerics.stepwise import StepCheck

FORMAT = 1
MAX_TEXT = 240
"""The most characters of an expression of a rewrite."""
MUCH_LONGER = 1.5
"""The least ratio of a run to its steps, as medians, that is worth a note."""
MAX_OPS = 24
"""The most ops of a step."""
MAX_MISSES = 12
"""The most misses of a rule."""


class NodeNumbers:
    """The numbers of the nodes of a file, by the labels of nodes, of function bodies too.

    Nodes that have one name cannot be told apart: the label of one is that of all.
    """

    def __init__(self, nodes: Iterable[NodeInfo]) -> None:
        self._known: dict[str, list[int]] = {}
        for number, node in enumerate(nodes):
            self._known.setdefault(node.label, []).append(number)

    def of(self, labels: Iterable[str]) -> list[int]:
        """Return the nodes that labels belong to, each once."""
        found = (main_node(label, self._known) for label in labels)
        return list(dict.fromkeys(i for n in found if n is not None for i in self._known[n]))


def view_json(view: ModelView) -> dict[str, Any]:
    """Return everything that a report shows, as one JSON object."""
    index = NodeNumbers(view.onnx.nodes)
    steps = _steps(view, index)
    edges = step_edges(view.programs)
    before = layered(len(view.onnx.nodes), view.onnx.edges, view.onnx.closed)
    after = layered(len(steps), edges)
    return {
        "ok": True,
        "format": FORMAT,
        "model": view.path,
        "version": monograph.__version__,
        "target": view.target,
        "machine": processor() if view.profile is not None else "",
        "facts": facts(view),
        "notes": [*view.notes, *_busy(view.profile)],
        "nodes": [[n.label, n.op, n.source] for n in view.onnx.nodes],
        "edges": [list(e) for e in view.onnx.edges],
        "places": [list(p) for p in before.places],
        "steps": steps,
        "step_edges": [list(e) for e in edges],
        "step_places": [list(p) for p in after.places],
        "passes": _passes(view, index),
        "rules": _rules(view, index),
        "launches": _launches(view),
    }


def _busy(profile: Timed | None) -> list[str]:
    """Return a note if runs took much longer than their steps do: the machine did other work."""
    if not isinstance(profile, Profile):
        return []
    if profile.run_seconds < MUCH_LONGER * profile.step_seconds:
        return []
    return [
        f"a run took {seconds_text(profile.run_seconds)}, its steps together"
        f" {seconds_text(profile.step_seconds)}: the rest is time between steps, or the machine did"
        " other work; the timeline shows which"
    ]


def facts(view: ModelView) -> dict[str, Any]:
    """Return the figures of the overview by name; those that were not measured are left out."""
    found = view.inspection
    program = view.fullest[1]
    told: dict[str, Any] = {
        "nodes": len(view.onnx.nodes),
        "ops_before": op_count(view.explanation.before),
        "ops_after": op_count(view.explanation.after),
        "steps": len(view.steps),
        "parameters": found.parameters,
        "weight_bytes": sum(w.bytes for w in found.weights),
        "arena_bytes": int(program.peak_bytes),
        "launches": view.launching.text,
        "host_steps": len(view.launching.host),
        "inputs": [f"{p.name}: {p.dtype}{p.shape_text}" for p in found.inputs],
        "outputs": [f"{p.name}: {p.dtype}{p.shape_text}" for p in found.outputs],
        "sizes": _sizes(view),
    }
    if view.profile is not None:
        told |= _run_facts(view.profile)
    if view.bench is not None:
        times = view.bench.times
        told["peers"] = {name: times[name].median for name in times}
    if view.checks is not None:
        told["steps_wrong"] = sum(not c.ok for c in view.checks.checks)
    return told


def _sizes(view: ModelView) -> list[str]:
    """Return the type of each input in this report; "" for one that the file fixes."""
    graph = view.explanation.before
    bound = {n: str(v.type) for n, v in zip(graph.input_names, graph.inputs, strict=True)}
    declared = {p.name: f"{p.dtype}{p.shape_text}" for p in view.inspection.inputs}
    return [bound[n] if bound.get(n, text) != text else "" for n, text in declared.items()]


def _run_facts(profile: Profile | GpuProfile) -> dict[str, Any]:
    told: dict[str, Any] = {"step_seconds": profile.step_seconds}
    if isinstance(profile, Profile):
        told |= {"run_seconds": profile.run_seconds, "threads": profile.threads}
    else:
        alone = profile.step_seconds + profile.gap_seconds
        graph = profile.graph_seconds
        told |= {
            "run_seconds": alone if graph is None else graph,
            "gap_seconds": profile.gap_seconds,
            "streams": max(profile.streams, default=0) + 1,
            "device": profile.device,
            "precision": profile.precision,
        }
    return told | {
        "peak_flops": profile.peaks.flops_per_second,
        "peak_bytes": profile.peaks.bytes_per_second,
        "floor_seconds": known(sum(profile.floor(s.work) for s in profile.steps)),
    }


def op_count(graph: Graph) -> int:
    """Return the number of values that compute something."""
    return sum(not isinstance(v.op, STRUCTURE) and not is_leaf(v) for v in graph.values)


def _steps(view: ModelView, index: NodeNumbers) -> list[dict[str, Any]]:
    timed = view.profile.steps if view.profile is not None else ()
    checks = view.checks.checks if view.checks is not None else ()
    host = {x.step.index: x.reason for x in view.launching.host}
    found = []
    for number, step in enumerate(view.steps):
        told: dict[str, Any] = {
            "kind": step.region.kind,
            "nodes": index.of(step.nodes),
            "origin": step.nodes,
            "makes": made_text(step),
            "ops": _ops(step),
        }
        if number in host and len(view.programs) == 1:
            told["host"] = host[number]
        if number < len(timed):
            assert view.profile is not None
            told |= _time(view.profile, timed[number])
        if number < len(checks):
            told |= _check(checks[number])
        found.append(told)
    return found


def _ops(step: Step) -> list[str]:
    """Return the ops of a step; one of another element type than its result has that too."""
    result = step.region.root.type
    own = result.dtype if isinstance(result, TensorType) else None
    found = []
    for value in step.region.body:
        if not is_leaf(value):
            kind = value.type.dtype if isinstance(value.type, TensorType) else own
            found.append(value.op.name if kind == own else f"{value.op.name} ({kind})")
    return found[:MAX_OPS]


def _time(profile: Timed, timed: StepTime) -> dict[str, Any]:
    rates = rates_json(profile, timed.work, timed.seconds)
    return {
        "seconds": timed.seconds,
        "share": profile.share(timed.seconds),
        "flops": rates["flops"],
        "bytes": rates["bytes"],
        "of_peak": rates["of_peak"],
        "waiting": timed.waiting,
    }


def _check(check: StepCheck) -> dict[str, Any]:
    drift = max((d.max_rel for d in check.accumulated), default=0.0)
    told = {"own": _finite(check.used), "drift": _finite(drift), "right": check.ok}
    return told | ({"unchecked": check.not_compared} if check.not_compared else {})


def _finite(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


def _passes(view: ModelView, index: NodeNumbers) -> list[dict[str, Any]]:
    """Return the passes in order, each with its rewrites."""
    names = [*view.explanation.rules]
    before = op_count(view.explanation.before)
    found = []
    for record in view.explanation.passes:
        after = op_count(record.graph)
        fired = [
            {
                "rule": names.index(f.rule) if f.rule in names else -1,
                "nodes": index.of(f.origin.split(ORIGINS_BETWEEN)),
                "before": _short(f.before),
                "after": _short(f.after),
            }
            for f in record.fired
        ]
        found.append(
            {
                "stage": record.stage,
                "name": record.label,
                "purpose": record.purpose,
                "ops": [before, after],
                "fired": fired,
            }
        )
        before = after
    return found


def _rules(view: ModelView, index: NodeNumbers) -> list[dict[str, Any]]:
    return [
        {
            "name": rule.name,
            "equation": rule.equation,
            "exact": rule.exact,
            "passes": rule.passes,
            "fired": len(rule.fired),
            "misses": [
                {"nodes": index.of(m.origin.split(ORIGINS_BETWEEN)), "reason": _short(m.reason)}
                for m in rule.misses[:MAX_MISSES]
            ],
        }
        for rule in view.explanation.rules.values()
    ]


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def _launches(view: ModelView) -> list[dict[str, Any]]:
    """Return what runs where: regions of one launch each, and host steps with their reasons."""
    program = view.launching.program
    found: list[dict[str, Any]] = []
    for launch in program.launches:
        numbers = [s.index for s in launch.steps]
        found.append({"text": str(launch), "first": numbers[0], "last": numbers[-1]})
    return found
