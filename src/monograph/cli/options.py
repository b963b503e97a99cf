"""The options and arguments that commands share, each declared once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from monograph.config import CAPTURE, DEBUG_VARIABLE, PRECISIONS, SPECIALISE, TARGETS, TUNING

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
Runnable = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="An ONNX file, or a package written by `compile`.", show_default=False
    ),
]
Benched = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="An ONNX file, a package written by `compile`, or a folder with a decoder.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Debug = Annotated[
    bool,
    typer.Option("--debug", envvar=DEBUG_VARIABLE, help="Show the Python traceback of an error."),
]


def _completing(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return the function that a shell asks for the values of an option."""
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


Target = Annotated[
    str | None,
    typer.Option(
        autocompletion=_completing(TARGETS),
        help=f"The target to run on: {', '.join(TARGETS)}; gpu:1 is the second GPU,"
        " gpu:interpreter needs no GPU and is slow.",
        show_default="cpu",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=0, help="The number of threads; 0 means all cores.", show_default="0"),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(PRECISIONS),
        autocompletion=_completing(PRECISIONS),
        help="The precision of f32 models on a GPU; sums and norms stay in f32.",
        show_default="f32",
    ),
]
Tf32 = Annotated[
    bool | None,
    typer.Option(
        "--tf32/--no-tf32", help="Allow a GPU to round operands of matrix products to TF32."
    ),
]
Tune = Annotated[
    str | None,
    typer.Option(
        "--tune",
        metavar="|".join(TUNING),
        autocompletion=_completing(TUNING),
        help="The GPU kernels to measure: none, the promising candidates, or all.",
        show_default="fast",
    ),
]
Capture = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(CAPTURE),
        autocompletion=_completing(CAPTURE),
        help="Replay GPU runs as one captured graph: if possible, never, or fail without.",
        show_default="auto",
    ),
]
Specialise = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(SPECIALISE),
        autocompletion=_completing(SPECIALISE),
        help="The code for open dimensions: exact code for shapes that come back, made in the"
        " background; the same code for every shape; exact code for each shape.",
        show_default="auto",
    ),
]
LaunchedOn = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="cpu|gpu", help="Also show the launches of a run on this target."
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="The folder that keeps compiled models between processes.",
        show_default="~/.cache/monograph",
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Compile everything, and keep nothing on disk.")
]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="The size of an open dimension; repeatable."),
]
InputFiles = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=FILE.npy", help="The array for one input; repeatable."),
]
Archive = Annotated[
    Path | None,
    typer.Option(
        "--inputs", metavar="FILE.npz", help="The arrays for inputs, with keys NAME or in:NAME."
    ),
]
InputRanges = Annotated[
    list[str] | None,
    typer.Option(
        "--input-range",
        metavar="NAME=LOW:HIGH",
        help="Draw the random numbers of an input from this range; repeatable.",
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
    typer.Option("-p", metavar="PASS{FIELD=VALUE}", help="Set an option of a pass; repeatable."),
]
Disabled = Annotated[
    list[str] | None,
    typer.Option("--disable", metavar="PASS", help="Skip a pass; repeatable."),
]
Seed = Annotated[int, typer.Option(min=0, help="The seed of random inputs.")]

Seconds = Annotated[
    float | None,
    typer.Option(min=0.1, help="The time to measure for, in seconds.", show_default="5.0"),
]

# Options of verify

Against = Annotated[
    str | None,
    typer.Option(
        metavar="reference|onnxruntime|FILE.npz",
        help="The side to compare with; the reference if not given. A file holds outputs"
        " as out:NAME or NAME, and inputs as in:NAME.",
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="OUTPUT", help="Compare only this output; repeatable."),
]
Rtol = Annotated[
    float | None, typer.Option(min=0, help="The relative tolerance, instead of the derived one.")
]
Atol = Annotated[
    float | None, typer.Option(min=0, help="The absolute tolerance, instead of the derived one.")
]
AnyOrder = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OUTPUT",
        help="Allow any order of the rows of this output; repeatable.",
    ),
]
Bisect = Annotated[
    bool,
    typer.Option(
        "--bisect", help="Check the numbers after every pass; name the wrong pass and rule."
    ),
]

PerStep = Annotated[
    bool,
    typer.Option("--per-step", help="Compare every step of compiled code; name the wrong step."),
]

Replay = Annotated[
    bool,
    typer.Option("--replay", help="Compare replayed runs with runs without replay, bit for bit."),
]

# Options of explain

RuleName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Show everything about one rule, or about the rules of a pass."
    ),
]
After = Annotated[
    str | None,
    typer.Option(
        metavar="PASS",
        help="Print the graph after this pass or stage; 'import' is the graph before all passes.",
    ),
]
CostModel = Annotated[
    str | None,
    typer.Option(help="The target whose cost model to use: cpu, gpu.", show_default="cpu"),
]
