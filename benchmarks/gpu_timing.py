"""Times of one contender of the GPU benchmarks: on the device, synchronised, from numpy."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

WARM_SECONDS = 0.1
BATCH_SECONDS = 0.02
"""Runs between two events take about so long."""
ROUNDS = 15
CLOCK_SECONDS = 3.0
"""The seconds to wait for the tool that reads the device's clock."""
SYNCED_RUNS = 100
ANY_ORDER = "in any order"
"""Of a detector's rows: near equal scores may change places."""


@dataclass
class Contender:
    """A way to run a model: what it reads and makes stays in the same device memory."""

    name: str
    run: Callable[[], Any]
    """Enqueues one run."""
    inputs: list[torch.Tensor]
    outputs: Callable[[], list[torch.Tensor]]
    """The results of the last run, on the device."""
    kernels: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """Medians in us."""

    device_us: float
    """One of many runs back to back, between events on the device."""
    synced_us: float
    """One run from the call to the end of the device's work, seen by the host."""
    end_to_end_us: float
    """The same with inputs from numpy and outputs to numpy."""
    copies: float
    """The share of copies in that."""
    sm_mhz: float | None
    """The clock of the multiprocessors meanwhile."""
    kernels: int | None
    error: float | None
    """The largest difference of the first output, relative to its largest element."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Clock:
    """Times work on a device; without one, by the host's clock."""

    def __init__(self, place: torch.device, short: bool = False) -> None:
        self.place = place
        self.on_device = place.type == "cuda"
        self.rounds, self.synced_runs = (1, 1) if short else (ROUNDS, SYNCED_RUNS)
        self.first_runs, self.warm_seconds = (0, 0.0) if short else (3, WARM_SECONDS)

    def synchronise(self) -> None:
        if self.on_device:
            torch.cuda.synchronize(self.place)

    def measure(self, contender: Contender, right: np.ndarray | None) -> Figures:
        """Everything there is to say of a contender."""
        single = self._warm_up(contender.run)
        count = max(1, min(2000, round(BATCH_SECONDS / single))) if self.warm_seconds else 1
        device, clock = self._device_time(contender.run, count)
        synced = self._each(contender.run)
        whole = self._each(self._from_numpy(contender))
        contender.run()
        self.synchronise()
        return Figures(
            device,
            synced,
            whole,
            max(0.0, 1 - synced / whole),
            clock,
            contender.kernels,
            _error(contender, right),
        )

    def _warm_up(self, run: Callable[[], Any]) -> float:
        """Seconds of a run, roughly."""
        for _ in range(self.first_runs):
            run()
        self.synchronise()
        began, count = time.perf_counter(), 0
        while count == 0 or time.perf_counter() - began < self.warm_seconds:
            for _ in range(10 if self.warm_seconds else 1):
                run()
                count += 1
            self.synchronise()
        return (time.perf_counter() - began) / count

    def _device_time(self, run: Callable[[], Any], count: int) -> tuple[float, float | None]:
        """The median over rounds; they go on until the clock of the device has been read."""
        reading = _read_clock() if self.on_device else None
        times = []
        end = time.perf_counter() + CLOCK_SECONDS
        while len(times) < self.rounds or (
            reading is not None and reading.poll() is None and time.perf_counter() < end
        ):
            times.append(self._round(run, count))
        return statistics.median(times), _clock_of(reading)

    def _round(self, run: Callable[[], Any], count: int) -> float:
        if not self.on_device:
            began = time.perf_counter()
            for _ in range(count):
                run()
            return (time.perf_counter() - began) / count * 1e6
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            run()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1e3 / count

    def _each(self, run: Callable[[], Any]) -> float:
        """The median of single runs, each waited for."""
        times = []
        for _ in range(self.first_runs + self.synced_runs):
            began = time.perf_counter()
            run()
            self.synchronise()
            times.append(time.perf_counter() - began)
        return statistics.median(times[self.first_runs :]) * 1e6

    def _from_numpy(self, contender: Contender) -> Callable[[], list[np.ndarray]]:
        """A run on arrays of the host, through pinned memory both ways."""
        given = [t.cpu().numpy().copy() for t in contender.inputs]
        contender.run()
        self.synchronise()
        ins = [self._pinned(t) for t in contender.inputs]
        outs = [self._pinned(t) for t in contender.outputs()]

        def run() -> list[np.ndarray]:
            for array, staged, place in zip(given, ins, contender.inputs, strict=True):
                np.copyto(staged.numpy(), array)
                place.copy_(staged, non_blocking=True)
            contender.run()
            for staged, made in zip(outs, contender.outputs(), strict=True):
                staged.copy_(made, non_blocking=True)
            self.synchronise()
            return [np.array(t.numpy()) for t in outs]

        return run

    def _pinned(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=self.on_device)

    def kernels(self, run: Callable[[], Any]) -> int | None:
        """Kernels and copies that a run makes the device do, as torch's profiler sees them.

        It comes behind all measurements: what it hooks into launches may stay there.
        """
        if not self.on_device:
            return None
        from torch.profiler import ProfilerActivity, profile

        try:
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                run()
                self.synchronise()
            events = [e for e in seen.events() if str(e.device_type).endswith("CUDA")]
            return len(events) or None
        except Exception:  # the profiler may be refused by the driver; the figure is left out
            return None


def _error(contender: Contender, right: np.ndarray | None) -> float | None:
    if right is None:
        return None
    wide = contender.outputs()[0].double().cpu().numpy().reshape(right.shape)
    if contender.notes.get("rows") == ANY_ORDER:
        wide, right = np.sort(wide, axis=-2), np.sort(right, axis=-2)
    return float(np.abs(wide - right).max() / max(np.abs(right).max(), 1e-30))


def _read_clock() -> subprocess.Popen[str] | None:
    command = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    try:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return None


def _clock_of(reading: subprocess.Popen[str] | None) -> float | None:
    if reading is None or reading.stdout is None:
        return None
    if reading.poll() is None:
        reading.kill()
    lines = reading.stdout.read().split()
    reading.wait()
    try:
        return float(lines[0])
    except (IndexError, ValueError):
        return None


def captured(work: Callable[[], Any], streams: Iterable[torch.cuda.Stream] = ()) -> Any:
    """A graph of some work; it has run before, so that nothing is compiled meanwhile."""
    graph = torch.cuda.CUDAGraph()
    first = next(iter(streams), None)
    with torch.cuda.graph(graph, stream=first):
        work()
    return graph
