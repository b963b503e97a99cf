"""`monograph tune`: parsing only. `report.commands.tune` does the work."""

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

Target = Annotated[str, typer.Option(metavar="gpu|gpu:N", help="The GPU to measure on.")]
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
    """Measure the fastest kernels for a model on this machine's GPU, and store the choice.

    Matrix products, convolutions, attention and reductions have several candidate kernels. This
    command compiles and times them, and stores the fastest in a JSON file that you can read and
    share. Later sessions on the same device, driver and versions use the file. Known measurements
    are not repeated.

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
