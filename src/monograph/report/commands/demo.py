"""The command `monograph demo`: a detector is built, run, verified and timed; a report is written.

It needs nothing but the package.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from monograph.report import demo_model
from monograph.report.commands.bench import Bench, bench_model, show_bench
from monograph.report.commands.doctor import Diagnosis, diagnose, show_diagnosis
from monograph.report.commands.execute import (
    Notes,
    RunRequest,
    VerifyResult,
    about_sizes,
    verify_model,
)
from monograph.report.commands.peers import ONNXRUNTIME
from monograph.report.render import tables
from monograph.report.render.console import Output
from monograph.report.view.collect import Wanted, collect
from monograph.report.view.run import report_of
from monograph.runtime.atomic_write import replacing_named
from monograph.runtime.progress import Progress, silent

MODEL, REPORT = "detector.onnx", "report.html"
REPORT_COLUMNS = 120


@dataclass(frozen=True)
class Demo:
    """The results of the demo, and the files that it wrote."""

    model: Path
    report: Path
    nodes: int
    verification: VerifyResult
    bench: Bench
    machine: Diagnosis

    @property
    def ok(self) -> bool:
        return self.verification.ok

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "model": str(self.model),
            "report": str(self.report),
            "nodes": self.nodes,
            "verification": tables.verification_json(str(self.model), self.verification),
            "bench": self.bench.as_json(),
            "machine": self.machine.as_json(),
        }


def run_demo(
    folder: Path,
    note: Notes,
    *,
    size: int = 160,
    seconds: float = 2.0,
    threads: int | None = None,
    progress: Progress = silent,
) -> Demo:
    """Build a detector, compare it with the reference, time it, and write the report."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MODEL
    model = demo_model.build(size)
    with replacing_named(path) as file:
        file.write(model.SerializeToString())
    options = {} if threads is None else {"threads": threads}
    request = RunRequest(path, "cpu", progress=progress, options=options)
    quiet = about_sizes(note)
    verification = verify_model(request, None, quiet)
    peers = [ONNXRUNTIME] if importlib.util.find_spec(ONNXRUNTIME) else []
    bench = bench_model(request, quiet, against=peers, seconds=seconds, threads=threads)
    nodes = len(model.graph.node)
    demo = Demo(path, folder / REPORT, nodes, verification, bench, diagnose())
    with replacing_named(demo.report) as file:
        file.write(report_page(demo, request).encode())
    return demo


def report_page(demo: Demo, request: RunRequest) -> str:
    """Return the report as one HTML page without outside files: that of `monograph view`."""
    view = collect(request, Wanted(threads=request.options.get("threads")), lambda _: None)
    report = report_of(replace(view, bench=demo.bench))
    shown = (
        ("Comparison and times", lambda out: show_demo(out, demo)),
        ("This machine", lambda out: show_diagnosis(out, demo.machine)),
    )
    report.data["texts"] = [[title, _text(show)] for title, show in shown]
    return report.page()


def _text(show: Callable[[Console], None]) -> str:
    """Return what is printed as plain text."""
    out = Output(record=True, width=REPORT_COLUMNS, file=io.StringIO())
    show(out)
    return out.export_text()


def show_demo(out: Console, demo: Demo) -> None:
    """Print the comparison and the times."""
    tables.show_verification(out, demo.verification)
    out.print("")
    show_bench(out, MODEL, demo.bench)


def show_files(out: Console, demo: Demo) -> None:
    """Print the files that the demo wrote, and what to do next."""
    out.print(f"\nreport: {demo.report}", highlight=False)
    out.print(f"model:  {demo.model}", highlight=False)
    out.print(f"next:   monograph inspect {demo.model}", highlight=False)
