"""Memory of a model beside its peer: how much a process grows by loading it and running it.

    python -m benchmarks.memory                     # YOLOv10n of ../shared/models, 20 runs
    python -m benchmarks.memory model.onnx --runs 5

Every row comes from a process of its own. "total" is all that is resident after the runs. The
others are growth since the library was imported (`from monograph import load`, `import
onnxruntime`): "loaded" before the first run, "now" after the last, "own" the part of that which no
file backs, and "most" at the worst moment. Monograph is measured without a cache, while it fills
one, and from it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

SHARED = Path(__file__).parent.parent.parent / "shared" / "models"
DEFAULT = SHARED / "ul_yolov10n_e2e" / "model.onnx"
FIGURES = {"VmRSS": "now", "RssAnon": "own", "VmHWM": "most"}
COLUMNS = ("loaded", "now", "own", "most", "total")
MEGABYTE = 1 << 20

Run = Callable[[dict[str, Any]], object]


def resident() -> dict[str, int]:
    """Bytes of this process that are in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {FIGURES[k]: int(v.split()[0]) * 1024 for k, v in pairs if k in FIGURES}


def open_monograph(path: Path, threads: int, cache: str) -> Run:
    import monograph

    session = monograph.load(path, target="cpu", threads=threads, cache_dir=cache)
    return session.run


def open_onnxruntime(path: Path, threads: int, _: str) -> Run:
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


IMPORTS = {"monograph": "monograph.session", "onnxruntime": "onnxruntime"}
"""Imports before anything is counted; `import monograph` alone imports nothing yet."""
OPENERS = {"monograph": open_monograph, "onnxruntime": open_onnxruntime}


def child(options: argparse.Namespace) -> None:
    """Measures one library in this process; prints what it has grown by as JSON."""
    feeds = dict(np.load(options.feeds))
    importlib.import_module(IMPORTS[options.library])
    before = resident()
    run = OPENERS[options.library](options.model, options.threads, options.cache)
    loaded = resident()
    for _ in range(options.runs):
        run(feeds)
    after = resident()
    grown = {name: after[name] - before[name] for name in ("now", "own")}
    grown["most"] = after["most"] - before["now"]
    grown["loaded"] = loaded["now"] - before["now"]
    grown["total"] = after["now"]
    print(json.dumps(grown))


def measure(options: argparse.Namespace, library: str, feeds: str, cache: str) -> dict[str, int]:
    command = [sys.executable, "-m", "benchmarks.memory", str(options.model), "--library", library]
    command += ["--feeds", feeds, "--cache", cache]
    command += ["--runs", str(options.runs), "--threads", str(options.threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def random_feeds(model: Path) -> dict[str, np.ndarray]:
    """Inputs as `monograph bench` draws them."""
    import monograph
    from monograph.report.commands.input_files import draw_inputs

    return draw_inputs(monograph.load(model, target="reference")).feeds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", default=DEFAULT)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print figures in bytes as JSON")
    for hidden in ("--library", "--feeds", "--cache"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        child(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        feeds = f"{folder}/feeds.npz"
        np.savez(feeds, allow_pickle=False, **random_feeds(options.model))
        cache = f"{folder}/cache"
        rows = {"onnxruntime": measure(options, "onnxruntime", feeds, "")}
        rows["monograph, no cache"] = measure(options, "monograph", feeds, "")
        rows["monograph, compiles"] = measure(options, "monograph", feeds, cache)
        rows["monograph, from disk"] = measure(options, "monograph", feeds, cache)
    if options.json:
        print(json.dumps(rows))
        return
    table = Table(title=f"Memory in MB, {options.runs} runs of {options.model.parent.name}")
    table.add_column("library")
    for heading in COLUMNS:
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        figures = (row[h] for h in COLUMNS)
        table.add_row(name, *(f"{x / MEGABYTE:.1f}" for x in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
