"""Finds cliffs of the GPU target: cases that take over 1.1x our CPU target's time.

    python -m benchmarks.gpu_cliffs                  # cases that once were slow: under a minute
    python -m benchmarks.gpu_cliffs -k LSTM          # some of them
    python -m benchmarks.gpu_cliffs --tune fast      # with kernels that are measured first
    python -m benchmarks.gpu_cliffs --all -k Pool    # any op case of `make cliffs`

A run on the GPU takes tensors of the device and is waited for. The figures are medians. The bar
counts where the CPU takes over 200 us; other cases are listed with their times. Outputs of the two
targets are compared loosely, to notice a kernel that is wrong; `make test-gpu` checks numbers.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import monograph
from benchmarks.cliff_cases import CASES, Case, write_case
from benchmarks.needs import result_path
from monograph.errors import MonographError

BAR, COUNTED_SECONDS = 1.1, 200e-6
SECONDS = 0.15
"""Runs of a side take about so long."""
RUNS = 7

_CODES = "uint8[1,197,768] x, float ws, uint8 wz, int8[768,768] w, float wt, int8 wy"


def _trees(count: int, inner: int) -> str:
    """Return a sum of complete binary trees of so many inner nodes, over 16 features."""
    nodes = range(2 * inner + 1)
    lists = {
        "nodes_treeids": [t for t in range(count) for _ in nodes],
        "nodes_nodeids": [*nodes] * count,
        "nodes_featureids": [n % 16 for n in nodes] * count,
        "nodes_values": [(n % 7) / 3 - 1.0 for n in nodes] * count,
        "nodes_modes": ["BRANCH_LEQ" if n < inner else "LEAF" for n in nodes] * count,
        "nodes_truenodeids": [2 * n + 1 if n < inner else 0 for n in nodes] * count,
        "nodes_falsenodeids": [2 * n + 2 if n < inner else 0 for n in nodes] * count,
        "target_treeids": [t for t in range(count) for _ in range(inner + 1)],
        "target_nodeids": [*range(inner, 2 * inner + 1)] * count,
        "target_ids": [0] * (count * (inner + 1)),
        "target_weights": [0.5 * (n % 5) for n in range(inner + 1)] * count,
    }
    given = ", ".join(f"{name}={json.dumps(items)}" for name, items in lists.items())
    return f"ai.onnx.ml.TreeEnsembleRegressor<n_targets=1, {given}>(x)"


EXTRA = {
    "QDQ linear": Case(
        f"{_CODES}, float wu",
        "a = DequantizeLinear(x, ws, wz); b = DequantizeLinear(w, wt, wy); c = MatMul(a, b);"
        "q = QuantizeLinear(c, wu, wz)",
        {"ws": [0.02], "wt": [0.001], "wu": [0.05], "wz": [128], "wy": [0]},
    ),
    "QDQ convolution": Case(
        "float[1,64,56,56] x, float ws, uint8 wz, int8[64,64,3,3] w, float wt, int8 wy, float wu",
        "a = QuantizeLinear(x, ws, wz); b = DequantizeLinear(a, ws, wz);"
        "c = DequantizeLinear(w, wt, wy); d = Conv<pads=[1,1,1,1]>(b, c);"
        "e = QuantizeLinear(d, wu, wz); r = DequantizeLinear(e, wu, wz)",
        {"ws": [0.02], "wt": [0.001], "wu": [0.05], "wz": [128], "wy": [0]},
    ),
    "ScatterElements, sums": Case(
        "float[197,768] x, int64[197,64] i, float[197,64] u",
        'ScatterElements<axis=1, reduction="add">(x, i, u)',
        {"i": (0, 768)},
    ),
    "ScatterND, sums": Case(
        "float[1000,256] x, int64[100,1] i, float[100,256] u",
        'ScatterND<reduction="add">(x, i, u)',
        {"i": (0, 1000)},
    ),
    "tree ensemble": Case("float[1000,16] x", _trees(20, 31)),
}  # fmt: skip
"""Cases that `make cliffs` does not have."""

CHOSEN = (
    *EXTRA, "dynamic int8 linear", "dynamic int8 convolution", "MatMulInteger of two inputs",
    "QLinearMatMul", "QLinearConv", "LSTM", "LSTM of a batch", "GRU", "RNN", "NonMaxSuppression",
    "Unique", "NonZero", "TopK", "ScatterElements", "ScatterND",
)  # fmt: skip


@dataclass
class GpuCliff:
    """The times of one case in seconds."""

    name: str
    gpu: float
    cpu: float
    kernels: int
    seconds: float
    """To load the model on the GPU and run it for the first time."""
    differs: float
    """The largest difference between the targets, over the largest element."""

    @property
    def missed(self) -> bool:
        """True if the GPU takes too long beside the CPU."""
        return self.cpu > COUNTED_SECONDS and self.gpu > BAR * self.cpu

    def line(self) -> str:
        """Return a row of the table."""
        times = f"{self.gpu * 1e6:9.0f} {self.cpu * 1e6:9.0f} {self.gpu / self.cpu:7.2f}"
        return (
            f"{self.name:36} {times} {self.kernels:8} {self.seconds:7.1f} {self.differs:9.1e}"
            f"{'  over the bar' if self.missed else ''}"
        )


def median(run: Callable[[], Any]) -> float:
    """Return the median seconds of a run, after one for warm-up."""
    run()
    taken: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(taken) < RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def difference(given: list[Any], expected: list[Any]) -> float:
    """Return the largest difference of numbers over the largest number; infinity for shapes."""
    worst = 0.0
    for x, y in zip(given, expected, strict=True):
        a, b = (np.asarray(v.cpu() if hasattr(v, "cpu") else v, np.float64) for v in (x, y))
        if a.shape != b.shape:
            return float("inf")
        if a.size:
            worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)))
    return worst


def measure(name: str, path: Path, archive: Path, target: str, tune: str) -> GpuCliff:
    """Time a case on both targets."""
    import torch

    feeds = dict(np.load(archive))
    on_cpu = monograph.load(path)
    expected = on_cpu.run(feeds)
    began = time.perf_counter()
    on_gpu = monograph.load(path, target=target, tune=tune)
    real = torch.cuda.is_available() and target == "gpu"
    place = "cuda" if real else "cpu"
    tensors = {n: torch.from_numpy(x).to(place) for n, x in feeds.items()} if real else feeds

    def run() -> Any:
        made = on_gpu.run(tensors)
        if real:
            torch.cuda.synchronize()
        return made

    made = run()
    seconds = time.perf_counter() - began
    once = target != "gpu"
    gpu = seconds if once else median(run)
    kernels = int(on_gpu.stats["kernels_per_run"])
    cpu = median(lambda: on_cpu.run(feeds))
    return GpuCliff(name, gpu, cpu, kernels, seconds, difference(made, expected))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", action="append", default=[], help="only names that contain this")
    parser.add_argument("--all", action="store_true", help="all op cases of `make cliffs`")
    parser.add_argument("--tune", default="off", help="off, fast or full")
    parser.add_argument("--target", default="gpu", help="gpu, or gpu:interpreter for a dry run")
    parser.add_argument("--results", type=Path, default=None, help="folder for a JSON file")
    options = parser.parse_args()
    CASES.update(EXTRA)
    found: list[GpuCliff] = []
    refused: dict[str, str] = {}
    print(f"{'case':36} {'GPU us':>9} {'CPU us':>9} {'ratio':>7} {'kernels':>8} {'start s':>7}")
    with tempfile.TemporaryDirectory() as made:
        for name in CASES if options.all else CHOSEN:
            if options.k and not any(word in name for word in options.k):
                continue
            path, archive = write_case(name, Path(made))
            try:
                found.append(measure(name, path, archive, options.target, options.tune))
            except (MonographError, RuntimeError, ValueError) as e:
                refused[name] = str(e).strip().splitlines()[0]
                print(f"{name:36} refused: {refused[name][:100]}")
                continue
            print(found[-1].line(), flush=True)
    missed = [c for c in found if c.missed]
    print(f"\n{len(missed)} of {len(found)} cases take over {BAR}x the CPU's time")
    if options.results:
        options.results.mkdir(parents=True, exist_ok=True)
        file = result_path(options.results, "gpu-cliffs", platform.machine()).with_suffix(".json")
        cases = {c.name: asdict(c) for c in found}
        file.write_text(json.dumps({"tune": options.tune, "cases": cases, "refused": refused}))
        print(f"written: {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
