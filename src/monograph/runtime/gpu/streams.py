"""What NVIDIA and AMD devices have in common through torch: streams, memory, time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

REPEATS, ROUNDS = 20, 5


class TorchDevice:
    """A GPU as torch sees it."""

    measures = True

    def __init__(self, index: int = 0) -> None:
        self.place = torch.device("cuda", index)
        torch.empty(1, device=self.place)  # torch's context must exist before driver calls
        self.name = torch.cuda.get_device_name(index)
        self.driver = "unknown"

    def active(self) -> AbstractContextManager[Any]:
        """Makes this device the one that the calling thread works with."""
        made: AbstractContextManager[Any] = torch.cuda.device(self.place)
        return made

    def stream(self) -> int:
        return int(torch.cuda.current_stream(self.place).cuda_stream)

    def join(self, stream: int) -> None:
        other = torch.cuda.ExternalStream(stream, self.place)
        torch.cuda.current_stream(self.place).wait_event(other.record_event())

    def synchronise(self) -> None:
        torch.cuda.synchronize(self.place)

    def free_bytes(self) -> int:
        """What the driver has, and what torch holds on to without need."""
        free, _ = torch.cuda.mem_get_info(self.place)
        idle = torch.cuda.memory_reserved(self.place) - torch.cuda.memory_allocated(self.place)
        return int(free + idle)

    def measure(self, launch: Callable[[], None]) -> float:
        """The median time of one launch in us, from replays of a graph of many."""
        with torch.cuda.device(self.place):
            launch()
            self.synchronise()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(REPEATS):
                    launch()
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
