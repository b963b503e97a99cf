"""`monograph profile`: parsing only. What it does lives in `monograph.report.profile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from monograph.cli_common import make_request, note, reporting, show
from monograph.cli_options import (
    Archive,
    AsJson,
    Capture,
    Debug,
    Dims,
    InputFiles,
    Model,
    Precision,
    Seed,
    Tf32,
    Threads,
    Tune,
)
from monograph.config import make_config
from monograph.errors import ConfigError

if TYPE_CHECKING:
    from monograph.report.execute import Request

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

    *time* goes on from when the step before was over until the last thread is done, so that the
    times of all steps add up to the run. *of peak* is the least time that this machine would need
    (by operations, or by bytes, whichever takes longer; measured here) beside the time taken: low
    figures with much time are where to look. *waiting* is what threads spend on each other: work
    that does not divide evenly, and barriers.

    With --target gpu, *time* is that of a step's launches on the device, between events, and *gap*
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
        from monograph.report.execute import check_folder

        target = make_config(target=target).target
        check_folder(trace)
        request = make_request(model, target, dim, input_, inputs, seed, **gpu)
        if target.partition(":")[0] == "gpu":
            _on_gpu(request, target, top, trace, runs, warm_ups, as_json)
        elif target == "cpu":
            _on_cpu(request, threads, top, trace, runs, warm_ups, as_json)
        else:
            raise ConfigError("only compiled code is profiled", expected="cpu | gpu", given=target)


def _on_cpu(
    request: Request,
    threads: int | None,
    top: int,
    trace: Path | None,
    runs: int,
    warm_ups: int,
    as_json: bool,
) -> None:
    from monograph.report.profile import profile_json, profile_model, show_profile
    from monograph.report.trace import write_trace

    path = str(request.model)
    found = profile_model(request, note, runs=runs, warm_ups=warm_ups, threads=threads)
    if trace is not None:
        write_trace(trace, path, found)
        note(f"wrote {trace}: open it in https://ui.perfetto.dev")
    show(as_json, profile_json(path, found), lambda out: show_profile(out, found, top))


def _on_gpu(
    request: Request,
    target: str,
    top: int,
    trace: Path | None,
    runs: int,
    warm_ups: int,
    as_json: bool,
) -> None:
    from monograph.report import gpu_profile
    from monograph.report.trace import write_events

    path = str(request.model)
    found = gpu_profile.profile_on_gpu(request, note, runs=runs, warm_ups=warm_ups)
    if trace is not None:
        other = {"model": path, "target": target, "device": found.device}
        write_events(trace, gpu_profile.trace_events(path, found), other)
        note(f"wrote {trace}: open it in https://ui.perfetto.dev")
    show(
        as_json,
        gpu_profile.profile_json(path, target, found),
        lambda out: gpu_profile.show_profile(out, found, top),
    )
