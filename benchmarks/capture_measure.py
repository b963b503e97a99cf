"""One model, captured and not: what runs cost, and whether they agree to the bit."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from benchmarks.capture_models import YOLO, Subject

BATCH = 20
"""Runs are enqueued in batches: the queue of the device must not fill up."""
ROUND_SECONDS = 1.0
"""The seconds that all contenders of one comparison take turns, about."""
ROUNDS = (5, 60)
"""At least, and at most."""
WARM_UPS = 20
"""Runs on the same arrays before they are timed: what comes back often is treated as such."""
TOWERS = ("towers_b1", "towers_b128")
Run = Callable[[], Any]


def short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]


@dataclass
class Measured:
    """One model in two sessions."""

    subject: Subject
    options: argparse.Namespace

    def __post_init__(self) -> None:
        import torch

        from benchmarks.gpu_contenders import random_feeds

        self.torch = torch
        began = time.perf_counter()
        self.replayed = self._load("auto")
        self.eager = self._load("off")
        self.arrays = self.subject.recorded() or random_feeds(self.replayed)
        assert self.replayed.gpu is not None
        self.place = self.replayed.gpu.place
        self.on_device = self.place.type == "cuda"
        self.tensors = self._tensors(self.arrays)
        for session in (self.replayed, self.eager):
            for _ in range(3):
                session.run(self.tensors)
        self.seconds = time.perf_counter() - began

    def _load(self, capture: str) -> Any:
        import monograph

        o = self.options
        precision = "f32" if self.subject.small else self.subject.precision
        tuning = {"tuning_cache": str(o.tuning)} if o.tuning else {}
        return monograph.load(
            self.subject.path(),
            o.target,
            tune=o.tune,
            precision=precision,
            capture=capture,
            **tuning,
        )

    def _tensors(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        from_numpy = self.torch.from_numpy
        return {n: from_numpy(x.copy()).to(self.place) for n, x in arrays.items()}

    def parts(self) -> Iterator[dict[str, Any]]:
        """Return what is found, piece by piece: a crash leaves the pieces before it."""
        yield {"seconds_to_make": self.seconds, **self._stats()}
        yield self._host_times()
        yield self._whole_runs()
        if self.subject.name in (*TOWERS, YOLO) and self.on_device:
            yield self._beside_torch()
        if self.subject.name in (*TOWERS, YOLO) or self.options.tiny:
            yield self._from_numpy()
        yield self._bits()
        yield self._stats()

    def _stats(self) -> dict[str, Any]:
        stats = self.replayed.stats
        wanted = (
            "captures",
            "replays",
            "rebinds",
            "staged_copies",
            "fallbacks",
            "host_steps",
            "streams",
        )
        found = {name: stats.get(name) for name in wanted}
        found |= {"launches_per_run": stats["launches_per_run"]}
        return {"stats": found, "kernels": self.eager.stats["kernels_per_run"]}

    # The parts

    def _host_times(self) -> dict[str, Any]:
        """Return what a run costs the host, and whether moving costs more than parameters."""
        runs = {
            "same": lambda: self.replayed.run(self.tensors),
            "moved": self._moving(),
            "eager": lambda: self.eager.run(self.tensors),
        }
        runs["moved"]()
        before = self._stats()["stats"]
        taken = self._interleaved({n: self._batch(r) for n, r in runs.items()})
        after = self._stats()["stats"]
        copies = sum((after["staged_copies"] or {}).values()) - sum(
            (before["staged_copies"] or {}).values()
        )
        return {
            **{f"{name}_host_us": us for name, us in taken.items()},
            "copies_when_moved": copies,
            "captures_when_moved": (after["captures"] or 0) - (before["captures"] or 0),
            "rebinds_when_moved": (after["rebinds"] or 0) - (before["rebinds"] or 0),
        }

    def _moving(self) -> Run:
        """Runs whose inputs and outputs are all somewhere else than those of the one before."""
        copies = cycle([self._tensors(self.arrays) for _ in range(8)])
        held: list[Any] = [None] * 3
        turn = cycle(range(3))

        def run() -> None:
            held[next(turn)] = self.replayed.run(next(copies))

        return run

    def _whole_runs(self) -> dict[str, Any]:
        """Replayed against eager, each run waited for, and many of them queued."""
        replayed, eager = (
            lambda: self.replayed.run(self.tensors),
            lambda: self.eager.run(self.tensors),
        )
        synced = self._interleaved({"r": self._waited(replayed), "e": self._waited(eager)})
        queued = self._interleaved({"r": self._queued(replayed), "e": self._queued(eager)})
        return {
            "replay_synced_us": synced["r"],
            "eager_synced_us": synced["e"],
            "replay_queued_us": queued["r"],
            "eager_queued_us": queued["e"],
        }

    def _beside_torch(self) -> dict[str, Any]:
        from benchmarks.gpu_contenders import Problem

        try:
            problem = Problem(self.subject.path(), False, "off", None, "default")
            other = problem.eager().run
            for _ in range(5):
                other()
            replayed = lambda: self.replayed.run(self.tensors)  # noqa: E731
            synced = self._interleaved({"r": self._waited(replayed), "t": self._waited(other)})
            queued = self._interleaved({"r": self._queued(replayed), "t": self._queued(other)})
        except Exception as error:  # torch's own trouble is none of ours
            return {"torch_failed": short(error)}
        return {
            "torch_synced_us": synced["t"],
            "torch_queued_us": queued["t"],
            "torch_ratio_synced": synced["t"] / synced["r"],
            "torch_ratio_queued": queued["t"] / queued["r"],
        }

    def _from_numpy(self) -> dict[str, Any]:
        """Arrays of the host both ways, there when a run returns, beside tensors waited for.

        The same arrays in every run, and others in every run, which nothing can be known of.
        """
        for _ in range(WARM_UPS):
            self.replayed.run(self.arrays)
        taken = self._interleaved(
            {
                "numpy": self._returned(lambda: self.replayed.run(self.arrays)),
                "fresh": self._fresh(),
                "tensors": self._waited(lambda: self.replayed.run(self.tensors)),
            }
        )
        fetched = self.replayed.stats.get("pinned_input_runs")
        return {
            "pinned_input_runs": fetched,
            **{f"{name}_synced_us": us for name, us in taken.items()},
        }

    def _fresh(self) -> Callable[[], float]:
        """Runs on arrays that were made right before, which is not counted."""

        def measure() -> float:
            arrays = {name: x.copy() for name, x in self.arrays.items()}
            return self._returned(lambda: self.replayed.run(arrays))()

        return measure

    def _bits(self) -> dict[str, Any]:
        """Tell whether replayed and eager runs agree to the bit, on random inputs."""
        wrong: list[int] = []
        count = 2 if self.options.tiny else self.options.inputs
        for seed in range(count):
            feeds = self._tensors(varied(self.arrays, seed))
            pairs = zip(self.replayed.run(feeds), self.eager.run(feeds), strict=True)
            if not all(self._same(a, b) for a, b in pairs):
                wrong.append(seed)
        return {"inputs": count, "wrong_inputs": wrong, "equal_bits": not wrong}

    def _same(self, a: Any, b: Any) -> bool:
        if not isinstance(a, self.torch.Tensor):
            return bool(a == b)
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        byte = self.torch.uint8
        return bool(self.torch.equal(a.reshape(-1).view(byte), b.reshape(-1).view(byte)))

    # Clocks

    def _sync(self) -> None:
        if self.on_device:
            self.torch.cuda.synchronize(self.place)

    def _batch(self, run: Run) -> Callable[[], float]:
        """Seconds of the host for one of some runs that are only enqueued."""

        def measure() -> float:
            self._sync()
            began = time.perf_counter()
            for _ in range(self._count):
                run()
            taken = time.perf_counter() - began
            self._sync()
            return taken / self._count

        return measure

    def _returned(self, run: Run) -> Callable[[], float]:
        def measure() -> float:
            self._sync()
            began = time.perf_counter()
            run()
            return time.perf_counter() - began

        return measure

    def _waited(self, run: Run) -> Callable[[], float]:
        def measure() -> float:
            self._sync()
            began = time.perf_counter()
            run()
            self._sync()
            return time.perf_counter() - began

        return measure

    def _queued(self, run: Run) -> Callable[[], float]:
        def measure() -> float:
            self._sync()
            began = time.perf_counter()
            for _ in range(self._count):
                run()
            self._sync()
            return (time.perf_counter() - began) / self._count

        return measure

    @property
    def _count(self) -> int:
        return BATCH if self.on_device else 1

    def _interleaved(self, contenders: Mapping[str, Callable[[], float]]) -> dict[str, float]:
        """Medians in us of contenders that take turns: noise hits all alike."""
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        least, most = ROUNDS if self.on_device else (1, 1)
        end = time.perf_counter() + ROUND_SECONDS
        for number in range(most):
            if number >= least and time.perf_counter() > end:
                break
            for name, measure in contenders.items():
                taken[name].append(measure())
        return {name: statistics.median(t) * 1e6 for name, t in taken.items()}


def varied(arrays: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Other inputs of the same kind: floats scaled, integers (which may be ids) in other places."""
    import numpy as np

    rng = np.random.default_rng(seed)
    size = rng.uniform(0.25, 2)
    found = {}
    for name, x in arrays.items():
        if x.dtype.kind == "f":
            found[name] = np.asarray(x * rng.uniform(0.5, 1.5, x.shape) * size, x.dtype)
        else:
            found[name] = rng.permutation(x.reshape(-1)).reshape(x.shape)
    return found
