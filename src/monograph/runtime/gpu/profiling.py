"""Times of each launch of a run on the device, and the peak rates of the device.

Launches are made one by one with events between them, behind a kernel that keeps the device busy
until all of them are enqueued: so the host is never what is measured. An event ends the overlap
of a kernel with the next one (dependent launch) and takes time itself. The time of a whole run is
therefore taken from a graph of the same launches, without any events.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from monograph.errors import ConfigError
from monograph.ir import Array
from monograph.runtime.gpu.capture.control import ConditionalLaunch
from monograph.runtime.gpu.driver.devices import Device
from monograph.runtime.gpu.executable import GpuExecutable
from monograph.runtime.gpu.tensors import raw

AHEAD_CYCLES = 60_000
"""Cycles of the device for each launch that the host has to be ahead: about 30 us."""
LARGE, SMALL = (8192, 1 << 28), (128, 1 << 20)
"""Rows of the product and elements of the copy that the ceilings are measured with."""
TRIES = 5


@dataclass(frozen=True)
class Ceilings:
    """The rates that the device reaches with kernels that do nothing else."""

    flops_per_second: float
    bytes_per_second: float


class Stopwatch(Protocol):
    """Notes times in the order of the device's work."""

    def ahead(self, launches: int) -> None:
        """Let the host run ahead of the device by this many launches."""

    def mark(self) -> Any:
        """Notes the time at which the device gets here."""

    def read(self, marks: list[Any]) -> list[int]:
        """Nanoseconds of marks since the first of them, once all have come."""


class Events:
    """A GPU's own clock."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def ahead(self, launches: int) -> None:
        torch.cuda._sleep(AHEAD_CYCLES * launches)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self, marks: list[Any]) -> list[int]:
        self.device.synchronise()
        return [round(marks[0].elapsed_time(m) * 1e6) for m in marks]


class HostClock:
    """The host's clock, where the host itself runs the kernels."""

    def ahead(self, launches: int) -> None:
        pass

    def mark(self) -> int:
        return time.perf_counter_ns()

    def read(self, marks: list[Any]) -> list[int]:
        return [m - marks[0] for m in marks]


def ports_of(executable: GpuExecutable, feeds: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Memory for inputs, filled, and for outputs."""
    found = {
        f"input:{s.name}": executable.input_tensor(feeds[s.name], s) for s in _inputs(executable)
    }
    found |= {f"output:{s.name}": executable.fresh_output(s) for s in executable.layout.outputs}
    for slot in executable.layout.outputs:
        if slot.over:  # a donated output lies over its input
            found[f"output:{slot.name}"] = found[f"input:{slot.over}"]
    return {name: raw(t) for name, t in found.items()}


def _inputs(executable: GpuExecutable) -> Any:
    return executable.layout.inputs


def check_timeable(executable: GpuExecutable, stops: Sequence[str] = ()) -> None:
    """Refuse an executable that is not one sequence of launches.

    stops: the ops at which data decide sizes, so that further programs follow.
    """
    if stops or not executable.whole:
        given = ", ".join((*stops, *executable.host_kinds))
        raise ConfigError(
            "only a model that the device runs as a whole can be profiled on it",
            given=given or "outputs without memory of their own",
            hint="profile it with --target cpu",
        )


def time_launches(
    executable: GpuExecutable, ports: Mapping[str, torch.Tensor], runs: int, warm_ups: int
) -> Array:
    """Nanoseconds [run, launch, begin or end], from the beginning of each run."""
    device = executable.device
    watch: Stopwatch = Events(device) if device.measures else HostClock()
    with device.active():
        for _ in range(warm_ups):
            executable.launch(ports)
        device.synchronise()
        found = [_one_run(executable, ports, watch) for _ in range(runs)]
    return np.array(found, np.int64).reshape(runs, -1, 2)


def _one_run(
    executable: GpuExecutable, ports: Mapping[str, torch.Tensor], watch: Stopwatch
) -> list[int]:
    with executable.lock:
        stream = executable.begin(ports)
        watch.ahead(len(executable.records))
        marks = [watch.mark()]
        for record in executable.records:
            marks.append(watch.mark())
            record.launch(stream)
            marks.append(watch.mark())
        executable.runs += 1
        return watch.read(marks)[1:]


def time_graph(executable: GpuExecutable, ports: Mapping[str, torch.Tensor]) -> float | None:
    """Seconds of a run in a graph of all launches; None where there can be none."""
    controlled = any(isinstance(r, ConditionalLaunch) for r in executable.records)
    if controlled or not executable.device.measures:
        return None
    return executable.device.measure(lambda: executable.launch(ports)) / 1e6


def measure_ceilings(device: Device, kind: torch.dtype) -> Ceilings:
    """Measure what the device multiplies and copies in a second."""
    rows, count = LARGE if device.measures else SMALL
    with device.active():
        a, b = (torch.randn(rows, rows, device=device.place).to(kind) for _ in range(2))
        product = torch.empty_like(a)
        flops = 2.0 * rows**3 / _best(device, lambda: torch.mm(a, b, out=product))
        given = torch.zeros(count, dtype=torch.float32, device=device.place)
        copy = torch.empty_like(given)
        moved = 2.0 * given.nbytes / _best(device, lambda: copy.copy_(given))
    return Ceilings(flops, moved)


def _best(device: Device, work: Callable[[], Any]) -> float:
    """Seconds of some work, at its best."""
    watch: Stopwatch = Events(device) if device.measures else HostClock()
    work()
    device.synchronise()
    times = []
    for _ in range(TRIES):
        marks = [watch.mark()]
        work()
        marks.append(watch.mark())
        times.append(watch.read(marks)[1])
    return max(min(times), 1) / 1e9


def median_gaps(stamps: Array) -> list[float]:
    """Seconds that the device idles before each launch."""
    begins, ends = stamps[..., 0], stamps[..., 1]
    before = np.concatenate([np.zeros_like(ends[:, :1]), ends[:, :-1]], axis=1)
    return [statistics.median(column) / 1e9 for column in (begins - before).T.tolist()]
