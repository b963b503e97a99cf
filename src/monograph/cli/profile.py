"""`monograph profile`: parsing only. `report.commands.profile` does the work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from monograph.cli.common import make_request, note, reporting, show
from monograph.cli.options import (
    Archive,
    AsJson,
    Capture,
    Debug,
    Dims,
    InputFiles,
    InputRanges,
    Model,
    Precision,
    Seed,
    Specialise,
    Tf32,
    Threads,
    Tune,
    Values,
)
from monograph.config import make_config
from monograph.errors import ConfigError

if TYPE_CHECKING:
    from monograph.report.commands.execute import RunRequest

Top = Annotated[
    int,
    typer.Option(
        min=0, help="The number of steps to show, the slowest first; 0 shows all in order."
    ),
]
Runs = Annotated[
    int, typer.Option(min=1, help="The number of timed runs; figures are their medians.")
]
WarmUps = Annotated[int, typer.Option(min=0, help="The number of runs before the timed ones.")]
Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help="Write the run with the median time as a Chrome trace."),
]
Target = Annotated[
    str | None,
    typer.Option(metavar="cpu|gpu", help="The target to run on.", show_default="cpu"),
]


def profile(
    model: Model,
    target: Target = None,
    top: Top = 20,
    trace: Trace = None,
    runs: Runs = 30,
    warm_ups: WarmUps = 3,
    threads: Threads = None,
    dim: Dims = None,
    specialise: Specialise = None,
    input_: InputFiles = None,
    inputs: Archive = None,
    input_range: InputRanges = None,
    value: Values = None,
    seed: Seed = 0,
    precision: Precision = None,
    tf32: Tf32 = None,
    tune: Tune = None,
    capture: Capture = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the time of every step of a run.

    A step is one kernel, with the ONNX nodes that were fused into it. On the CPU the model runs as
    one native function; in a profile its threads also read a clock around each step (20 ns).

    "time" is the time from the end of the step before to the end of the step, so that all times
    add up to the run. "of peak" is the shortest possible time of the step (for its operations or
    its bytes, at the peaks measured here) divided by its time. Look at steps with much time and a
    low "of peak". "waiting" is the share of time that threads wait for each other.

    --specialise off times the code that serves every shape, at the sizes of --dim.

    With --target gpu, "time" is the time of a step's launches on the device, and "gap" is the idle
    time before them. The steps run without a captured graph and do not overlap; the time of a
    whole run is measured with a graph, except with --capture off.

    Open the file of --trace in https://ui.perfetto.dev or chrome://tracing. It has a row for each
    thread and a block for each step.

    Examples:

    monograph profile model.onnx --top 10

    monograph profile model.onnx --inputs recorded.npz --threads 2 --trace run.json

    monograph profile model.onnx --specialise off --dim width=320

    monograph profile model.onnx --target gpu --precision f16 --trace run.json
    """
    with reporting(as_json, debug):
        gpu = {"precision": precision, "tf32": tf32, "tune": tune, "capture": capture}
        from monograph.report.commands.execute import check_folder

        target = make_config(target=target).target
        check_folder(trace)
        request = make_request(
            model,
            target,
            dim,
            input_,
            inputs,
            seed,
            ranges=input_range,
            values=value,
            specialise=specialise,
            **gpu,
        )
        asked = _Asked(request, top, trace, runs, warm_ups, as_json)
        if target.partition(":")[0] == "gpu":
            _on_gpu(asked, target)
        elif target == "cpu":
            _on_cpu(asked, threads)
        else:
            raise ConfigError(
                "`profile` needs a target that compiles", expected="cpu | gpu", given=target
            )


@dataclass(frozen=True)
class _Asked:
    """The options of a profile on any target."""

    request: RunRequest
    top: int
    trace: Path | None
    runs: int
    warm_ups: int
    as_json: bool

    @property
    def path(self) -> str:
        return str(self.request.model)

    def tell_trace(self) -> None:
        note(f"wrote {self.trace}: open it in https://ui.perfetto.dev")


def _on_cpu(asked: _Asked, threads: int | None) -> None:
    from monograph.report.commands.profile import profile_json, profile_model, show_profile
    from monograph.report.render.trace import write_trace

    found = profile_model(
        asked.request, note, runs=asked.runs, warm_ups=asked.warm_ups, threads=threads
    )
    if asked.trace is not None:
        write_trace(asked.trace, asked.path, found)
        asked.tell_trace()
    document = profile_json(asked.path, found)
    show(asked.as_json, document, lambda out: show_profile(out, found, asked.top))


def _on_gpu(asked: _Asked, target: str) -> None:
    from monograph.report.commands.gpu_profile import (
        profile_json,
        profile_on_gpu,
        show_profile,
        trace_events,
    )
    from monograph.report.render.trace import write_events

    found = profile_on_gpu(asked.request, note, runs=asked.runs, warm_ups=asked.warm_ups)
    if asked.trace is not None:
        other = {"model": asked.path, "target": target, "device": found.device}
        write_events(asked.trace, trace_events(asked.path, found), other)
        asked.tell_trace()
    document = profile_json(asked.path, target, found)
    show(asked.as_json, document, lambda out: show_profile(out, found, asked.top))
