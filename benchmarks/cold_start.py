"""Times processes that compile: Ctrl-C during a compilation, and starts together on an empty cache.

    python -m benchmarks.cold_start                   # 12 interrupts, 4 processes together
    python -m benchmarks.cold_start -m model.onnx     # another model

An interrupt comes at one of several moments between the start of `load` and its end. What counts is
the time from the signal until the process is gone.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from benchmarks.needs import result_path
from benchmarks.run import HERE, SHARED, installed
from monograph.report.commands.bench import MONOGRAPH

MODEL = SHARED / "ul_yolov10n_e2e" / "model.onnx"
BAR = 0.3
"""The most seconds from Ctrl-C until the process is gone."""
PROCESS = """
import signal, sys, time
import numpy as np
import monograph

signal.signal(signal.SIGINT, signal.default_int_handler)
session = monograph.load(sys.argv[1], "cpu", cache_dir=sys.argv[2])
feeds = {
    i.name: np.ones([d if isinstance(d, int) else 8 for d in i.shape], i.dtype.numpy)
    for i in session.inputs
}
print("ready", flush=True)
while time.time() < float(sys.argv[3]):
    time.sleep(0.001)
start = time.perf_counter()
session.run(feeds)
print(time.perf_counter() - start, session.stats["from_disk"], flush=True)
"""
"""A process that says when it is ready, and compiles at a time."""
MOMENTS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Moments of an interrupt, as parts of the time of a compilation."""


@dataclass(frozen=True)
class Interrupt:
    """A signal so many seconds after a compilation began, and those until the process was gone."""

    after: float
    took: float
    code: int


def start(model: Path, cache: str, at: float, stack: ExitStack) -> subprocess.Popen[str]:
    """Start a process that compiles a model at a time."""
    command = [sys.executable, "-W", "ignore", "-c", PROCESS, str(model), cache, str(at)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    return stack.enter_context(process)


def interrupt(model: Path, after: float) -> Interrupt:
    """Interrupt a compilation so many seconds after it began."""
    with tempfile.TemporaryDirectory() as cache, ExitStack() as stack:
        process = start(model, cache, 0.0, stack)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after)
        sent = time.perf_counter()
        process.send_signal(signal.SIGINT)
        code = process.wait()
        return Interrupt(after, time.perf_counter() - sent, code)


def together(model: Path, count: int) -> list[tuple[float, bool]]:
    """Return the seconds of a first run in processes that start together, and who found code."""
    with tempfile.TemporaryDirectory() as cache, ExitStack() as stack:
        at = time.time() + 1.0 + 0.7 * count
        made = [start(model, cache, at, stack) for _ in range(count)]
        told = [p.communicate()[0].split() for p in made]
        return [(float(seconds), found != "0") for _, seconds, found in told]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=MODEL)
    parser.add_argument(
        "-n", "--processes", type=int, default=4, help="processes that start together"
    )
    parser.add_argument(
        "--results", type=Path, default=HERE / "results", help="folder for the JSON"
    )
    options = parser.parse_args()
    ((alone, _),) = together(options.model, 1)
    print(f"one process compiles in {alone:.2f} s")
    cut = [interrupt(options.model, part * alone) for part in MOMENTS]
    for one in cut:
        late = "  over the bar" if one.took > BAR else ""
        print(
            f"interrupt after {one.after:5.2f} s: gone in {one.took:.3f} s, code {one.code}{late}"
        )
    several = together(options.model, options.processes)
    compiled = sum(not found for _, found in several)
    slowest = max(seconds for seconds, _ in several)
    print(
        f"{options.processes} together: {compiled} compiled, the last is ready in {slowest:.2f} s"
    )
    record = {
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "versions": installed((MONOGRAPH, "llvmlite")),
        "model": options.model.parent.name,
        "alone": alone,
        "bar": BAR,
        "interrupts": [asdict(one) for one in cut],
        "together": {"seconds": [s for s, _ in several], "compiled": compiled},
    }
    path = result_path(options.results, "cold-start", platform.machine()).with_suffix(".json")
    path.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
