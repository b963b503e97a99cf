"""The launches of a model: regions, and the host steps between them. No code is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from monograph.codegen.llvm.module.select import CpuTarget
from monograph.config import make_config
from monograph.errors import ConfigError, FeedError, InferError, MonographError, some_of
from monograph.ir import Graph
from monograph.program.dynamic.stages import StageSplit
from monograph.program.fusion.index_bounds import unproven_addresses
from monograph.program.launch_regions import (
    GraphStep,
    HostStep,
    SplitAtHost,
    kind_of,
    stops,
    summary,
)
from monograph.program.lowering import lower
from monograph.program.program import Program, Step
from monograph.program.work import ExpandedWeights, expanded_weights
from monograph.report.commands.execute import Notes, RunRequest, about_sizes, advising
from monograph.report.render.console import table
from monograph.runtime.counts import DATA_DECIDE
from monograph.targets import optimise_for

if TYPE_CHECKING:
    from monograph.codegen.triton.module.kernel import Work

DEFAULT_ARCH = ("cuda", "sm_90")
"""The architecture whose kernels are counted if the target names none."""


@dataclass(frozen=True)
class Launching:
    """The first program of a model, and its launches."""

    target: str
    program: Program
    kernels: dict[int, int]
    """The number of kernels by step, for the default kernels."""
    ends: tuple[str, ...] = ()
    """The reasons for further programs."""

    @property
    def text(self) -> str:
        return summary(self.program.launches, lambda s: self.kernels.get(s.index, 1), self.ends)

    @property
    def regions(self) -> list[GraphStep]:
        return [x for x in self.program.launches if isinstance(x, GraphStep)]

    @property
    def host(self) -> list[HostStep]:
        return [x for x in self.program.launches if isinstance(x, HostStep)]

    def count(self, region: GraphStep) -> int:
        return sum(self.kernels[s.index] for s in region.steps)


def launching_of_model(request: RunRequest, note: Notes) -> Launching:
    """Return the launches of a model on the request's target, for the sizes of its inputs."""
    config = make_config(target=request.target, **request.options)
    session = replace(request, target="reference", options={}).load()
    made = request.inputs(session, about_sizes(note))
    with advising(made):
        return launching_of(optimise_for(config, session.bound_graph(made.feeds)), config.target)


def try_launching(request: RunRequest, note: Notes) -> Launching | MonographError:
    """Return the launches, or the error if they are unknown: assumed sizes may not fit."""
    try:
        return launching_of_model(request, note)
    except (ConfigError, FeedError) as e:
        if isinstance(e.__cause__, InferError):
            return e  # sizes that an op of the model does not take
        raise  # asked for in a way that cannot be answered
    except MonographError as e:
        return e


def launching_of(graph: Graph, target: str) -> Launching:
    """Return the launches of an optimised graph with known shapes on a target."""
    return _on_gpu(graph, target) if target.startswith("gpu") else _on_cpu(graph, target)


def _on_cpu(graph: Graph, target: str) -> Launching:
    """Return the launches on the CPU: a region is one call of a native function."""
    lowered = lower(graph, CpuTarget())
    kernels = {s.index: 1 for s in lowered.program.steps}
    return Launching(target, lowered.program, kernels, _ends(lowered.split))


def _on_gpu(graph: Graph, target: str) -> Launching:
    from monograph.codegen.triton.control.subprograms import needs_conditions
    from monograph.codegen.triton.module.launch import Arch
    from monograph.codegen.triton.module.select import GpuTarget

    lowered = lower(graph, GpuTarget())
    program = lowered.program
    device = target.partition(":")[2]
    backend = "hip" if device.startswith("gfx") else DEFAULT_ARCH[0]
    name = device if device.startswith(("gfx", "sm_")) else DEFAULT_ARCH[1]
    arch = Arch(backend, name)
    works = {s.index: _works(program, s, arch) for s in program.steps}

    def decided(step: Step) -> bool:
        return any(map(needs_conditions, works[step.index] or ()))

    # HIP has no conditional nodes; of a CUDA driver it is not known how old it is.
    if backend == "hip":
        program = SplitAtHost(GpuTarget().host_reason, False, decided).run(program)
    held = {x.step.index for x in program.launches if isinstance(x, HostStep)}
    kernels = {i: 0 if i in held else _kernels(w) for i, w in works.items()}
    return Launching(target, program, kernels, _ends(lowered.split))


def _works(program: Program, step: Step, arch: Any) -> Sequence[Work] | None:
    """Return the default works of a step; None if no kernel computes it."""
    from monograph.codegen.triton.control.subprograms import host_reason as on_host
    from monograph.codegen.triton.module import select
    from monograph.codegen.triton.module.kernel import GpuContext

    if on_host(step.region) or not select.serves(step.region):
        return None
    return select.candidates(GpuContext(program, step, arch))[0].make()


def _kernels(works: Sequence[Work] | None) -> int:
    """Count the kernels of a step; kernels inside branches and loops count once."""
    return 1 if works is None else sum(map(_count, works))  # compiling it says what is wrong


def _count(work: Work) -> int:
    from monograph.codegen.triton.module.kernel import Branch, RepeatWork

    if not isinstance(work, (Branch, RepeatWork)):
        return 1
    return sum(_count(w) for body in work.bodies for w in body)


def _ends(parts: StageSplit | None) -> tuple[str, ...]:
    """Return the reasons why the host continues after a program, with the ops."""
    where = () if parts is None else stops(parts)
    if parts is None or not where:
        return ()
    rest = "; what follows is compiled and launched when they are known" if parts.waiting else ""
    return (f"{DATA_DECIDE} ({some_of(where)}){rest}",)


def launching_json(found: Launching | MonographError) -> dict[str, Any]:
    if isinstance(found, MonographError):
        return {"problem": str(found)}
    return {
        "target": found.target,
        "summary": found.text,
        "regions": [
            {
                "first": r.steps[0].index,
                "last": r.steps[-1].index,
                "steps": len(r.steps),
                "kernels": found.count(r),
            }
            for r in found.regions
        ],
        "host_steps": [
            {
                "step": h.step.index,
                "op": kind_of(h.step.region),
                "nodes": h.step.nodes,
                "why": h.reason,
            }
            for h in found.host
        ],
        "ends": list(found.ends),
        "bounds_checks": unproven_addresses(found.program),
        "expanded_weights": [asdict(w) for w in expanded_weights(found.program)],
    }


def show_told(
    out: Console, found: Launching | MonographError, target: str | None, note: Notes
) -> None:
    """Print the launches, or a note if they are unknown."""
    if isinstance(found, MonographError):
        note(f"launches on {target} are unknown: {found}")
    else:
        show_launching(out, found)


def expanded_in(found: Launching | MonographError) -> list[ExpandedWeights]:
    """Return the weights that each run decodes or casts; none if the launches are unknown."""
    return [] if isinstance(found, MonographError) else expanded_weights(found.program)


def show_expanded(out: Console, found: Sequence[ExpandedWeights]) -> None:
    """Print the weights that each run decodes or casts; nothing if there are none."""
    if not found:
        return
    rows = table("weights that every run decodes", "ONNX nodes", "bytes", right=(1,))
    for weights in found:
        rows.add_row(escape(some_of(weights.nodes)), f"{weights.bytes:,}")
    out.print(rows)


def show_launching(out: Console, found: Launching) -> None:
    """Print one line; with host steps also a table of all launches."""
    out.print(escape(f"launches on {found.target}: {found.text}"), highlight=False)
    show_expanded(out, expanded_weights(found.program))
    if not found.host:
        return
    rows = table("launches", "", "steps", "kernels", "why", "ONNX nodes", right=(2,))
    for launch in found.program.launches:
        first, last = launch.steps[0].index, launch.steps[-1].index
        span = f"{first}" if first == last else f"{first}-{last}"
        if isinstance(launch, GraphStep):
            rows.add_row("region", span, str(found.count(launch)), "", "")
        else:
            nodes = escape(", ".join(launch.step.nodes))
            rows.add_row(kind_of(launch.step.region), span, "-", escape(launch.reason), nodes)
    out.print(rows)
