"""Times code for any shape beside exact code and ONNX Runtime, at several sizes of each model.

    python -m benchmarks.any_shape                      # every model that is here
    python -m benchmarks.any_shape -k rec_tiny --threads 1

Models of ../shared/models and fetched ones (`make models`) take part where they are there. Code is
compiled first, then all contenders run in turns with a pause before each: threads of ONNX Runtime
spin on after a run.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import monograph
from benchmarks.any_shape_cases import CASES, AnyShapeCase

Feeds = dict[str, Any]
ANY, EXACT, PEER = "any", "exact", "onnxruntime"
PAUSE_SECONDS = 0.08
TURN_SECONDS = 0.04
ROUNDS = 3


@dataclass
class Measured:
    """One model at several sizes."""

    name: str
    times: list[dict[str, float]] = field(default_factory=list)
    """The median time of each contender, for each size."""
    largest_difference: float = 0.0
    variants: int = 0
    guards: list[list[str]] = field(default_factory=list)
    exact_reason: str = ""
    seconds: float = 0.0
    """The time to load, compile and answer the first shape, from nothing."""

    def ratios(self, peer: str) -> list[float]:
        return [t[peer] / t[ANY] for t in self.times if peer in t]

    def as_json(self) -> dict[str, Any]:
        return self.__dict__ | {"ratios": {p: self.ratios(p) for p in (EXACT, PEER)}}


def sessions(path: Path, threads: int, cache: str) -> Iterator[tuple[str, Callable[[Feeds], Any]]]:
    """Return the contenders by name: each runs feeds."""
    import onnxruntime

    for name, specialise in ((ANY, "off"), (EXACT, "now")):
        made = monograph.load(path, specialise=specialise, threads=threads, cache_dir=cache)
        yield name, made.run
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    yield PEER, lambda feeds: peer.run(None, feeds)


class Subject:
    """One model: its contenders, ready to run, and its feeds."""

    def __init__(self, case: AnyShapeCase, path: Path, threads: int, cache: str) -> None:
        self.measured = Measured(case.name)
        started = time.perf_counter()
        session = monograph.load(path, specialise="off", threads=threads, cache_dir=cache)
        self.all_feeds = [case.feeds(session.inputs, dims) for dims in case.sizes]
        session.run(self.all_feeds[0])
        self.measured.seconds = time.perf_counter() - started
        self.runs: dict[str, Callable[[Feeds], Any]] = {}
        results: dict[str, list[Any]] = {}
        for name, run in sessions(path, threads, cache):
            run = session.run if name == ANY else run
            try:
                results[name] = [run(f) for f in self.all_feeds]
            except Exception as e:
                print(f"{case.name}: {name}: {str(e)[:200]}", file=sys.stderr)
                continue
            self.runs[name] = run
        stats = session.stats
        self.measured.variants = stats.get("variants", 0)
        self.measured.guards = stats.get("guards", [])
        self.measured.exact_reason = stats.get("exact_reason", "")
        pairs = zip(results[ANY], results.get(EXACT, results[ANY]), strict=True)
        self.measured.largest_difference = max(_difference(a, b) for a, b in pairs)

    def time(self) -> None:
        for feeds in self.all_feeds:
            taken: dict[str, list[float]] = {name: [] for name in self.runs}
            for _ in range(ROUNDS):
                for name, run in self.runs.items():
                    time.sleep(PAUSE_SECONDS)
                    taken[name] += _turn(run, feeds)
            self.measured.times.append({n: statistics.median(t) for n, t in taken.items()})


def _turn(run: Callable[[Feeds], Any], feeds: Feeds) -> list[float]:
    run(feeds)
    taken: list[float] = []
    end = time.perf_counter() + TURN_SECONDS
    while time.perf_counter() < end or len(taken) < 3:
        started = time.perf_counter()
        run(feeds)
        taken.append(time.perf_counter() - started)
    return taken


def _difference(given: list[Any], expected: list[Any]) -> float:
    """Return the largest difference of floats, relative to the largest element."""
    found = 0.0
    for a, b in zip(given, expected, strict=True):
        if a.shape != b.shape:
            return math.inf
        if a.size and a.dtype.kind in "fiub":
            x, y = a.astype(np.float64), b.astype(np.float64)
            found = max(found, float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-9)))
    return found


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def show(results: list[Measured]) -> None:
    table = Table(title="Times in ms of code for any shape; ratios above 1 mean that it is faster")
    for heading in ("model", "any", "x exact", "x ORT", "variants", "guards", "first s", "diff"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for m in results:
        table.add_row(
            m.name,
            " ".join(f"{t[ANY] * 1e3:.3g}" for t in m.times),
            " ".join(f"{r:.2f}" for r in m.ratios(EXACT)),
            " ".join(f"{r:.2f}" for r in m.ratios(PEER)),
            str(m.variants) if m.variants else m.exact_reason,
            " ".join(str(len(g)) for g in m.guards),
            f"{m.seconds:.2f}",
            f"{m.largest_difference:.0e}",
        )
    console = Console(width=150)
    console.print(table)
    for peer in (EXACT, PEER):
        ratios = [r for m in results if m.variants for r in m.ratios(peer)]
        if ratios:
            mean = geometric_mean(ratios)
            console.print(f"any shape against {peer}: mean {mean:.2f}, worst {min(ratios):.2f}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", nargs="*", default=[], help="words in the names of models")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--guards", action="store_true", help="print the guards of each variant")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("--cache", default="", help="keep compiled code in this folder")
    given = parser.parse_args(arguments)
    subjects = []
    for case in CASES:
        path = case.path()
        if path is None or (given.k and not any(word in case.name for word in given.k)):
            continue
        try:
            subjects.append(Subject(case, path, given.threads, given.cache))
        except Exception as e:
            print(f"{case.name}: {type(e).__name__}: {str(e)[:300]}", file=sys.stderr)
            continue
        print(f"{case.name}: compiled in {subjects[-1].measured.seconds:.2f} s", file=sys.stderr)
        if given.guards:
            _print_guards(subjects[-1].measured)
    for subject in subjects:
        subject.time()
    results = [s.measured for s in subjects]
    show(results)
    if given.json:
        given.json.write_text(json.dumps([m.as_json() for m in results], indent=1))
    return 0


def _print_guards(measured: Measured) -> None:
    for number, guards in enumerate(measured.guards):
        for guard in guards:
            print(f"  {measured.name} {number}: {guard}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
