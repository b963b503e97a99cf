"""Tools of fault tests: a driver, small models on it, and a check of what is left behind.

With MONOGRAPH_TEST_DEVICE=cuda the driver is CUDA and the models are compiled; else it is the fake
one, whose kernels are functions in Python on memory of the host. Tests are written once for both.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import monograph
from monograph.ir import Graph
from monograph.runtime.gpu import memory, target
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.driver.graphs import Handle
from monograph.runtime.gpu.executable import GpuExecutable
from monograph.runtime.gpu.host_io.pinned_staging import free_finished
from monograph.runtime.pending import Pending
from monograph.session import Session
from tests.gpu.fake_driver import FakeDevice
from tests.gpu.faults.fakes import Driver, PooledGraphs
from tests.gpu.faults.misbehaving import Misbehaving
from tests.gpu.faults.models import device_models, fake_models

ON_DEVICE = os.environ.get("MONOGRAPH_TEST_DEVICE", "") == "cuda"
ALONE = not os.environ.get("MONOGRAPH_TEST_SHARE", "")
"""True if no other process of the tests uses the device."""
PLACE = torch.device("cuda", 0) if ON_DEVICE else torch.device("cpu")
HANGS = 100
"""Seconds after which a test is taken to hang: all stacks are printed, and the process ends."""
SLEEP = 100_000_000
"""Cycles of a device, some fifty milliseconds."""
KINDS = ("model", "library", "state", "loop", "branch")
Tensors = Mapping[str, torch.Tensor]


class Rig:
    """A driver of graphs, and models for it."""

    def __init__(self, builds: bool = True) -> None:
        self.driver: Any = None if ON_DEVICE else Driver()
        self.models: Any = device_models if ON_DEVICE else fake_models
        self.graphs: Any = Misbehaving(self._graphs(builds))
        self.builds = builds

    def _graphs(self, builds: bool) -> Any:
        if not ON_DEVICE:
            return PooledGraphs(self.driver, builds=builds)
        made = device_models.shared_graphs()
        made.builds = builds
        return made

    def running(self, kind: str) -> GpuProgram:
        """A model of a kind, on the driver."""
        made: GpuProgram = getattr(self.models, kind)(self.driver)
        return made

    def feeds(self, kind: str, seed: int = 0) -> dict[str, torch.Tensor]:
        """Tensors for a model of a kind."""
        made: dict[str, torch.Tensor] = self.models.feeds(kind, seed)
        return made

    def case(self, kind: str = "model", mode: str = "auto", **options: Any) -> Case:
        """A model that is replayed, and one like it that is not."""
        return Case(self, kind, mode, **options)

    def compiled(self, graph: Graph) -> GpuExecutable:
        """A graph as kernels for the driver's device."""
        on = None if ON_DEVICE else FakeDevice(self.driver)
        return device_models.executable(graph, on)

    def device(self) -> Any:
        """The driver's device as sessions open it; those that share one share its kernels."""
        if not ON_DEVICE:
            return FakeDevice(self.driver, self.graphs)
        made = device_models.new_device()
        made.graphs = self.graphs
        return made

    def load(self, model: Any, on: Any = None, **options: Any) -> Session:
        """A session on the driver's device."""
        options = {"tune": "off", "cache_dir": ""} | options
        device = self.device() if on is None else on
        name = "gpu" if ON_DEVICE else "gpu:interpreter"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target, "open_device", lambda name: device)
            return monograph.load(model, target=name, **options)

    def held(self) -> dict[str, int]:
        """Count what lives: handles of a driver, random states, memory of the device, its pools."""
        gc.collect()
        free_finished(self.graphs)  # what waits to be let go is no leak
        found = {"handles": sum(type(x) is Handle and not x.closed for x in gc.get_objects())}
        found["states of random ops"] = len(memory._known)
        if ON_DEVICE:
            found |= _device_memory()
        else:
            found |= {f"{kind} of the driver": n for kind, n in self.driver.leaks().items()}
            found["recordings"] = len(self.driver._recording)
        return found

    def synchronise(self) -> None:
        """Waits for all that was enqueued."""
        if ON_DEVICE:
            torch.cuda.synchronize()
        else:
            self.driver.drain()

    @contextmanager
    def busy(self, stream: Any = None, turns: int = 1) -> Iterator[None]:
        """Has what is enqueued inside wait a while before it runs."""
        if ON_DEVICE:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(turns * SLEEP)
            yield
            return
        self.driver.lazy = True
        try:
            yield
        finally:
            self.driver.lazy = False

    def poison(self) -> list[torch.Tensor]:
        """Memory that was free, full of what spoils every result."""
        sizes = [1 << n for n in (6, 10, 14, *((15, 16, 20) if ON_DEVICE else ()))]
        made = [torch.empty(n, device=PLACE) for n in sizes for _ in range(8)]
        if not ON_DEVICE:
            made += self.driver.memory.free()
        return [tensor.fill_(float("nan")) for tensor in made]


def _device_memory() -> dict[str, int]:
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.empty(1, device=PLACE)  # frees what streams were said to use
    torch.cuda.empty_cache()
    pools = {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}
    return {
        "bytes": torch.cuda.memory_allocated(),
        "pools": len(pools - {(0, 0)}),
    }


class Case:
    """A model that is replayed, and one like it that is launched kernel by kernel."""

    def __init__(self, rig: Rig, kind: str, mode: str, **options: Any) -> None:
        self.rig, self.kind = rig, kind
        self.replay = Replay(rig.running(kind), rig.graphs, mode, **options)
        self.eager = eager(kind) if kind in KINDS else rig.running(kind)

    @property
    def stats(self) -> dict[str, Any]:
        return self.replay.stats

    def feeds(self, seed: int = 0) -> dict[str, torch.Tensor]:
        return self.rig.feeds(self.kind, seed)

    def right(self, feeds: Tensors) -> list[torch.Tensor]:
        """Return what comes out eagerly, for copies of some feeds."""
        found = self.eager.run({n: t.clone() for n, t in feeds.items()})
        return [t.clone() for t in found]

    def check(self, seed: int = 0, feeds: Tensors | None = None) -> list[torch.Tensor]:
        """A run that has to give the bits of an eager one."""
        feeds = self.feeds(seed) if feeds is None else feeds
        right = self.right(feeds)
        found = self.replay.run(feeds)
        equal(found, right)
        return found

    def check_arrays(self, seed: int = 0) -> list[torch.Tensor]:
        """The same for arrays of the host."""
        feeds = self.feeds(seed)
        right = [t.cpu() for t in self.right(feeds)]
        arrays = self.replay.run({n: t.cpu().numpy() for n, t in feeds.items()})
        assert all(isinstance(x, np.ndarray) for x in arrays)
        found = [torch.from_numpy(x) for x in arrays]
        equal(found, right)
        return found


@functools.cache
def eager(kind: str) -> GpuProgram:
    """A model of a kind that is never captured; the fake driver's is its own."""
    made: GpuProgram = (
        getattr(device_models, kind)() if ON_DEVICE else getattr(fake_models, kind)(Driver())
    )
    return made


def equal(found: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    """The same bits."""
    for number, (a, b) in enumerate(zip(found, right, strict=True)):
        assert torch.equal(bits(a), bits(b)), f"output {number} differs from an eager run"


def waited(run: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
    """The outputs of a run, whether it returns them or one that is still to be waited for."""
    found = run(*arguments, **options)
    return list(found.result() if isinstance(found, Pending) else found)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@contextmanager
def watched() -> Iterator[None]:
    """Ends the process, all stacks printed, if something inside never ends."""
    faulthandler.dump_traceback_later(HANGS, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def fault(test: Callable[..., None]) -> Callable[..., None]:
    """A test of something that goes wrong, and of what is left after it.

    It must end, a later recording must work and give the bits of an eager run, and nothing may be
    held any more. What it hooks into captures must have happened during one. That its own runs give
    these bits is for the test to say.
    """

    @functools.wraps(test)
    def run(rig: Rig, **options: Any) -> None:
        with watched():
            warm(rig)
            before = rig.held()
            test(rig, **options)
            assert not rig.graphs.missed, "what a test is about has happened during no capture"
            later = rig.case(mode="require")
            for seed in range(2):
                later.check(seed)
            assert later.stats["captures"] == 1
            del later
            rig.graphs.well()
            after = rig.held()
        assert grown(before, after) == {}, f"before {before}, after {after}"

    return run


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """A test that no other may run beside, because it looks at the memory that a device has free.

    `tests.gpu.sweep` knows such tests by their mark, and runs them before it shares the others.
    """
    left_out = pytest.mark.skipif(not (ON_DEVICE and ALONE), reason="needs a device of its own")
    marked: Callable[..., None] = pytest.mark.alone(left_out(test))
    return marked


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Of what is held after something, that of which there is more than before."""
    return {k: n for k, n in after.items() if n > before.get(k, 0)}


def warm(rig: Rig) -> None:
    """Has made what is made once for all, streams and modules: it is no leak."""
    kinds = () if rig.builds in _WARM else KINDS
    for kind in ("model", *kinds):
        rig.case(kind).check()
    if ON_DEVICE:
        device_models.warm_up()
        _WARM.add(rig.builds)


_WARM: set[bool] = set()


@contextmanager
def recorded(rig: Rig) -> Iterator[list[Callable[[], Any]]]:
    """Capture work as a graph of the caller's; afterwards it can be run."""
    run: list[Callable[[], Any]] = []
    if ON_DEVICE:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            yield run
        run.append(graph.replay)
        return
    rig.graphs.begin(5)
    with rig.driver.using(5):
        yield run
    executable = rig.graphs.instantiate(rig.graphs.end(5))
    run.append(lambda: rig.graphs.launch(executable, 5))


class Aside:
    """Something that another thread does."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as e:
            self._failures.append(e)

    def start(self) -> None:
        self._thread.start()

    def ended(self) -> list[BaseException]:
        """Waits until it is done, and says how it has failed."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self._failures

    def run(self) -> None:
        self.start()
        self.ended()


def in_thread(work: Callable[[], None]) -> list[BaseException]:
    """Does something in another thread, and says how it has failed."""
    other = Aside(work)
    other.run()
    return other.ended()


def side_by_side(count: int, work: Callable[[int], None]) -> None:
    """Does something in several threads that start at once; what one raises is raised."""
    barrier = threading.Barrier(count)
    failures: list[BaseException] = []

    def run(part: int) -> None:
        try:
            barrier.wait(30)
            work(part)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(part,)) for part in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]
