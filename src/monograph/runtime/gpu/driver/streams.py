"""What NVIDIA and AMD devices have in common through torch: streams, memory, time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from monograph.runtime.gpu.build.build import CompileRequest, KernelBinary
from monograph.runtime.gpu.driver.graphs import Graphs

REPEATS, ROUNDS = 20, 5


class TorchDevice:
    """A GPU as torch sees it."""

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
        """Makes this device the one that the calling thread works with."""
        made: AbstractContextManager[Any] = torch.cuda.device(self.place)
        return made

    def stream(self) -> int:
        return int(torch.cuda.current_stream(self.place).cuda_stream)

    def join(self, stream: int) -> None:
        """Lets the current stream wait for another; whoever captures it sees to the order."""
        if torch.cuda.is_current_stream_capturing():
            return
        other = torch.cuda.ExternalStream(stream, self.place)
        torch.cuda.current_stream(self.place).wait_event(other.record_event())

    def capturing(self, stream: int) -> bool:
        if not stream:  # the default one never does, and to ask would fail while another does
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
        # By torch, which then keeps pinned memory until the copy is done, whoever lets go of it.
        to.copy_(source, non_blocking=True)

    def finish(self) -> None:
        torch.cuda.current_stream(self.place).synchronize()

    def synchronise(self) -> None:
        torch.cuda.synchronize(self.place)

    def free_bytes(self) -> int:
        """What the driver has, and what torch holds on to without need."""
        free, _ = torch.cuda.mem_get_info(self.place)
        idle = torch.cuda.memory_reserved(self.place) - torch.cuda.memory_allocated(self.place)
        return int(free + idle)

    def measure(self, *launches: Callable[[], None]) -> float:
        """The median time of one launch in us, from replays of a graph of many, in turns."""
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
