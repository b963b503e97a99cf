"""What graphs on NVIDIA and AMD devices have in common through torch: streams and memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch


class TorchGraphs:
    """The streams and the memory of one device, as torch sees it."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.index = place.index or 0
        self.lock = threading.RLock()

    @contextmanager
    def using(self, stream: int, pool: Any = None) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(stream, self.place)))
            if pool is not None:
                stack.enter_context(torch.cuda.use_mem_pool(pool, self.place))
                # A library's workspace comes from the pool too: no other graph writes to it.
                torch._C._cuda_clearCublasWorkspaces()
                stack.callback(torch._C._cuda_clearCublasWorkspaces)
            yield

    def pool(self) -> Any:
        return torch.cuda.MemPool()

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def current(self) -> int:
        return int(torch._C._cuda_getCurrentRawStream(self.index))

    def here(self) -> bool:
        return bool(torch._C._cuda_getDevice() == self.index)

    def guard(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self.place)

    def used_on(self, memory: Sequence[torch.Tensor], stream: int) -> None:
        user = torch.cuda.ExternalStream(stream, self.place)
        for tensor in memory:
            tensor.record_stream(user)
