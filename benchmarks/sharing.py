"""Times callers that share one session: runs per second beside ONNX Runtime.

    python -m benchmarks.sharing                          # every model, eight callers
    python -m benchmarks.sharing -k mobile --callers 4    # one model, fewer callers

The sides are our session with its default threads, our session with one thread, and ONNX Runtime
with its default threads. Each has a process of its own; the processes take turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.needs import result_path
from benchmarks.pauses import requests
from benchmarks.run import HERE, installed
from monograph.report.commands.bench import MONOGRAPH
from monograph.report.commands.execute import RunRequest
from monograph.report.commands.peers import ONNXRUNTIME, peer_run
from monograph.runtime.cpu.threads import available_threads

ONE_THREAD = "monograph, threads=1"
SIDES = (MONOGRAPH, ONE_THREAD, ONNXRUNTIME)
REST_SECONDS = 0.15
"""Threads of ONNX Runtime spin for some 80 ms after a run."""


@dataclass
class Result:
    """Runs per second of each turn, by side."""

    name: str
    rates: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def best(self, side: str) -> float:
        """Return the rate of the best turn: other processes can only slow a turn down."""
        return max(self.rates[side])

    def line(self) -> str:
        rates = "".join(f"{self.best(side):12.1f}" for side in SIDES)
        return f"{self.name:28}{rates}{self.best(MONOGRAPH) / self.best(ONE_THREAD):10.2f}"


def run_together(run: Callable[[], Any], callers: int, seconds: float) -> float:
    """Return the runs per second of so many threads that call `run` again and again."""
    start_line = threading.Barrier(callers + 1)
    counts = [0] * callers
    stop = 0.0

    def call(number: int) -> None:
        start_line.wait()
        while time.perf_counter() < stop:
            run()
            counts[number] += 1

    threads = [threading.Thread(target=call, args=(k,)) for k in range(callers)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    stop = start + seconds
    start_line.wait()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def serve(side: str, request: RunRequest, pipe: Connection) -> None:
    """Answer (callers, seconds) with runs per second, until None comes."""
    cores = available_threads()
    session = request.load(threads=1 if side == ONE_THREAD else cores)
    feeds = request.inputs(session, lambda _: None).feeds
    if side == ONNXRUNTIME:
        run = peer_run(side, request.model, feeds, cores)
    else:
        run = lambda: session.run(feeds)  # noqa: E731
    for _ in range(10):
        run()
    pipe.send(0.0)
    while (asked := pipe.recv()) is not None:
        pipe.send(run_together(run, *asked))


@contextmanager
def serving(request: RunRequest) -> Iterator[dict[str, Connection]]:
    """Start a process for each side, one after another; end them at the end."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    with ExitStack() as stack:
        for side in SIDES:
            pipes[side], theirs = context.Pipe()
            process = context.Process(target=serve, args=(side, request, theirs))
            process.start()
            stack.callback(process.join)
            stack.callback(pipes[side].send, None)
            theirs.close()
            pipes[side].recv()
        yield pipes


def measure(name: str, request: RunRequest, callers: int, seconds: float, turns: int) -> Result:
    """Time the sides in turns."""
    result = Result(name)
    with serving(request) as pipes:
        for _ in range(turns):
            for side, pipe in pipes.items():
                time.sleep(REST_SECONDS)
                pipe.send((callers, seconds))
                result.rates[side].append(pipe.recv())
    return result


def save(results: list[Result], options: argparse.Namespace, folder: Path) -> Path:
    path = result_path(folder, "sharing", platform.machine()).with_suffix(".json")
    record = {
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "versions": installed((MONOGRAPH, "llvmlite", ONNXRUNTIME)),
        "cores": available_threads(),
        "callers": options.callers,
        "runs per second": {
            r.name: {side: round(r.best(side), 1) for side in SIDES} for r in results
        },
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", action="append", default=[], help="only names that contain this")
    parser.add_argument("--callers", type=int, default=8, help="threads that share a session")
    parser.add_argument("-s", "--seconds", type=float, default=1.0, help="seconds of a turn")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--results", type=Path, help="folder for the JSON file")
    options = parser.parse_args()
    results: list[Result] = []
    print(f"{'runs/s':28}{'default':>12}{'one thread':>12}{'peer':>12}{'own/one':>10}")
    with tempfile.TemporaryDirectory() as made:
        for name, request in requests(options.k, Path(made)):
            results.append(measure(name, request, options.callers, options.seconds, options.turns))
            print(results[-1].line(), flush=True)
    if not options.k or options.results:
        folder = options.results or HERE / "results"
        print(f"written: {save(results, options, folder).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
