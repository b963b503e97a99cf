"""`monograph demo` and `monograph doctor`: parsing only. `monograph.report` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from monograph.cli.common import CHECK_FAILED, note, reporting, show
from monograph.cli.options import AsJson, Debug, Seconds, Threads

if TYPE_CHECKING:
    from rich.console import Console

Folder = Annotated[
    Path, typer.Option(metavar="FOLDER", help="The folder to write the model and the report to.")
]
Open = Annotated[bool, typer.Option("--open", help="Open the report in a browser.")]


def demo(
    folder: Folder = Path("monograph-demo"),
    seconds: Seconds = None,
    threads: Threads = None,
    open_: Open = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Build a small detector, run it, check it against the reference, time it, write a report.

    It needs no model and no other package. The detector has the architecture of YOLOv10n, random
    weights and images of 160 x 160 pixels. Where ONNX Runtime is installed, it is timed too. The
    exit code is 1 if an output differs.

    Example:  monograph demo --folder /tmp/demo --open
    """
    with reporting(as_json, debug):
        from monograph.report.commands.demo import run_demo, show_demo, show_files
        from monograph.report.render.progress import compile_bar

        found = run_demo(
            folder, note, seconds=seconds or 2.0, threads=threads, progress=compile_bar()
        )

        def both(out: Console) -> None:
            show_demo(out, found)
            show_files(out, found)

        show(as_json, found.as_json(), both)
        if open_:
            typer.launch(found.report.absolute().as_uri())
        if not found.ok:
            raise typer.Exit(CHECK_FAILED)


def doctor(as_json: AsJson = False, debug: Debug = False) -> None:
    """Show what this machine can run, and why a GPU is not used.

    It looks at the CPU's instruction set, the threads and the quota of the container, the cache
    of compiled models, the GPU with torch and triton, and optional packages. It ends with advice.
    The exit code is 1 if the CPU target does not work.

    Example:  monograph doctor --json
    """
    with reporting(as_json, debug):
        from monograph.report.commands.doctor import diagnose, show_diagnosis

        found = diagnose()
        show(as_json, found.as_json(), lambda out: show_diagnosis(out, found))
        if not found.ok:
            raise typer.Exit(CHECK_FAILED)
