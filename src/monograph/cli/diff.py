"""`monograph diff`: parsing only. `monograph.report.diff` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from monograph.cli.common import CHECK_FAILED, make_request, note, reporting, show
from monograph.cli.options import (
    Archive,
    AsJson,
    Debug,
    Dims,
    InputFiles,
    InputRanges,
    Seed,
    Values,
)
from monograph.errors import ConfigError

First = Annotated[str, typer.Argument(metavar="A", help="One side.", show_default=False)]
Second = Annotated[
    str | None, typer.Argument(metavar="B", help="The other side.", show_default=False)
]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE.html", help="Also write the comparison as a page.")
]
ModelOfBoth = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="MODEL.onnx",
        help="The model of A and B if both are packages or archives.",
    ),
]
Record = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npz", help="Write the inputs and tensors of A, and compare nothing."
    ),
]


def diff(
    a: First,
    b: Second = None,
    dim: Dims = None,
    input_: InputFiles = None,
    inputs: Archive = None,
    input_range: InputRanges = None,
    value: Values = None,
    seed: Seed = 0,
    model: ModelOfBoth = None,
    html: Html = None,
    record: Record = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show where two ways to run a model begin to differ, and what is to blame.

    Both sides run on the same inputs, with fusion as in a normal run. Each tensor that a step
    leaves in memory is compared under its name in the ONNX file: how far the sides are apart, and
    how much each side adds given the tensors before. The first difference is traced to a kernel, a
    rewrite, or a layer of the model, with its ONNX nodes and their line of Python if the exporter
    recorded it. The exit code is 1 if a tensor differs beyond its tolerance.

    A side is MODEL (on the CPU), MODEL@TARGET, MODEL@gpu,precision=f16, a package, an archive of
    arrays (.npz), `onnxruntime`, `@TARGET` or `float`: the model without the roundings of its
    quantised activations. A side without a model takes that of the other side; two packages or
    archives need --model, whose names, nodes and tolerances they are compared by.

    --record writes the tensors of A, for a comparison with another version or machine.

    Examples:

    monograph diff model.onnx @reference

    monograph diff model.onnx onnxruntime --html diff.html

    monograph diff model-int8.onnx model.onnx

    monograph diff model-int8.onnx float

    monograph diff old.mono new.mono --model model.onnx

    monograph diff model.onnx --record before.npz
    """
    with reporting(as_json, debug):
        from monograph.report.diff import run as command
        from monograph.report.diff.html import write_diff
        from monograph.report.diff.show import diff_json, show_diff

        request = make_request(
            Path(a), None, dim, input_, inputs, seed, ranges=input_range, values=value
        )
        if record is not None:
            if any(x is not None for x in (b, html, model)):
                raise ConfigError("`--record` takes one side", hint="leave out all but A")
            made = command.record(a, request, record, note)
            told = {"recorded": str(record), "tensors": len(made.points)}
            show(as_json, told, lambda out: out.print(f"{len(made.points)} tensors: {record}"))
            return
        if b is None:
            raise ConfigError("`monograph diff` compares two sides", hint="name B, or --record")
        found = command.diff_model(a, b, request, note, model)
        if html is not None:
            write_diff(html, found)
        show(as_json, diff_json(found), lambda out: show_diff(out, found))
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)
