"""Streams, memory and timing through torch, which NVIDIA and AMD devices share, and AMD devices.

An AMD device needs no more: Triton compiles and launches its kernels.

A capture's memory is a pool by its number, as in torch's own graphs. It is not a
`torch.cuda.MemPool`: destroying that frees memory at once, and ends the process if anybody captures
or allocates to another pool meanwhile. Releasing a number frees nothing yet.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

import torch

from monograph.codegen.triton.module.launch import Arch, BufferRef, Launch
from monograph.errors import ConfigError
from monograph.runtime.gpu.build.binaries import CompileRequest, KernelBinary
from monograph.runtime.gpu.driver.devices import Launched, Record
from monograph.runtime.gpu.driver.graphs import GraphError, Graphs, Handle, Params, Start
from monograph.runtime.gpu.memory import told_of_failure

_IDLE_POOLS = 8
"""Released pools before torch is asked to free them. Torch also does when memory runs out."""

_KNOWN_STREAMS = 256
"""Maximum callers' streams that are remembered."""


class _Current:
    """Makes a stream of the current device current, as torch does, without its checks."""

    def __init__(self, index: int, user: Any) -> None:
        self._index = index
        self._user = user

    def __enter__(self) -> None:
        user = self._user
        self._before = torch._C._cuda_getCurrentStream(self._index)
        torch._C._cuda_setStream(
            stream_id=user.stream_id, device_index=user.device_index, device_type=user.device_type
        )

    def __exit__(self, *_: object) -> None:
        number, device, kind = self._before
        torch._C._cuda_setStream(stream_id=number, device_index=device, device_type=kind)


class TorchGraphs:
    """Streams and memory of one device, for graphs."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.index = place.index or 0
        self.lock = threading.RLock()
        self._users: dict[int, Any] = {}
        self._idle = 0
        """Pools that were released and that torch may not have freed yet."""

    def start(self, executable: Handle, stream: int, start: Start) -> None:
        raise GraphError("this driver has no overlapped uploads")

    def using(self, stream: int, pool: Handle | None = None) -> AbstractContextManager[Any]:
        if pool is not None:
            return self._recording(stream, pool)
        user = self._user(stream)
        if TorchGraphs.here(self):
            return _Current(self.index, user)
        found: AbstractContextManager[Any] = torch.cuda.stream(user)
        return found

    @contextmanager
    def _recording(self, stream: int, pool: Handle) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.cuda.stream(self._user(stream)))
            stack.enter_context(self._allocating(pool.value))
            # A library's workspace comes from the pool too, so that no other graph writes to it.
            torch._C._cuda_clearCublasWorkspaces()
            stack.callback(torch._C._cuda_clearCublasWorkspaces)
            yield

    def _user(self, stream: int) -> Any:
        """Return a stream as torch's object, created once."""
        found = self._users.get(stream)
        if found is None:
            if len(self._users) >= _KNOWN_STREAMS:
                self._users = {}
            found = self._users[stream] = torch.cuda.ExternalStream(stream, self.place)
        return found

    def pool(self) -> Handle:
        if self._idle >= _IDLE_POOLS and not self.capturing_now():
            with suppress(RuntimeError):  # a capture is under way: try next time
                torch.cuda.empty_cache()
                self._idle = 0
        number = torch.cuda.graph_pool_handle()
        # The first use creates the pool. Later allocations add a reference.
        torch._C._cuda_beginAllocateCurrentThreadToPool(self.index, number)
        torch._C._cuda_endAllocateToPool(self.index, number)
        return Handle(number, self._release_pool)

    @contextmanager
    def _allocating(self, number: Any) -> Iterator[None]:
        """Allocate from a pool in this thread."""
        torch._C._cuda_beginAllocateCurrentThreadToPool(self.index, number)
        try:
            yield
        finally:
            torch._C._cuda_endAllocateToPool(self.index, number)
            torch._C._cuda_releasePool(self.index, number)

    def _release_pool(self, number: Any) -> None:
        """Let torch free a pool later. This is allowed at any time, also during a capture."""
        torch._C._cuda_releasePool(self.index, number)
        self._idle += 1

    def pinned(self, nbytes: int) -> torch.Tensor:
        with told_of_failure():
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    resizes = False

    def resize(self, params: Params, record: Any) -> None:
        raise GraphError("this driver cannot change the sizes of a graph")

    def enable(self, executable: Handle, node: Any, enabled: bool) -> None:
        raise GraphError("this driver cannot disable nodes")

    def lock_pages(self, address: int, nbytes: int) -> Handle:
        raise GraphError("this driver cannot lock pages of the host")

    def current(self) -> int:
        return int(torch._C._cuda_getCurrentRawStream(self.index))

    def capturing_now(self) -> bool:
        return bool(torch._C._cuda_isCurrentStreamCapturing())

    def here(self) -> bool:
        return bool(torch._C._cuda_getDevice() == self.index)

    def guard(self) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = torch.cuda.device(self.place)
        return found

    def used_on(self, memory: Sequence[torch.Tensor], stream: int) -> None:
        user = self._user(stream)
        for tensor in memory:
            tensor.record_stream(user)


REPEATS, ROUNDS = 20, 5


class TorchDevice:
    """A GPU through torch."""

    measures = True
    keeps_code = False
    graphs: Graphs | None = None

    def __init__(self, index: int = 0) -> None:
        self.place = torch.device("cuda", index)
        torch.empty(1, device=self.place)  # torch's context must exist before driver calls
        self.name = torch.cuda.get_device_name(index)
        self.driver = "unknown"
        about = torch.cuda.get_device_properties(index)
        self.cache_bytes = int(getattr(about, "L2_cache_size", 0))

    def code(self, wanted: CompileRequest) -> KernelBinary:
        """Return the machine code of a kernel, on a device that keeps it."""
        raise NotImplementedError("torch compiles and keeps the kernels of this device")

    def active(self) -> AbstractContextManager[Any]:
        """Make this device current in the calling thread."""
        made: AbstractContextManager[Any] = torch.cuda.device(self.place)
        return made

    def stream(self) -> int:
        return int(torch.cuda.current_stream(self.place).cuda_stream)

    def join(self, stream: int) -> None:
        """Make the current stream wait for another. During a capture its caller orders the work."""
        if torch.cuda.is_current_stream_capturing():
            return
        other = torch.cuda.ExternalStream(stream, self.place)
        torch.cuda.current_stream(self.place).wait_event(other.record_event())

    def capturing(self, stream: int) -> bool:
        if not stream:  # the default stream never captures, and asking fails while another does
            return False
        if stream == self.stream():
            return bool(torch.cuda.is_current_stream_capturing())
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, self.place)):
            return bool(torch.cuda.is_current_stream_capturing())

    def used(self, memory: Sequence[torch.Tensor]) -> None:
        stream = torch.cuda.current_stream(self.place)
        for tensor in memory:
            tensor.record_stream(stream)

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        # torch keeps pinned memory until the copy is done, even if the caller releases it.
        to.copy_(source, non_blocking=True)

    def finish(self) -> None:
        torch.cuda.current_stream(self.place).synchronize()

    def synchronise(self) -> None:
        torch.cuda.synchronize(self.place)

    def free_bytes(self) -> int:
        """Return the driver's free memory and what torch's allocator holds unused."""
        free, _ = torch.cuda.mem_get_info(self.place)
        idle = torch.cuda.memory_reserved(self.place) - torch.cuda.memory_allocated(self.place)
        return int(free + idle)

    def measure(self, *launches: Callable[[], None]) -> float:
        """Return the median time of one launch in us, from replays of a graph of many launches."""
        with self.active():
            for launch in launches:
                launch()
            self.synchronise()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for number in range(REPEATS):
                    launches[number % len(launches)]()
            times: list[float] = []
            for _ in range(ROUNDS):
                start = torch.cuda.Event(enable_timing=True)
                stop = torch.cuda.Event(enable_timing=True)
                start.record()
                graph.replay()
                stop.record()
                stop.synchronize()
                times.append(start.elapsed_time(stop) * 1000 / REPEATS)
            return statistics.median(times)


class HipDevice(TorchDevice):
    """One AMD GPU. Triton compiles and launches its kernels."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        about = torch.cuda.get_device_properties(index)
        name = str(about.gcnArchName).partition(":")[0]
        self.arch = Arch("hip", name, about.warp_size)
        self.driver = str(torch.version.hip)

    def record(self, launch: Launch, arguments: Sequence[BufferRef], stem: str) -> Record:
        return Launched(launch, arguments, stem)

    def loaded(
        self,
        binary: KernelBinary,
        grid: tuple[int, int, int],
        arguments: Sequence[BufferRef],
        sizes: tuple[int, ...] = (),
    ) -> Record:
        raise ConfigError(
            "packages can be loaded on NVIDIA devices only",
            given=self.name,
            hint="load the model itself: its kernels are compiled once and kept by Triton",
        )

    def has(self, wanted: CompileRequest) -> bool:
        """Return True: Triton compiles at the first launch, and caches the code."""
        return True

    def load(self, wanted: CompileRequest, binary: KernelBinary) -> None:
        raise NotImplementedError("Triton loads its kernels itself")
