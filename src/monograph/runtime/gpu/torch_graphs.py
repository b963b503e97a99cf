"""What graphs on NVIDIA and AMD devices have in common through torch: streams and memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from monograph.runtime.gpu.graphs import Handle


class TorchGraphs:
    """The streams and the memory of one device, as torch sees it."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.index = place.index or 0
        self.lock = threading.RLock()
        self._busy = 0
        """Recordings with memory of their own that are under way."""
        self._retired: list[Any] = []
        """Such memory that nobody needs any more: torch cannot free it during recordings."""

    @contextmanager
    def using(self, stream: int, pool: Handle | None = None) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(stream, self.place)))
            if pool is not None:
                self._busy += 1
                stack.callback(self._left)
                stack.enter_context(torch.cuda.use_mem_pool(pool.value, self.place))
                # A library's workspace comes from the pool too: no other graph writes to it.
                torch._C._cuda_clearCublasWorkspaces()
                stack.callback(torch._C._cuda_clearCublasWorkspaces)
            yield

    def pool(self) -> Handle:
        return Handle(torch.cuda.MemPool(), self._retire)

    def _left(self) -> None:
        self._busy -= 1
        self._free_retired()

    def _retire(self, pool: Any) -> None:
        self._retired.append(pool)
        self._free_retired()

    def _free_retired(self) -> None:
        if not self._busy and not self.capturing_now():
            self._retired.clear()

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

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
        user = torch.cuda.ExternalStream(stream, self.place)
        for tensor in memory:
            tensor.record_stream(user)
