"""Times single requests after a pause, beside ONNX Runtime: p50 and p90 for several gaps.

    python -m benchmarks.pauses                      # every model, 200 requests per gap
    python -m benchmarks.pauses -k ppocrv6 -n 40     # one model, fewer requests

Each runtime has a process of its own, as a server has. The processes take turns; one sleeps while
the other answers requests, so that neither meets spinning threads of the other. Behind long gaps
they alternate request by request, half a gap apart.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.needs import result_path
from benchmarks.pause_models import MODELS
from benchmarks.run import HERE, SHARED, installed
from monograph.report.commands.bench import MONOGRAPH
from monograph.report.commands.execute import RunRequest
from monograph.report.commands.peers import ONNXRUNTIME, peer_run

GAPS = (0, 1, 10, 50, 200, 500)
"""Pauses before a request in milliseconds."""
SHARED_MODELS = ("ppocrv6_rec_tiny", "tv_mobilenet_v3_small", "hf_bert_sdpa", "silero_vad_v6")
BAR = 1.05
TURN = 20
"""Requests that one process answers before it is the other's turn."""
ALTERNATED = 200
"""The least gap in milliseconds of which half is more than threads spin."""
ALTERNATED_TURN = 5
"""Requests until both start anew, half a gap apart."""
REST_SECONDS = 0.15
"""Threads of ONNX Runtime spin for some 80 ms after a run."""
SIDES = (MONOGRAPH, ONNXRUNTIME)
Milliseconds = list[float]


@dataclass
class Result:
    """The milliseconds of each request, by side and gap."""

    name: str
    taken: dict[str, dict[int, Milliseconds]] = field(
        default_factory=lambda: {side: {} for side in SIDES}
    )

    def percentile(self, side: str, gap: int, which: int) -> float:
        return float(np.percentile(self.taken[side][gap], which))

    def ratio(self, gap: int, which: int) -> float:
        """Return our percentile divided by ONNX Runtime's."""
        own, other = (self.percentile(side, gap, which) for side in SIDES)
        return own / other

    def lines(self) -> Iterator[str]:
        for gap in self.taken[MONOGRAPH]:
            figures = [
                f"{self.percentile(side, gap, which):8.2f}" for which in (50, 90) for side in SIDES
            ]
            ratios = "".join(f"{self.ratio(gap, which):7.2f}" for which in (50, 90))
            yield f"{self.name:28} {gap:5} {''.join(figures)}  {ratios}"


def requests(words: Sequence[str], folder: Path) -> Iterator[tuple[str, RunRequest]]:
    """Yield the recorded models that are there, then the written ones."""
    for name in SHARED_MODELS:
        if (SHARED / name / "model.onnx").exists() and _asked(name, words):
            io = SHARED / name / "io.npz"
            yield name, RunRequest(SHARED / name / "model.onnx", "cpu", archive=io)
    for name, write in MODELS.items():
        if _asked(name, words):
            path = folder / f"{name}.onnx"
            path.write_bytes(write().SerializeToString())
            yield name, RunRequest(path, "cpu")


def _asked(name: str, words: Sequence[str]) -> bool:
    return not words or any(word in name for word in words)


def serve(side: str, request: RunRequest, threads: int, pipe: Connection) -> None:
    """Answer (gap, count) with the milliseconds of so many requests, until None comes."""
    session = request.load(threads=threads)
    feeds = request.inputs(session, lambda _: None).feeds
    other = None if side == MONOGRAPH else peer_run(side, request.model, feeds, threads)
    for _ in range(20):
        _ = session.run(feeds) if other is None else other()
    pipe.send([])
    while (asked := pipe.recv()) is not None:
        gap, count = asked
        taken = []
        for number in range(count + 1):
            if gap:
                time.sleep(gap / 1e3)
            start = time.perf_counter()
            _ = session.run(feeds) if other is None else other()
            # The first request of a turn comes after a longer pause.
            if number:
                taken.append((time.perf_counter() - start) * 1e3)
        pipe.send(taken)


def measure(name: str, request: RunRequest, threads: int, gaps: Sequence[int], n: int) -> Result:
    """Time both processes in turns."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    for side in SIDES:
        pipes[side], theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(side, request, threads, theirs)))
        processes[-1].start()
        theirs.close()
        pipes[side].recv()
    result = Result(name)
    for gap in gaps:
        for side in SIDES:
            result.taken[side][gap] = []
        alternate = gap >= ALTERNATED
        turn = ALTERNATED_TURN if alternate else TURN
        for left in range(n, 0, -turn):
            for side in SIDES:
                time.sleep(gap / 2e3 if alternate else REST_SECONDS)
                pipes[side].send((gap, min(left, turn)))
                if not alternate:
                    result.taken[side][gap] += pipes[side].recv()
            for side in SIDES if alternate else ():
                result.taken[side][gap] += pipes[side].recv()
    for side, process in zip(SIDES, processes, strict=True):
        pipes[side].send(None)
        process.join()
    return result


def save(results: list[Result], threads: int, n: int, folder: Path) -> Path:
    path = result_path(folder, "pauses", platform.machine()).with_suffix(".json")
    found = json.loads(path.read_text())["models"] if path.exists() else {}
    for r in results:
        found[r.name] = {
            str(gap): {
                "ms": {
                    side: {f"p{w}": round(r.percentile(side, gap, w), 3) for w in (50, 90)}
                    for side in SIDES
                },
                "ratio": {f"p{w}": round(r.ratio(gap, w), 3) for w in (50, 90)},
            }
            for gap in r.taken[MONOGRAPH]
        }
    record = {
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "versions": installed((MONOGRAPH, "llvmlite", ONNXRUNTIME)),
        "threads": threads,
        "requests": n,
        "bar": BAR,
        "models": found,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", action="append", default=[], help="only names that contain this")
    parser.add_argument("-n", type=int, default=200, help="requests for each gap")
    parser.add_argument("--gaps", type=int, nargs="+", default=GAPS, help="milliseconds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, help="folder for the JSON file")
    options = parser.parse_args()
    results: list[Result] = []
    print(f"{'':34}{'p50 ms':>16}{'p90 ms':>16}{'own / peer':>16}")
    print(
        f"{'model':28} {'gap':>5} {'own':>8}{'peer':>8}{'own':>8}{'peer':>8}  {'p50':>7}{'p90':>7}"
    )
    with tempfile.TemporaryDirectory() as made:
        for name, request in requests(options.k, Path(made)):
            results.append(measure(name, request, options.threads, options.gaps, options.n))
            print("\n".join(results[-1].lines()), flush=True)
    worst = max(
        (r.ratio(g, w), r.name, g, w) for r in results for g in options.gaps for w in (50, 90)
    )
    print(
        f"highest ratio: {worst[0]:.2f} (p{worst[3]} of {worst[1]} after {worst[2]} ms); bar {BAR}"
    )
    if not options.k or options.results:
        folder = options.results or HERE / "results"
        print(f"written: {save(results, options.threads, options.n, folder).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
