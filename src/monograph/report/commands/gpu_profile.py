"""The command `monograph profile` on a GPU: the time of every step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from monograph.errors import ConfigError
from monograph.ir import Array
from monograph.program.launch_regions import stops
from monograph.program.lowering import lower
from monograph.program.program import Program
from monograph.program.work import step_work
from monograph.report.commands.bench import Peaks
from monograph.report.commands.execute import Notes, RunRequest, advising
from monograph.report.commands.profile import (
    StepTime,
    Timed,
    kinds_json,
    rates_json,
    rates_text,
    show_kinds,
)
from monograph.report.render.console import table
from monograph.report.render.tables import made_text, nodes_text, seconds_text
from monograph.runtime.progress import until_ready

if TYPE_CHECKING:
    from monograph.codegen.triton.module.kernel import Work
    from monograph.runtime.gpu.executable import GpuExecutable

HOW = (
    "a profile runs eagerly, nothing of it is captured: times of steps are taken between events,"
    " launch by launch; kernels do not overlap there, and a gap includes the event itself"
)


@dataclass(frozen=True)
class GpuProfile(Timed):
    """The steps of a model on a GPU, timed."""

    device: str
    precision: str
    launches: tuple[tuple[int, str], ...]
    """The step number and the kernel name of each launch."""
    gaps: tuple[float, ...]
    """The idle seconds of the device before each step."""
    graph_seconds: float | None
    """The seconds of a run as one graph; None if there is no graph."""
    stamps: Array
    """Nanoseconds [run, launch, begin or end] from the beginning of each run."""
    streams: tuple[int, ...]
    """The stream of each launch in a run as one graph."""
    sources: tuple[str, ...]
    """The Triton source of each launch; "" for calls of libraries and copies."""
    program: Program

    @property
    def gap_seconds(self) -> float:
        return sum(self.gaps)

    @property
    def typical(self) -> Array:
        """Return the stamps of the run with the median time."""
        ends = self.stamps[:, :, 1].max(axis=1, initial=0)
        chosen: Array = self.stamps[np.argsort(ends, kind="stable")[(len(ends) - 1) // 2]]
        return chosen

    def kernels(self, number: int) -> list[str]:
        return [name for step, name in self.launches if step == number]


def profile_on_gpu(
    request: RunRequest, note: Notes, *, runs: int = 30, warm_ups: int = 3
) -> GpuProfile:
    """Time every launch of a model on a device."""
    session = request.load()  # says what is missing, before anything imports torch
    from monograph.runtime.gpu import profiling
    from monograph.runtime.gpu.target import GpuBackend
    from monograph.runtime.gpu.tensors import torch_type

    side = session.gpu
    if not isinstance(side, GpuBackend):
        raise ConfigError(
            "a profile needs a device to run on", expected="gpu", given=session.config.target
        )
    made = request.inputs(session, note)
    feeds = made.feeds
    with until_ready(request.progress):
        with advising(made):
            graph = session.optimised_graph(feeds)
        lowered = lower(graph, side.rules)
        executable = side.compiled(lowered.program)
    profiling.check_timeable(executable, () if lowered.split is None else stops(lowered.split))
    ports = profiling.ports_of(executable, feeds)
    stamps = profiling.time_launches(executable, ports, runs, warm_ups)
    precision = session.config.precision
    kind = torch_type({t.name: t for t in _float_types()}[precision])
    ceilings = profiling.measure_ceilings(executable.device, kind)
    works = executable.module.works
    gaps = profiling.median_gaps(stamps)
    numbers = [b.position for b in works]
    return GpuProfile(
        _steps(executable, stamps),
        Peaks(ceilings.flops_per_second, ceilings.bytes_per_second),
        executable.device.name,
        precision,
        tuple((b.position, _kernel_name(b)) for b in works),
        tuple(
            sum(g for g, n in zip(gaps, numbers, strict=True) if n == i)
            for i in range(len(executable.program.steps))
        ),
        _graph_seconds(executable, ports, session.config.capture),
        stamps,
        tuple(b.stream for b in works),
        tuple(_source(b.work) for b in works),
        executable.program,
    )


def _graph_seconds(executable: GpuExecutable, ports: Any, capture: str) -> float | None:
    """Return the seconds of a whole run as one graph; None with `capture="off"`."""
    from monograph.runtime.gpu import profiling

    found = None if capture == "off" else profiling.time_graph(executable, ports)
    if capture == "require" and found is None:
        raise ConfigError(
            "the run cannot be timed as one graph",
            given=executable.device.name,
            hint="leave out --capture require: steps are timed eagerly in any case",
        )
    return found


def _float_types() -> tuple[Any, ...]:
    from monograph.ir.dtype import bf16, f16, f32

    return f32, f16, bf16


def _kernel_name(bound: Any) -> str:
    """Return the name of a kernel, as the vendor's profiler shows it."""
    from monograph.codegen.triton.module.kernel import Call
    from monograph.codegen.triton.module.launch import Launch
    from monograph.runtime.gpu.build.compiler import named

    if isinstance(bound.work, Launch):
        return named(bound.work.source, bound.step.region.kind)
    return bound.work.name if isinstance(bound.work, Call) else type(bound.work).__name__.lower()


def _source(work: Work) -> str:
    """Return the text of a kernel; "" for work of other kinds."""
    from monograph.codegen.triton.module.launch import Launch

    return work.source if isinstance(work, Launch) else ""


def _steps(executable: GpuExecutable, stamps: Array) -> tuple[StepTime, ...]:
    """Return the steps of the program with the times of their launches."""
    taken = np.median(stamps[..., 1] - stamps[..., 0], axis=0) / 1e9
    positions = np.array([b.position for b in executable.module.works], int)
    found = []
    for number, step in enumerate(executable.program.steps):
        seconds = float(taken[positions == number].sum())
        work = step_work(executable.program, step)
        found.append(StepTime(number, step, True, seconds, (seconds,), work))
    return tuple(found)


def profile_json(path: str, target: str, found: GpuProfile) -> dict[str, Any]:
    return {
        "model": path,
        "target": target,
        "device": found.device,
        "precision": found.precision,
        "runs": len(found.stamps),
        "launches": len(found.launches),
        "graph_seconds": found.graph_seconds,
        "step_seconds": found.step_seconds,
        "gap_seconds": found.gap_seconds,
        "how": HOW,
        "captured": False,
        "peaks": asdict(found.peaks),
        "steps": [_step_json(found, s) for s in found.steps],
        "kinds": kinds_json(found),
    }


def _step_json(found: GpuProfile, timed: StepTime) -> dict[str, Any]:
    return {
        "step": timed.number,
        "kind": timed.step.region.kind,
        "kernels": found.kernels(timed.number),
        "nodes": timed.step.nodes,
        "reads": [str(v.type) for v in timed.step.region.inputs],
        "makes": [str(v.type) for v in timed.step.region.outputs],
        "seconds": timed.seconds,
        "share": found.share(timed.seconds),
        "gap_seconds": found.gaps[timed.number],
        **rates_json(found, timed.work, timed.seconds),
    }


def show_profile(out: Console, found: GpuProfile, top: int) -> None:
    """Print the slowest steps, the kinds and a summary."""
    slowest = sorted(found.steps, key=lambda s: -s.seconds)
    shown = slowest[:top] if top else list(found.steps)
    title = f"{len(found.steps)} steps in {found.precision} on {escape(found.device)}"
    title += f", the {len(shown)} slowest first" if top else ", in their order"
    columns = ("step", "kind", "ONNX nodes", "makes", "launches", "time", "share")
    rows = table(
        title, *columns, "GFLOP/s", "GB/s", "of peak", "gap", right=(0, 4, 5, 6, 7, 8, 9, 10)
    )
    for timed in shown:
        rows.add_row(*_row(found, timed))
    if left := [s for s in found.steps if s not in shown]:
        rest = sum(s.seconds for s in left)
        share = f"{found.share(rest):.1%}"
        rows.add_row("", f"{len(left)} more", "", "", "", seconds_text(rest), share)
    out.print(rows)
    show_kinds(out, found)
    _show_summary(out, found)


def _row(found: GpuProfile, timed: StepTime) -> list[str]:
    return [
        str(timed.number),
        escape(timed.step.region.kind),
        escape(nodes_text(timed.step.nodes)),
        escape(made_text(timed.step)),
        str(len(found.kernels(timed.number))),
        seconds_text(timed.seconds),
        f"{found.share(timed.seconds):.1%}",
        *rates_text(timed.work, timed.seconds, found.floor(timed.work)),
        seconds_text(found.gaps[timed.number]),
    ]


def _show_summary(out: Console, found: GpuProfile) -> None:
    out.print(
        f"medians of {len(found.stamps)} runs: {seconds_text(found.step_seconds)} in"
        f" {len(found.launches)} launches, {seconds_text(found.gap_seconds)} between them"
    )
    if found.graph_seconds is not None:
        out.print(f"as one graph, without events: {seconds_text(found.graph_seconds)} a run")
    out.print(HOW)
    out.print(
        f"peaks measured here: {found.peaks.flops_per_second / 1e12:.1f} TFLOP/s"
        f" ({found.precision}), {found.peaks.bytes_per_second / 1e9:.0f} GB/s"
    )


def trace_events(path: str, found: GpuProfile) -> list[dict[str, Any]]:
    """Return the run with the median time as Chrome events, one per launch."""
    from monograph.report.render.trace import block, metadata

    events = [metadata("process_name", 0, path), metadata("thread_name", 0, found.device)]
    for (number, kernel), (begin, end) in zip(found.launches, found.typical, strict=True):
        timed = found.steps[number]
        name = f"{number} {timed.step.region.kind}"
        if timed.step.nodes:
            name += f": {nodes_text(timed.step.nodes, 40)}"
        arguments = {
            "step": number,
            "kernel": kernel,
            "onnx_nodes": timed.step.nodes,
            "makes": made_text(timed.step),
            "median_us": timed.seconds * 1e6,
            **rates_json(found, timed.work, timed.seconds),
        }
        events.append(block(name, timed.step.region.kind, 0, int(begin), int(end), 0, arguments))
    return events
