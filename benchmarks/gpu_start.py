"""Times starts on a GPU: from nothing, from disk in a second process, and new lengths.

    python -m benchmarks.gpu_start                    # YOLOv10n f16 and a small BERT of open length
    python -m benchmarks.gpu_start --tune fast        # with measured kernels
    python -m benchmarks.gpu_start -k bert --lengths 40

Each start is a process of its own. The clock runs from `monograph.load` to the first answer; torch
and the context of the device are ready before. Both processes must give the same bits. Lengths are
random; the first run of a length is compared with the median of later runs of the same length.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from benchmarks import gpu_models, models
from benchmarks.models import Writer

LONGEST = 512
STEADY = 7
"""Later runs of a length."""
WARM = 4
"""Lengths before those that count: the sizes at which code and graphs are made."""


@dataclass(frozen=True)
class StartCase:
    """A model and how it is loaded."""

    name: str
    precision: str
    specialise: str
    lengths: int = 0
    """The number of new lengths that are run."""


CASES = (
    StartCase("yolov10n", "f16", "now"),
    StartCase("open_bert", "f32", "off", 24),
)


def open_bert(path: Path, layers: int = 4, width: int = 256) -> None:
    """Layers over any number of tokens, without positions."""
    w = Writer()
    x = w.node("Gather", w.weight(8000, width), "ids")
    x = models._blocks(w, x, layers, 0, width, 8)
    shape: Any = [1, "length"]
    w.save(path, {"ids": (TensorProto.INT64, shape)}, w.linear(x, width, width))


def model_file(name: str, folder: Path) -> Path:
    """Return the file of a model; it is written if it is not there."""
    if name != "open_bert":
        return gpu_models.find(name, folder)
    path = folder / f"{name}.onnx"
    if not path.exists():
        open_bert(path)
    return path


def main() -> None:
    """Run every case: two processes each."""
    options = _arguments()
    if options.child:
        print(json.dumps(child(json.loads(options.child))))
        return
    found = []
    with tempfile.TemporaryDirectory() as given:
        folder = Path(options.models or given)
        for case in (c for c in CASES if options.k in c.name):
            asked = {
                "path": str(model_file(case.name, folder)),
                "cache": f"{given}/cache-{case.name}",
                "target": options.target,
                "tune": options.tune,
                "case": {
                    **asdict(case),
                    "lengths": options.lengths
                    if case.lengths and options.lengths
                    else case.lengths,
                },
            }
            starts = [started(asked) for _ in range(2)]
            found.append({"case": case.name, "starts": starts})
            show(case, starts)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    bits = {f["case"]: {s["digest"] for s in f["starts"]} for f in found}
    if wrong := [name for name, digests in bits.items() if len(digests) > 1]:
        sys.exit(f"the processes give other bits: {', '.join(wrong)}")


def with_lengths(case: StartCase, wanted: int) -> StartCase:
    """Return the case with another number of lengths, if its lengths are open and one is wanted."""
    return replace(case, lengths=wanted) if wanted and case.lengths else case


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only cases whose name has this in it")
    parser.add_argument("--target", default="gpu")
    parser.add_argument("--tune", default="off", help="off, fast or full")
    parser.add_argument("--lengths", type=int, default=0, help="the number of new lengths")
    parser.add_argument("--models", default="", help="a folder that keeps the models")
    parser.add_argument("--json", default="", help="a file for the figures")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def started(asked: dict[str, Any]) -> dict[str, Any]:
    """Run a process and return what it has measured."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_start", "--child", json.dumps(asked)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit("a process failed")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(case: StartCase, starts: list[dict[str, Any]]) -> None:
    """Print a line for each process."""
    for name, s in zip(("from nothing", "from disk"), starts, strict=True):
        parts = " ".join(f"{k} {v:.2f}" for k, v in s["seconds"].items())
        print(f"{case.name:10} {case.precision} {name:13} {parts} s  {s['counts']}", flush=True)
        if late := s["late_ms"]:
            print(
                f"{'':10} first runs of {len(late)} lengths: later than steady by median "
                f"{statistics.median(late):.2f} ms, worst {max(late):.2f} ms; "
                f"steady {statistics.median(s['steady_ms']):.2f} ms"
            )


def child(asked: dict[str, Any]) -> dict[str, Any]:
    """Start once, and time it."""
    import torch

    place = torch.device("cpu" if asked["target"] == "gpu:interpreter" else "cuda")
    if place.type == "cuda":
        torch.zeros(1, device=place)
        torch.cuda.synchronize()
    case = StartCase(**asked["case"])
    stages: dict[str, float] = {}
    began = last = time.perf_counter()
    stage = "load"

    def progress(name: str, done: int, total: int) -> None:
        nonlocal stage, last
        now = time.perf_counter()
        stages[stage] = stages.get(stage, 0.0) + now - last
        stage, last = name.partition(" ")[0], now

    import monograph

    session = monograph.load(
        asked["path"],
        asked["target"],
        precision=case.precision,
        specialise=case.specialise,
        cache_dir=asked["cache"],
        tune=asked["tune"],
        progress=progress,
    )
    loaded = time.perf_counter()
    digest = hashlib.sha256()

    def run(length: int) -> float:
        feeds = feeds_of(case, length)
        given = {n: torch.from_numpy(x).to(place) for n, x in feeds.items()}
        if place.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        outputs = session.run(given)
        if place.type == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - start
        for x in outputs:
            digest.update(x.cpu().numpy().tobytes())
        return taken

    run(LONGEST // 4)
    seconds = {"load": loaded - began, "to the first answer": time.perf_counter() - began}
    late, steady = lateness(case, run)
    keys = ("from_disk", "compiled_kernels", "loaded_kernels", "captures", "resizes", "tuned")
    stats = session.stats
    return {
        "seconds": seconds,
        "stages": stages,
        "late_ms": late,
        "steady_ms": steady,
        "counts": {k: stats[k] for k in keys if stats.get(k)},
        "digest": digest.hexdigest(),
        "triton": "triton" in sys.modules,
    }


def lateness(case: StartCase, run: Any) -> tuple[list[float], list[float]]:
    """Return how much later than steady each first run of a length is, and the steady times; ms."""
    draw = random.Random(0)
    lengths = draw.sample(range(2, LONGEST + 1), case.lengths + WARM) if case.lengths else []
    late, steady = [], []
    for number, length in enumerate(lengths):
        first = run(length)
        rest = statistics.median(run(length) for _ in range(STEADY))
        if number >= WARM:
            late.append(1e3 * (first - rest))
            steady.append(1e3 * rest)
    return late, steady


def feeds_of(case: StartCase, length: int) -> dict[str, np.ndarray]:
    """Return inputs: the same ones in every process."""
    draw = np.random.default_rng(length)
    if case.lengths or case.name == "open_bert":
        return {"ids": draw.integers(0, 8000, (1, length))}
    return {"images": draw.random((1, 3, 640, 640), np.float32)}


if __name__ == "__main__":
    main()
