"""`monograph tune`: parsing only. What it does lives in `monograph.report.commands.tune`."""

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
    Values,
)

Target = Annotated[str, typer.Option(metavar="gpu|gpu:N", help="Which GPU to measure on.")]
Mode = Annotated[
    str, typer.Option("--tune", metavar="fast|full", help="Measure the promising rivals, or all.")
]
Cache = Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help="Where results go; tuning.json in the cache directory."),
]


def tune(
    model: Model,
    target: Target = "gpu",
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
    """Measures which kernels are fastest for a model on this machine's GPU, and remembers it.

    Every product, convolution, attention and reduction has several kernels. They are compiled side
    by side and timed on the device; the fastest are kept in a file of JSON that can be read and
    shared. Sessions on the same device, driver and versions use it from then on. What was measured
    before is not measured again.

    Example:  monograph tune model.onnx --precision f16 --dim batch=1
    """
    with reporting(as_json, debug):
        from monograph.report.commands.tune import show_tuned, tune_model

        chosen = {"precision": precision, "tf32": tf32, "tune": mode}
        chosen["tuning_cache"] = None if cache is None else str(cache)
        request = make_request(
            model, target, dim, None, inputs, 0, ranges=input_range, values=value, **chosen
        )
        found = tune_model(request, note)
        show(as_json, found.as_json(), lambda out: show_tuned(out, str(model), found))
