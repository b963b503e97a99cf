"""`monograph view`: parsing only. `monograph.report.view` does the work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from monograph.cli.common import make_request, note, reporting, show
from monograph.cli.generate import Positions, measure_folder
from monograph.cli.options import (
    Archive,
    AsJson,
    Debug,
    Dims,
    InputFiles,
    InputRanges,
    Precision,
    Seed,
    Tf32,
    Threads,
    Tune,
    Values,
)
from monograph.errors import ConfigError

Viewed = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="An ONNX file, or a folder with a decoder.", show_default=False
    ),
]
Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE.html", help="The page to write.")
]
ViewTarget = Annotated[
    str | None,
    typer.Option(
        metavar="cpu|gpu|gpu:ARCH",
        help="The target; one without a device does not run.",
        show_default="cpu",
    ),
]
Other = Annotated[
    Path | None,
    typer.Option("--against", metavar="OTHER.json", help="Show what changed since this report."),
]
Svg = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Also write the pictures as SVG files.")
]
Peers = Annotated[
    str, typer.Option(metavar="PEER,PEER", help="Also time these: onnxruntime, openvino.")
]


def view(
    model: Viewed,
    output: Output = Path("report.html"),
    target: ViewTarget = None,
    dim: Dims = None,
    input_: InputFiles = None,
    inputs: Archive = None,
    input_range: InputRanges = None,
    value: Values = None,
    seed: Seed = 0,
    threads: Threads = None,
    precision: Precision = None,
    tf32: Tf32 = None,
    tune: Tune = None,
    run: Annotated[bool, typer.Option(help="Compile and time the model.")] = True,
    verify: Annotated[bool, typer.Option(help="Compare every step with the reference.")] = True,
    peers: Peers = "",
    positions: Positions = None,
    against: Other = None,
    svg: Svg = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write a page that shows a model and a run of it.

    The page is one file without network access: figures, the graph before and after with links
    both ways, each pass with its rewrites and nearest misses, steps with their time and their
    code, the timeline, the memory plan, and the errors of each step. For a folder with a decoder
    they are those of its file on one token after a past; the page has tokens per second by
    position too.

    --json prints the content instead of writing a page; --against compares with such a file.

    Examples:

    monograph view model.onnx -o report.html

    monograph view model.onnx --json > before.json

    monograph view model.onnx --against before.json --svg pictures/
    """
    with reporting(as_json, debug):
        from monograph.generate.discover.folder import find_decoder
        from monograph.report.view.collect import Wanted, can_run
        from monograph.report.view.compare import read_report
        from monograph.report.view.run import (
            make_report,
            with_example,
            write_pictures,
            write_report,
        )

        other = None if against is None else read_report(against)
        decoder = find_decoder(model) if model.is_dir() else None
        if decoder is None and positions is not None:
            raise ConfigError("`--positions` needs a folder with a decoder", given=str(model))
        path = model if decoder is None else decoder.model
        request = make_request(
            path, target, dim, input_, inputs, seed, ranges=input_range, values=value,
            precision=precision, tf32=tf32, tune=tune,
        )  # fmt: skip
        decoding = None
        if decoder is not None:
            if run and can_run(target or "cpu") and target != "gpu:interpreter":
                decoding = measure_folder(model, target, positions, None, threads=threads)
            request = with_example(request, decoder, decoding, note)
        chosen = tuple(p.strip() for p in peers.split(",") if p.strip())
        wanted = Wanted(run=run, verify=run and verify, peers=chosen, threads=threads)
        wanted = replace(wanted, code=run and not as_json)
        report = make_report(request, wanted, note, against=other, decoding=decoding)
        if as_json:
            show(True, report.data, lambda _: None)
            return
        size = write_report(report, output)
        print(f"report: {output} ({size / 1e6:.2f} MB)")
        for picture in write_pictures(report, svg) if svg is not None else ():
            print(f"picture: {picture}")
