"""`monograph profile`: parsing only. What it does lives in `monograph.report.commands.profile`."""

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
    typer.Option(min=0, help="Show the N slowest steps, slowest first; 0: all, as they run."),
]
Runs = Annotated[int, typer.Option(min=1, help="Timed runs; figures are their medians.")]
WarmUps = Annotated[int, typer.Option(min=0, help="Runs before those, not counted.")]
Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help="Write the run of median time as a Chrome trace."),
]
Target = Annotated[
    str | None,
    typer.Option(metavar="cpu|gpu", help="What runs the model.", show_default="cpu"),
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
    """Shows where the time of a run goes, step by step.

    A step is one kernel, with the ONNX nodes that were fused into it. On the CPU the model still
    runs as one native function; only in a profile do threads read a clock before and after each
    step (20 ns).

    The column "time" goes on from when the step before was over until the last thread is done, so
    that the times of all steps add up to the run. "of peak" is the least time that this machine
    would need (by operations, or by bytes, whichever takes longer; measured here) beside the time
    taken: low figures with much time are where to look. "waiting" is what threads spend on each
    other: work that does not divide evenly, and barriers.

    With --target gpu, "time" is that of a step's launches on the device, between events, and "gap"
    what the device idles before them. A profile runs eagerly, and kernels do not overlap in it: the
    time of a whole run is taken from a graph of the same launches (not with --capture off).

    Open the file that --trace writes in https://ui.perfetto.dev or chrome://tracing: a row for each
    thread, a block for each step.

    Examples:

    monograph profile model.onnx --top 10

    monograph profile model.onnx --inputs recorded.npz --threads 2 --trace run.json

    monograph profile model.onnx --target gpu --precision f16 --trace run.json
    """
    with reporting(as_json, debug):
        gpu = {"precision": precision, "tf32": tf32, "tune": tune, "capture": capture}
        from monograph.report.commands.execute import check_folder

        target = make_config(target=target).target
        check_folder(trace)
        request = make_request(
            model, target, dim, input_, inputs, seed, ranges=input_range, values=value, **gpu
        )
        asked = _Asked(request, top, trace, runs, warm_ups, as_json)
        if target.partition(":")[0] == "gpu":
            _on_gpu(asked, target)
        elif target == "cpu":
            _on_cpu(asked, threads)
        else:
            raise ConfigError("only compiled code is profiled", expected="cpu | gpu", given=target)


@dataclass(frozen=True)
class _Asked:
    """What a profile is asked for, on any target."""

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
