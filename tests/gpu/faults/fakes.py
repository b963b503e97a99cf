"""The fake driver with memory that is given away again as soon as it is free, as allocators do it.

Memory of the host would stay as it was for a while, and whoever uses what is no longer theirs would
not be noticed.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import numpy as np
import torch

from monograph.runtime.gpu.capture.pointer_params import ALIGNED
from monograph.runtime.gpu.driver.graphs import Handle
from tests.gpu.fake_driver import FakeDriver
from tests.gpu.fake_graphs import FakeGraphs

COMMON = 0
"""The pool of all that belongs to no recording."""


class Memory:
    """Blocks of a device by pool: what was freed last is given away first."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, int], list[torch.Tensor]] = defaultdict(list)
        self._local = threading.local()

    @contextmanager
    def coming_from(self, pool: int) -> Iterator[None]:
        """Has what this thread takes come from a pool."""
        before, self._local.pool = getattr(self._local, "pool", COMMON), pool
        try:
            yield
        finally:
            self._local.pool = before

    @contextmanager
    def taken(self, nbytes: int) -> Iterator[int]:
        """The address of a block that is free again afterwards: whatever was enqueued comes first.

        The block itself is never freed, so that a late write harms nothing but its next user.
        """
        free = self._free[getattr(self._local, "pool", COMMON), nbytes]
        block = free.pop() if free else torch.zeros(nbytes + ALIGNED, dtype=torch.uint8)
        try:
            yield block.data_ptr() + -block.data_ptr() % ALIGNED
        finally:
            free.append(block)

    def give_back(self, pool: int) -> None:
        """Makes the memory of a recording everybody's."""
        for number, nbytes in list(self._free):
            if number == pool:
                self._free[COMMON, nbytes] += self._free.pop((number, nbytes))

    def free(self) -> list[torch.Tensor]:
        """All that anybody would be given, which is the caller's from now on."""
        found = [t for (pool, _), free in self._free.items() if pool == COMMON for t in free]
        for pool, nbytes in list(self._free):
            if pool == COMMON:
                del self._free[pool, nbytes]
        return [t[: t.numel() // 4 * 4].view(torch.float32) for t in found]


class Driver(FakeDriver):
    """A fake driver with memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.pinned: dict[int, list[np.ndarray]] = defaultdict(list)
        """Pinned memory that nobody holds, by its size."""


class PooledGraphs(FakeGraphs):
    """Fake graphs whose recordings have memory of their own, and that are told who uses what."""

    driver: Driver
    _numbers = count(COMMON + 1)

    def __init__(self, driver: Driver, **options: Any) -> None:
        super().__init__(driver, **options)
        self.users: dict[int, set[int]] = defaultdict(set)
        """Streams that use memory besides the one it was made on, by its address."""

    def pool(self) -> Handle:
        driver, number = self.driver, next(self._numbers)
        driver.live["pool"] += 1

        def freed(value: int) -> None:
            driver.live.subtract(["pool"])
            driver.memory.give_back(value)

        return Handle(number, freed)

    @contextmanager
    def using(self, stream: int, pool: Any = None) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self.driver.using(stream))
            if pool is not None:
                stack.enter_context(self.driver.memory.coming_from(pool.value))
            yield

    def pinned(self, nbytes: int) -> torch.Tensor:
        free = self.driver.pinned[nbytes]
        block = free.pop() if free else np.zeros(nbytes, np.uint8)
        held = np.frombuffer(block.data, np.uint8)
        weakref.finalize(held, free.append, block)
        return torch.from_numpy(held)

    def used_on(self, memory: Sequence[torch.Tensor], stream: int) -> None:
        super().used_on(memory, stream)
        for tensor in memory:
            self.users[tensor.data_ptr()].add(stream)
