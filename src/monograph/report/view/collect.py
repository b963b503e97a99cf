"""Gathers what the report shows: the graphs, the passes, the steps, a timed run, the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monograph.codegen.llvm.module.compile import kernel_text
from monograph.config import INTERPRETER
from monograph.errors import MonographError
from monograph.frontend.onnx import read_model
from monograph.pipeline import target_cost, target_options
from monograph.program.program import Program, Step
from monograph.report.commands.bench import Bench, bench_model
from monograph.report.commands.bisection import StepsChecked, check_steps, config_of
from monograph.report.commands.doctor import find_gpu
from monograph.report.commands.execute import Notes, RunRequest, advising
from monograph.report.commands.explain import Explanation, explain_graph
from monograph.report.commands.gpu_profile import GpuProfile, profile_on_gpu
from monograph.report.commands.inspect import Inspection, inspect_model
from monograph.report.commands.launch_regions import Launching, launching_of
from monograph.report.commands.profile import Profile, profile_model
from monograph.report.diff.tensors import NodeInfo, read_nodes
from monograph.session import Session

RUNS = 15
"""The number of timed runs; the report shows medians, and the run with the median time."""


@dataclass(frozen=True)
class OnnxGraph:
    """The main graph of a file: its nodes, and the edges between them by position."""

    nodes: tuple[NodeInfo, ...]
    edges: tuple[tuple[int, int], ...]
    closed: frozenset[int]
    """The nodes that no input of the model reaches."""


@dataclass(frozen=True)
class Wanted:
    """The measurements to make. A report without a run needs no compilation."""

    run: bool = True
    verify: bool = True
    code: bool = True
    peers: tuple[str, ...] = ()
    seconds: float = 2.0
    threads: int | None = None


@dataclass(frozen=True)
class ModelView:
    """Everything that a report shows of one model on one target."""

    path: str
    target: str
    inspection: Inspection
    onnx: OnnxGraph
    explanation: Explanation
    launching: Launching
    programs: tuple[Program, ...]
    """The programs of a run; more than one if data decide shapes."""
    session: Session | None = None
    profile: Profile | GpuProfile | None = None
    checks: StepsChecked | None = None
    bench: Bench | None = None
    code: Mapping[int, str] | None = None
    """The generated code of each step, by its number in the run."""
    notes: tuple[str, ...] = ()
    """Facts that could not be shown, and the reasons."""

    @property
    def steps(self) -> list[Step]:
        """The steps of all programs, in the order of the run."""
        return [step for program in self.programs for step in program.steps]

    @property
    def fullest(self) -> tuple[int, Program]:
        """The program that needs the most memory, and the number of its first step."""
        first, found = 0, (0, self.programs[0])
        for program in self.programs:
            if program.peak_bytes > found[1].peak_bytes:
                found = (first, program)
            first += len(program.steps)
        return found


def collect(request: RunRequest, wanted: Wanted, note: Notes) -> ModelView:
    """Import, optimise and lower a model; where wanted, time it and compare its steps."""
    config = config_of(request)
    inspection = inspect_model(request.model)
    plain = replace(request, target="reference", options={}).load()
    made = request.inputs(plain, note)
    feeds = made.feeds
    with advising(made):
        graph = plain.bound_graph(feeds)
    note("optimising and lowering")
    found = explain_graph(graph, config.target, target_cost(config), target_options(config))
    launching = launching_of(found.after, config.target)
    view = ModelView(
        str(request.model),
        config.target,
        inspection,
        onnx_graph(request.model),
        found,
        launching,
        (launching.program,),
    )
    same = replace(request, given=dict(feeds), archive=None)
    if not wanted.run or not can_run(config.target):
        return view
    measure = _measured if config.target == "cpu" else _measured_on_gpu
    return measure(view, same, wanted, note)


def can_run(target: str) -> bool:
    """Return True if this machine can time the steps of a program for a target."""
    kind, _, device = target.partition(":")
    if kind != "gpu" or device == INTERPRETER:
        return True
    return (not device or device.isdecimal()) and find_gpu().usable


def _measured(view: ModelView, request: RunRequest, wanted: Wanted, note: Notes) -> ModelView:
    """Add a timed run, the comparison of its steps, the code and the times of peers."""
    notes: list[str] = []
    options = {} if wanted.threads is None else {"threads": wanted.threads}
    request = replace(request, target="cpu", options={**request.options, **options})
    session = request.load()
    try:
        note(f"timing {RUNS} runs")
        profile = profile_model(request, _silent, runs=RUNS, warm_ups=2)
        programs = tuple(part.program for part in profile.typical.parts)
        view = replace(view, session=session, profile=profile, programs=programs)
        if wanted.verify:
            note("comparing every step with the reference")
            view = replace(view, checks=check_steps(session, request.given or {}))
        if wanted.peers:
            note(f"timing beside {', '.join(wanted.peers)}")
            peers = list(wanted.peers)
            bench = bench_model(request, _silent, against=peers, seconds=wanted.seconds)
            view = replace(view, bench=bench)
    except MonographError as e:
        notes.append(f"not everything was measured: {e.message}")
    if wanted.code:
        view = replace(view, code=_code(view, session))
    return replace(view, notes=tuple(notes))


def _measured_on_gpu(
    view: ModelView, request: RunRequest, wanted: Wanted, note: Notes
) -> ModelView:
    """Add a timed run on a GPU and the code. Steps are compared by `monograph diff`."""
    note(f"timing {RUNS} runs")
    try:
        profile = profile_on_gpu(request, _silent, runs=RUNS, warm_ups=2)
    except MonographError as e:
        return replace(view, notes=(f"nothing was measured: {e.message}",))
    code: dict[int, str] = {}
    for (number, _), source in zip(profile.launches, profile.sources, strict=True):
        if source and wanted.code:
            code[number] = "\n\n".join(filter(None, (code.get(number), source)))
    return replace(view, profile=profile, programs=(profile.program,), code=code)


def _code(view: ModelView, session: Session) -> dict[int, str]:
    """Return the LLVM text of each step's kernel."""
    compiler = session.compiler()
    found, number = {}, 0
    for program in view.programs:
        for step in program.steps:
            threads, winograd = compiler.threads, compiler.winograd
            text = kernel_text(program, step, compiler.features, threads, winograd)
            if text is not None:
                found[number] = text
            number += 1
    return found


def onnx_graph(model: Path) -> OnnxGraph:
    """Return the nodes of a file and the edges between them, by the names of tensors."""
    proto = read_model(model, None).proto
    nodes = read_nodes(proto)
    made = {name: i for i, node in enumerate(proto.graph.node) for name in node.output if name}
    edges = [
        (made[name], i)
        for i, node in enumerate(proto.graph.node)
        for name in (*node.input, *_captured(node))
        if name in made and made[name] != i
    ]
    return OnnxGraph(tuple(nodes), tuple(dict.fromkeys(edges)), _closed(proto.graph))


def _closed(graph: Any) -> frozenset[int]:
    """Return the nodes whose operands are all weights or results of such nodes."""
    weights = {w.name for w in graph.initializer}
    open_names = {p.name for p in graph.input} - weights
    closed = set()
    for i, node in enumerate(graph.node):
        if open_names.isdisjoint((*node.input, *_captured(node))):
            closed.add(i)
        else:
            open_names.update(node.output)
    return frozenset(closed)


def _captured(node: Any) -> list[str]:
    """Return the names that the sub-graphs of a node read."""
    names: list[str] = []
    stack = [a.g for a in node.attribute if a.HasField("g")]
    while stack:
        graph = stack.pop()
        for inner in graph.node:
            names.extend(inner.input)
            stack.extend(a.g for a in inner.attribute if a.HasField("g"))
    return names


def step_edges(programs: Sequence[Program]) -> list[tuple[int, int]]:
    """Return the edges between steps, by their numbers in the run: who reads whose results."""
    edges: dict[tuple[int, int], None] = {}
    first = 0
    for program in programs:
        maker = {v: s.index for s in program.steps for v in s.region.outputs}
        for step in program.steps:
            seen = set()
            stack = list(step.region.inputs)
            while stack:
                value = stack.pop()
                if value in seen:
                    continue
                seen.add(value)
                if value in maker:
                    if maker[value] < step.index:
                        edges[first + maker[value], first + step.index] = None
                else:
                    stack.extend(value.inputs)  # a view or a join is no step
        first += len(program.steps)
    return list(edges)


def _silent(_: str) -> None:
    """Ignore a note that was printed before."""
