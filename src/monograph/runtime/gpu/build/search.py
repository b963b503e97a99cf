"""The search for the fastest candidates: kernels are compiled while others are measured.

The default of every problem comes first. Then come the others, by the time that a run spends in the
problem: a search that ends early has tried most where most can be won.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from monograph.codegen.triton.module.layout import GpuModule
from monograph.errors import CodegenError, MonographError
from monograph.runtime.gpu.build.binaries import CompileRequest, KernelBinary
from monograph.runtime.gpu.build.compiler import KernelBuilds
from monograph.runtime.gpu.build.tuning_cache import SizeBucket
from monograph.runtime.gpu.driver.devices import Device
from monograph.runtime.progress import Progress

FAST_SECONDS = 12.0
"""The longest time of a search with `tune="fast"`, but for kernels that compile at its end."""
now = time.monotonic


@dataclass
class TuningProblem:
    """The candidates of a step that differs from all others."""

    label: str
    default: str
    bucket: SizeBucket
    count: int = 1
    """The number of steps of the program that are like this one."""
    candidates: dict[str, GpuModule] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    """The time of each measured candidate in us."""
    tried: int = 0
    """The candidates that were measured or failed."""

    @property
    def decided(self) -> bool:
        """True if there is something to choose from, or nothing left to try."""
        return bool(self.times) and (len(self.times) > 1 or self.tried == len(self.candidates))


@dataclass(frozen=True)
class _Trial:
    problem: TuningProblem
    rank: int
    module: GpuModule
    name: str
    requests: tuple[CompileRequest, ...]

    @property
    def urgency(self) -> float:
        """The time of a run that the candidate may shorten, less for later candidates."""
        us = self.problem.times.get(self.problem.default, 0.0)
        return us * self.problem.count / max(self.rank, 1)


class Search:
    """Measures the candidates of problems."""

    def __init__(
        self,
        device: Device,
        measure: Callable[[GpuModule], float | None],
        progress: Progress,
        seconds: float | None,
    ) -> None:
        """measure: returns the time of a module in us, None if it cannot run.

        seconds: the longest time; None for all the time that it takes.
        """
        self._device = device
        self._measure = measure
        self._progress = progress
        self._end = None if seconds is None else now() + seconds
        self._results: SimpleQueue[tuple[CompileRequest, KernelBinary | CodegenError]] = (
            SimpleQueue()
        )
        self._ended: dict[CompileRequest, bool] = {}
        """Requests that have ended: whether the device has the kernel."""

    def run(
        self,
        problems: Iterable[TuningProblem],
        requests_of: Callable[[GpuModule], Iterable[CompileRequest]],
    ) -> None:
        """Measure as many candidates as there is time for."""
        trials = [
            _Trial(problem, rank, module, name, tuple(requests_of(module)))
            for problem in problems
            for rank, (name, module) in enumerate(problem.candidates.items())
        ]
        first = [t for t in trials if not t.rank]
        others = [t for t in trials if t.rank]
        needed = self._needed(trials)
        builds = KernelBuilds(
            self._device.arch, len(needed), lambda one, made: self._results.put((one, made))
        )
        try:
            # Workers go on with the second candidates while the first ones are measured.
            builds.add(self._needed([*first, *(t for t in others if t.rank == 1)]))
            begun = self._try_all(first, 0, len(trials))
            others.sort(key=lambda t: -t.urgency)
            seen = {r for t in trials if t.rank < 2 for r in t.requests}
            builds.add([r for r in self._needed(others) if r not in seen])
            self._try_all(others, begun, len(trials))
        finally:
            builds.stop()
        self._progress("measure", len(trials), len(trials))

    def _needed(self, trials: Iterable[_Trial]) -> Mapping[CompileRequest, None]:
        """Return the kernels of trials that the device does not have, each once."""
        wanted = dict.fromkeys(r for t in trials for r in t.requests)
        return dict.fromkeys(r for r in wanted if not self._device.has(r))

    def _try_all(self, trials: Iterable[_Trial], number: int, total: int) -> int:
        for trial in trials:
            self._progress(f"measure {trial.problem.label}", number, total)
            if not self._try(trial):
                break
            number += 1
        return number

    def _try(self, trial: _Trial) -> bool:
        """Measure a candidate as soon as it is compiled; return False if there is no time left."""
        for request in trial.requests:
            while request not in self._ended and not self._device.has(request):
                if not self._receive():
                    return False
        if self._left() <= 0:
            return False
        trial.problem.tried += 1
        if all(self._ended.get(r, True) for r in trial.requests):
            us = self._measure(trial.module)
            if us is not None:
                trial.problem.times[trial.name] = us
        return True

    def _left(self) -> float:
        return float("inf") if self._end is None else self._end - now()

    def _receive(self) -> bool:
        """Load the next kernel that has been compiled; return False if there is no time left."""
        left = self._left()
        if left <= 0:
            return False
        try:
            one, made = self._results.get(timeout=None if self._end is None else left)
        except Empty:
            return False
        try:
            if isinstance(made, CodegenError):
                raise made
            self._device.load(one, made)
        except MonographError:
            self._ended[one] = False
        else:
            self._ended[one] = True
        return True
