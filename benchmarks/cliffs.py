"""Finds performance cliffs: ops and models that take over 1.1x ONNX Runtime's time.

    python -m benchmarks.cliffs               # every op case, every model
    python -m benchmarks.cliffs -k Pool       # cases whose names contain a word

Both runtimes run in one process on the same threads, in turns. The figures are the best of the
medians of several turns, because other processes can only slow a turn down; what misses the bar
is measured again. Models are those of $MONOGRAPH_MODELS and of ../shared/models.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.cliff_cases import CASES, write_case
from benchmarks.needs import result_path
from benchmarks.run import HERE, SHARED, installed
from monograph.errors import MonographError
from monograph.report.commands.bench import MONOGRAPH
from monograph.report.commands.execute import RunRequest
from monograph.report.commands.peers import ONNXRUNTIME, peer_run
from monograph.report.commands.profile import profile_model

BAR = 1.1
PAUSE_SECONDS = 0.06
"""Threads of ONNX Runtime spin for about 40 ms after a run."""
TURN_SECONDS = 0.06
TURNS = 3
AGAIN = 3
"""Further rounds of turns for a case that misses the bar."""
DEAREST = 3


@dataclass
class Result:
    """The times of one case in seconds, and its dearest steps if it misses the bar."""

    name: str
    own: float
    other: float
    steps: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Our time divided by ONNX Runtime's."""
        return self.own / self.other

    def line(self) -> str:
        figures = f"{self.own * 1e6:10.0f} {self.other * 1e6:10.0f} {self.ratio:7.2f}"
        return f"{self.name:44} {figures}  {'; '.join(self.steps)}"


def requests(words: list[str], folder: Path) -> Iterator[tuple[str, RunRequest]]:
    """Yield the op cases, then the models."""
    for name in CASES:
        if not words or any(w in name for w in words):
            path, archive = write_case(name, folder)
            yield name, RunRequest(path, "cpu", archive=archive)
    roots = [SHARED, *map(Path, filter(None, [os.environ.get("MONOGRAPH_MODELS")]))]
    for path in sorted(p for root in roots if root.is_dir() for p in root.rglob("*.onnx")):
        name = path.parent.name if path.stem == "model" else path.stem
        if not words or any(w in name for w in words):
            io = path.parent / "io.npz"
            yield name, RunRequest(path, "cpu", archive=io if io.exists() else None)


def turn(run: Callable[[], Any]) -> float:
    """Return the median seconds of consecutive runs, after a pause and a run for warm-up."""
    time.sleep(PAUSE_SECONDS)
    run()
    taken: list[float] = []
    end = time.perf_counter() + TURN_SECONDS
    while time.perf_counter() < end or len(taken) < 3:
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def measure(name: str, request: RunRequest, threads: int) -> Result:
    """Time a case in turns, again if it misses the bar."""
    session = request.load(threads=threads)
    feeds = request.inputs(session, lambda _: None).feeds
    other = peer_run(ONNXRUNTIME, request.model, feeds, threads)
    sides = (lambda: session.run(feeds), other)
    for run in sides:
        run()
    result = Result(name, float("inf"), float("inf"))
    for round_ in range(1 + AGAIN):
        if round_ and result.ratio <= BAR:
            break
        for _ in range(TURNS):
            own, peers = (turn(run) for run in sides)
            result.own, result.other = min(result.own, own), min(result.other, peers)
    if result.ratio > BAR:
        result.steps = tuple(dearest(request, threads))
    return result


def dearest(request: RunRequest, threads: int) -> list[str]:
    """Return the slowest steps of a case with their times."""
    found = profile_model(request, lambda _: None, runs=10, threads=threads)
    slowest = sorted(found.steps, key=lambda s: -s.seconds)[:DEAREST]
    return [f"{s.step.region.kind} {s.seconds * 1e6:.0f} us" for s in slowest]


def save(results: list[Result], refused: dict[str, str], threads: int, folder: Path) -> Path:
    path = result_path(folder, "cliffs", platform.machine()).with_suffix(".json")
    record = {
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "versions": installed((MONOGRAPH, "llvmlite", ONNXRUNTIME)),
        "threads": threads,
        "bar": BAR,
        "cases": {r.name: asdict(r) | {"ratio": r.ratio} for r in results},
        "refused": refused,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", action="append", default=[], help="only names that contain this")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=None, help="folder for the JSON file")
    options = parser.parse_args()
    results: list[Result] = []
    refused: dict[str, str] = {}
    print(f"{'case':44} {'own us':>10} {'peer us':>10} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as made:
        for name, request in requests(options.k, Path(made)):
            try:
                results.append(measure(name, request, options.threads))
            except (MonographError, RuntimeError, ValueError) as e:
                refused[name] = str(e).strip().splitlines()[0]
                print(f"{name:44} refused: {refused[name][:100]}")
                continue
            print(results[-1].line(), flush=True)
    missed = sorted((r for r in results if r.ratio > BAR), key=lambda r: -r.ratio)
    print(f"\n{len(missed)} of {len(results)} cases take over {BAR}x ONNX Runtime's time:")
    for result in missed:
        print(result.line())
    if not options.k or options.results:
        folder = options.results or HERE / "results"
        print(f"written: {save(results, refused, options.threads, folder).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
