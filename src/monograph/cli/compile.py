"""`monograph compile` and `monograph tune`: parsing only. `report.commands` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from monograph.cli.common import make_request, note, reporting, show
from monograph.cli.options import (
    Archive,
    AsJson,
    Debug,
    Dims,
    InputRanges,
    Model,
    Precision,
    Tf32,
    Threads,
    Tune,
    Values,
)
from monograph.cli.size_sets import sets_of
from monograph.config import INSTRUCTION_SETS

_SETS = ", ".join(INSTRUCTION_SETS)
Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE.mono", help="The package to write.")
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="cpu|gpu|gpu:ARCH",
        help="The target to compile for; gpu:sm_90 needs torch and triton, but no GPU.",
        show_default="cpu",
    ),
]
CpuIsa = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"The instruction set to compile for; the host must have it: {_SETS}.",
        show_default="the widest",
    ),
]

OldFeatures = Annotated[str | None, typer.Option("--features", hidden=True)]
"""The old name of --cpu-isa. It warns for one release."""


def compile_(
    model: Model,
    output: Output,
    target: Target = None,
    threads: Threads = None,
    cpu_isa: CpuIsa = None,
    features: OldFeatures = None,
    precision: Precision = None,
    tf32: Tf32 = None,
    tune: Tune = None,
    dim: Dims = None,
    inputs: Archive = None,
    input_range: InputRanges = None,
    value: Values = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compile a model ahead of time into a package, one file that loads without the model.

    The package holds native code for one instruction set and one number of threads. Open dimensions
    that are given no size stay open: the code runs any shape. With --dim for all of them it is
    exact, for one set of shapes or several: --dim batch=1,4 compiles for both sizes.
    `monograph.load`, `run` and `bench` take the package instead of the model. Loading checks the
    file, but it runs code: trust a package like a shared library.

    With --target gpu:sm_90 (sm_80, gfx942, ...) the package holds the default kernels for GPUs of
    that architecture. With --target gpu it holds the kernels that are fastest on this machine's
    GPU. Run it with --target gpu.

    Examples:

    monograph compile model.onnx -o model.mono --dim batch=1,4

    monograph compile model.onnx -o model.mono --target gpu:sm_90 --precision f16
    """
    with reporting(as_json, debug):
        from monograph.report.commands.compile import compile_model, show_compiled

        gpu = {"precision": precision, "tf32": tf32, "tune": tune}
        requests = [
            make_request(
                model, target, sizes, None, inputs, 0, ranges=input_range, values=value, **gpu
            )
            for sizes in sets_of(dim or [])
        ]
        isa = {"cpu_isa": cpu_isa, "features": features}
        chosen = {name: value for name, value in isa.items() if value is not None}
        found = compile_model(requests, output, note, threads=threads, **chosen)
        show(as_json, found.as_json(), lambda out: show_compiled(out, str(model), found))


TuneTarget = Annotated[str, typer.Option(metavar="gpu|gpu:N", help="The GPU to measure on.")]
Mode = Annotated[
    str,
    typer.Option(
        "--tune",
        metavar="fast|full",
        help="The kernels to measure: the promising candidates, or all.",
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.json",
        help="The file for results; tuning.json in the cache directory if not given.",
    ),
]


def tune(
    model: Model,
    target: TuneTarget = "gpu",
    mode: Mode = "full",
    precision: Precision = None,
    tf32: Tf32 = None,
    cache: Cache = None,
    dim: Dims = None,
    inputs: Archive = None,
    input_range: InputRanges = None,
    value: Values = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Measure the fastest kernels for a model on this machine's GPU, and store the choice.

    Matrix products, convolutions, attention and reductions have several candidate kernels. This
    command compiles and times them, and stores the fastest in a JSON file that you can read and
    share. Later sessions on the same device, driver and versions use the file. Known measurements
    are not repeated.

    Example:  monograph tune model.onnx --precision f16 --dim batch=1
    """
    with reporting(as_json, debug):
        from monograph.report.commands.compile import show_tuned, tune_model

        chosen = {"precision": precision, "tf32": tf32, "tune": mode}
        chosen["tuning_cache"] = None if cache is None else str(cache)
        request = make_request(
            model, target, dim, None, inputs, 0, ranges=input_range, values=value, **chosen
        )
        found = tune_model(request, note)
        show(as_json, found.as_json(), lambda out: show_tuned(out, str(model), found))
