"""`monograph bench`: parsing only. `report.commands.bench` and `bench_sizes` do the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from monograph.cli.common import make_request, note, reporting, show, sizes_from
from monograph.cli.generate import BenchLength, Positions, bench_folder, refuse_options
from monograph.cli.options import (
    Archive,
    AsJson,
    Benched,
    Capture,
    Debug,
    InputFiles,
    InputRanges,
    Precision,
    Seconds,
    Seed,
    Specialise,
    Target,
    Tf32,
    Threads,
    Tune,
    Values,
)
from monograph.cli.size_sets import bench_sets
from monograph.config import make_config

if TYPE_CHECKING:
    from monograph.report.commands.execute import RunRequest

Against = Annotated[
    str,
    typer.Option(metavar="PEER,PEER", help="Also time these: onnxruntime, openvino."),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=SIZES",
        help="The size of an open dimension, or several: 4 | 1,4,16 | 32..960 | 320..960:32;"
        " repeatable.",
    ),
]
Sizes = Annotated[
    int | None,
    typer.Option(min=1, help="The number of sizes to take from a range.", show_default="8"),
]
USUAL_SIZES = 8


def bench(
    model: Benched,
    target: Target = None,
    against: Against = "",
    seconds: Seconds = None,
    threads: Threads = None,
    dim: Dims = None,
    sizes: Sizes = None,
    specialise: Specialise = None,
    input_: InputFiles = None,
    inputs: Archive = None,
    input_range: InputRanges = None,
    value: Values = None,
    seed: Seed = 0,
    precision: Precision = None,
    tf32: Tf32 = None,
    tune_: Tune = None,
    capture: Capture = None,
    positions: Positions = None,
    max_length: BenchLength = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Time a model, and other runtimes on the same threads and inputs.

    The runtimes take turns, so that noise of the machine affects all of them equally: the ratios
    are more reliable than the times. For a folder with a decoder it times decoding steps, with
    --positions tokens in the cache.

    With several sizes in --dim, one session serves them all: the first run with each size, and the
    runs after it. --sizes of a range are taken, evenly spread; ranges of several dimensions advance
    together. The code is that for any shape; --specialise now times exact code instead.

    Examples:

    monograph bench model.onnx --against onnxruntime,openvino --threads 2

    monograph bench model.onnx --dim batch=1 --dim width=32..960 --against onnxruntime

    monograph bench llama/ --positions 16,1000
    """
    with reporting(as_json, debug):
        gpu = {"precision": precision, "tf32": tf32, "tune": tune_, "capture": capture}
        given: dict[str, Any] = {"--input": input_, "--inputs": inputs}
        if model.is_dir():
            given |= {"--against": against, "--seconds": seconds, "--seed": seed, "--dim": dim}
            given |= {"--input-range": input_range, "--value": value}
            given |= {"--sizes": sizes, "--specialise": specialise}
            refuse_options("a folder", given, "give its ONNX file to time that as a plain model")
            bench_folder(model, target, positions, max_length, as_json, threads=threads, **gpu)
            return
        steps = {"--positions": positions, "--max-length": max_length}
        refuse_options("a model file", steps, "give the folder of a decoder to time its steps")
        chosen = bench_sets(dim or [], sizes or USUAL_SIZES)
        options = {**gpu, "specialise": specialise}
        if chosen.sets:
            refuse_options("several sizes", given, "arrays have one size: give --dim one, too")
            options["specialise"] = specialise or _for_any_shape(target)
        else:
            refuse_options("one size", {"--sizes": sizes}, "give a range: --dim NAME=LOW..HIGH")
        request = make_request(
            model,
            target,
            chosen.fixed,
            input_,
            inputs,
            seed,
            ranges=input_range,
            values=value,
            **options,
        )
        peers = [p.strip() for p in against.split(",") if p.strip()]
        timing: dict[str, Any] = {"against": peers, "seconds": seconds or 5.0, "threads": threads}
        if chosen.sets:
            _bench_sizes(request, [sizes_from(s) for s in chosen.sets], timing, as_json)
        else:
            _bench_one(request, timing, as_json)


def _for_any_shape(target: str | None) -> str | None:
    """Return the option for code of any shape, unless the environment asks for other code.

    Code that is replaced in the background would change between two runs that are compared.
    """
    config = make_config(target=target)
    return "off" if config.specialise == "auto" and config.compiles_any_shape else None


def _bench_one(request: RunRequest, timing: dict[str, Any], as_json: bool) -> None:
    from monograph.report.commands.bench import bench_model, show_bench

    found = bench_model(request, note, **timing)
    show(as_json, found.as_json(), lambda out: show_bench(out, str(request.model), found))


def _bench_sizes(
    request: RunRequest, sets: list[dict[str, int]], timing: dict[str, Any], as_json: bool
) -> None:
    from monograph.report.commands.bench_sizes import bench_sizes, show_sizes

    found = bench_sizes(request, sets, note, **timing)
    show(as_json, found.as_json(), lambda out: show_sizes(out, str(request.model), found))
