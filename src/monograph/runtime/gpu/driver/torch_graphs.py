"""What graphs on NVIDIA and AMD devices have in common through torch: streams and memory.

The memory of a recording is a pool by its number, as torch's own graphs have it, and not a
`torch.cuda.MemPool`: the end of such an object frees memory on the spot, and where anybody records
or allocates to another pool meanwhile it ends the process. Giving a number back frees nothing yet.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

import torch

from monograph.runtime.gpu.driver.graphs import GraphError, Handle, Start
from monograph.runtime.gpu.memory import told_of_failure

_IDLE_POOLS = 8
"""Pools that were given back before torch is asked to free them: it would when memory runs out."""

_KNOWN_STREAMS = 256
"""Streams of callers' that are remembered."""


class _Current:
    """Makes a stream of the current device the current one: torch's own way, without questions."""

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
    """The streams and the memory of one device, as torch sees it."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.index = place.index or 0
        self.lock = threading.RLock()
        self._users: dict[int, Any] = {}
        self._idle = 0
        """Pools that were given back, and that torch may not have freed yet."""

    def start(self, executable: Handle, stream: int, start: Start) -> None:
        raise GraphError("this driver has no kernels that wait for the host")

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
            # A library's workspace comes from the pool too: no other graph writes to it.
            torch._C._cuda_clearCublasWorkspaces()
            stack.callback(torch._C._cuda_clearCublasWorkspaces)
            yield

    def _user(self, stream: int) -> Any:
        """A stream as torch has it: no more than its number, so it is made once."""
        found = self._users.get(stream)
        if found is None:
            if len(self._users) >= _KNOWN_STREAMS:
                self._users = {}
            found = self._users[stream] = torch.cuda.ExternalStream(stream, self.place)
        return found

    def pool(self) -> Handle:
        if self._idle >= _IDLE_POOLS and not self.capturing_now():
            with suppress(RuntimeError):  # somebody records: then it is for the next time
                torch.cuda.empty_cache()
                self._idle = 0
        number = torch.cuda.graph_pool_handle()
        # Used once, it exists, and whoever allocates to it later is one user more.
        torch._C._cuda_beginAllocateCurrentThreadToPool(self.index, number)
        torch._C._cuda_endAllocateToPool(self.index, number)
        return Handle(number, self._give_back)

    @contextmanager
    def _allocating(self, number: Any) -> Iterator[None]:
        """Lets what this thread allocates come from a pool."""
        torch._C._cuda_beginAllocateCurrentThreadToPool(self.index, number)
        try:
            yield
        finally:
            torch._C._cuda_endAllocateToPool(self.index, number)
            torch._C._cuda_releasePool(self.index, number)

    def _give_back(self, number: Any) -> None:
        """Lets torch free a pool when it likes; allowed at any time, recordings included."""
        torch._C._cuda_releasePool(self.index, number)
        self._idle += 1

    def pinned(self, nbytes: int) -> torch.Tensor:
        with told_of_failure():
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def lock_pages(self, address: int, nbytes: int) -> Handle:
        raise GraphError("pages of the host are not locked through this driver")

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
