"""The options and arguments of the command line, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from monograph.config import CAPTURE, DEBUG_VARIABLE, PRECISIONS, TARGETS, TUNING

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
Runnable = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="An ONNX file, or a package of `compile`.", show_default=False
    ),
]
Benched = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="An ONNX file, a package of `compile`, or a folder with a decoder.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Debug = Annotated[
    bool, typer.Option("--debug", envvar=DEBUG_VARIABLE, help="Show tracebacks of errors.")
]
Target = Annotated[
    str | None,
    typer.Option(
        help=f"What runs the model: {', '.join(TARGETS)}; gpu:1 (the second),"
        " gpu:interpreter (without a GPU, slow).",
        show_default="cpu",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=0, help="Threads to run on; 0 for all there are.", show_default="0"),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(PRECISIONS),
        help="What a GPU computes f32 models in; sums and norms stay in f32.",
        show_default="f32",
    ),
]
Tf32 = Annotated[
    bool | None,
    typer.Option("--tf32/--no-tf32", help="Let a GPU round operands of products to TF32."),
]
Tune = Annotated[
    str | None,
    typer.Option(
        "--tune",
        metavar="|".join(TUNING),
        help="How a GPU's kernels are chosen: by default, by measuring some rivals, or all.",
        show_default="fast",
    ),
]
Capture = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(CAPTURE),
        help="Whether runs are captured and replayed as one launch; require: or fail.",
        show_default="auto",
    ),
]
LaunchedOn = Annotated[
    str | None,
    typer.Option("--target", metavar="cpu|gpu", help="Show how runs on this are launched."),
]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Size of an open dimension; repeatable."),
]
InputFiles = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=FILE.npy", help="Array for one input; repeatable."),
]
Archive = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE.npz", help="Arrays for inputs, keyed NAME or in:NAME."),
]
InputRanges = Annotated[
    list[str] | None,
    typer.Option(
        "--input-range",
        metavar="NAME=LOW:HIGH",
        help="Draw the numbers of an input from this range; repeatable.",
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--value", metavar="NAME=NUMBER", help="Fill an input with one number; repeatable."
    ),
]
PassSettings = Annotated[
    list[str] | None,
    typer.Option(
        "-p", metavar="PASS{FIELD=VALUE}", help="Set options of a pass of the pipeline; repeatable."
    ),
]
Disabled = Annotated[
    list[str] | None,
    typer.Option("--disable", metavar="PASS", help="Leave a pass out; repeatable."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the inputs that are made at random.")]

Seconds = Annotated[
    float | None, typer.Option(min=0.1, help="How long to measure.", show_default="5.0")
]

# Of verify

Against = Annotated[
    str | None,
    typer.Option(
        metavar="reference|onnxruntime|FILE.npz",
        help="The other side: the reference unless told, which itself needs another. A file"
        " holds out:NAME (or NAME), and in:NAME for the inputs.",
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="OUTPUT", help="Compare this output, not all; repeatable."),
]
Rtol = Annotated[
    float | None, typer.Option(min=0, help="Relative tolerance, instead of the derived one.")
]
Atol = Annotated[
    float | None, typer.Option(min=0, help="Absolute tolerance, instead of the derived one.")
]
AnyOrder = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OUTPUT",
        help="Rows of this output may come in another order, as near-ties do; repeatable.",
    ),
]
Bisect = Annotated[
    bool,
    typer.Option("--bisect", help="Check the numbers behind every pass; name what broke them."),
]

PerStep = Annotated[
    bool,
    typer.Option("--per-step", help="Compare every step of compiled code; name the wrong one."),
]

Replay = Annotated[
    bool,
    typer.Option("--replay", help="Compare replayed runs with runs that are not, bit for bit."),
]

# Of explain

RuleName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="All about one rule, or about a pass's rules."),
]
After = Annotated[
    str | None,
    typer.Option(
        metavar="PASS",
        help="Print the graph behind this pass or stage ('import': before all); diffable.",
    ),
]
CostModel = Annotated[
    str | None,
    typer.Option(help="Whose cost model decides: cpu, gpu.", show_default="cpu"),
]
