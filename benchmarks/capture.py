"""Measures capture and replay on a GPU: what a run costs the host, and what it saves.

    python -m benchmarks.capture                        # the whole set
    python -m benchmarks.capture -k towers --json capture.json

Medians in us. `same`: device tensors at the same addresses; `moved`: inputs and outputs at new ones
each time, both as the host sees them, without waiting for the device. The others are synchronised.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

import monograph
from benchmarks import gpu_models
from benchmarks.gpu_contenders import random_feeds
from monograph.runtime.gpu.cuda_graphs import CudaGraphs, cuda_graphs
from monograph.runtime.gpu.executable import GpuExecutable
from monograph.runtime.gpu.replay import Replay

HERE = Path(__file__).parent
BUILT = HERE.parent / "build" / "benchmarks"
MODELS = ("towers_b1", "towers_b128", "yolov10n", "mobilenet", "llama_1b_linears")
BATCH, ROUNDS = 20, 50
"""Runs are enqueued in batches: the queue of the device must not fill up."""
INPUTS = 100
"""Random inputs on which replay and eager runs have to give the same bits."""


def host_time(run: Callable[[], Any]) -> float:
    """What one run costs the host."""
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(BATCH):
            run()
        times.append((time.perf_counter() - began) / BATCH)
    return statistics.median(times) * 1e6


def synced_time(run: Callable[[], Any], rounds: int = 100) -> float:
    """One run, with the end of the device's work."""
    times = []
    for _ in range(rounds + 5):
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[5:]) * 1e6


def device_time(run: Callable[[], Any]) -> float:
    """One of many runs back to back, by the device's clock."""
    times = []
    for _ in range(15):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)  # so that the host is ahead
        start.record()
        for _ in range(BATCH):
            run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / BATCH)
    return statistics.median(times) * 1e3


class Measured:
    """One model: an executable to run eagerly, and the same to replay."""

    def __init__(self, name: str, tune: str, precision: str) -> None:
        path = gpu_models.find(name, BUILT)
        session = monograph.load(path, target="gpu", tune=tune, precision=precision)
        self.arrays = random_feeds(session)
        self.eager = session.executable(self.arrays)
        if not isinstance(self.eager, GpuExecutable):
            raise TypeError(f"{name} is no single program")
        self.again = GpuExecutable(self.eager.module, self.eager.device)
        self.tensors = {n: torch.from_numpy(x).cuda() for n, x in self.arrays.items()}

    def rows(self) -> dict[str, Any]:
        replay = Replay(self.again, cuda_graphs(0), "require")
        replay.run(self.tensors)
        found: dict[str, Any] = {"kernels": self.eager.kernels}
        found["same_host_us"] = host_time(lambda: replay.run(self.tensors))
        found["moved_host_us"] = host_time(self._moving(replay))
        found["async_host_us"] = host_time(lambda: replay.run_async(self.tensors))
        found["launch_host_us"] = host_time(self._bare(replay))
        found["eager_host_us"] = host_time(lambda: self.eager.run(self.tensors))
        found["replay_us"] = synced_time(lambda: replay.run(self.tensors))
        found["eager_us"] = synced_time(lambda: self.eager.run(self.tensors))
        found["stats"] = replay.stats
        graphs = CudaGraphs(self.eager.device.place)
        graphs.builds = False
        other = Replay(self.again, graphs, "require")
        found["replay_recorded_us"] = synced_time(lambda: other.run(self.tensors))
        found["device_us"] = device_time(lambda: replay.run_async(self.tensors))
        found["device_recorded_us"] = device_time(lambda: other.run_async(self.tensors))
        for way in ("direct", "copy"):
            hosted = Replay(self.again, cuda_graphs(0), "require", host=way)
            found[f"numpy_{way}_us"] = synced_time(lambda r=hosted: r.run(self.arrays))  # type: ignore[misc]
        found["equal_bits"] = self._equal(replay)
        return found

    def _bare(self, replay: Replay) -> Callable[[], Any]:
        """What of a run is the launch of the graph."""
        recorded = replay._recorded
        assert recorded is not None
        stream = replay.graphs.current()
        return lambda: recorded.launch(stream)

    def _moving(self, replay: Replay) -> Callable[[], Any]:
        """Runs whose inputs and outputs are all somewhere else than those of the one before."""
        copies = cycle([{n: t.clone() for n, t in self.tensors.items()} for _ in range(8)])
        held: list[Any] = [None] * 3
        turn = cycle(range(3))

        def run() -> None:
            held[next(turn)] = replay.run(next(copies))

        return run

    def _equal(self, replay: Replay) -> bool:
        rng = np.random.default_rng(0)
        for _ in range(INPUTS):
            feeds = {}
            for name, x in self.arrays.items():
                data = rng.standard_normal(x.shape) if x.dtype.kind == "f" else rng.permutation(x)
                feeds[name] = torch.from_numpy(data.astype(x.dtype)).cuda()
            for a, b in zip(replay.run(feeds), self.eager.run(feeds), strict=True):
                if not torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
                    return False
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", dest="chosen", default="", help="models whose name contains this")
    parser.add_argument("--tune", default="off", choices=("off", "fast", "full"))
    parser.add_argument("--precision", default="f16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for name in MODELS:
        if options.chosen not in name:
            continue
        try:
            found[name] = Measured(name, options.tune, options.precision).rows()
        except Exception as error:  # the others are measured
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
        shown = {k: round(v, 1) if isinstance(v, float) else v for k, v in found[name].items()}
        print(name, json.dumps(shown), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
