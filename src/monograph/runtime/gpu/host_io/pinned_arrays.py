"""Callers' arrays that are fed again and again: their pages are locked, and the device reads them.

Copying an array to pinned memory is the largest cost of the host in a run on large arrays. Locking
its pages costs more, but only once. Only the owner of memory knows how long it lives, so only
memory that a numpy array owns is locked. It is unlocked before the array frees it.
"""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.runtime.forking import ForkLock
from monograph.runtime.gpu.bound_program import GpuLayout
from monograph.runtime.gpu.capture.captured_graph import CapturedGraph
from monograph.runtime.gpu.capture.launches import Launches
from monograph.runtime.gpu.driver.graphs import GraphError, Graphs, Handle
from monograph.runtime.gpu.host_io.pinned_staging import nbytes

OFTEN = 8
"""Runs on an array before it is locked, which costs as much as a few runs save."""
SMALLEST = 128 << 10
"""Minimum bytes of an array to lock; smaller arrays are gathered before a copy could start."""
MOST = 256 << 20
"""Maximum bytes locked at once by all sessions of a process. Nothing is evicted: locking and
unlocking in turns would cost more than it saves."""
KNOWN = 64
"""Maximum arrays that are remembered before they are locked."""


@dataclass(eq=False)
class _Seen:
    """An address in an array that runs were given."""

    owner: weakref.ref[Any]
    nbytes: int
    graphs: Graphs
    """The graphs of the device that it was locked for; graphs of another may not copy from it."""
    runs: int = 0
    pages: Handle | None = None
    refused: bool = False


class PinnedArrayRegistry:
    """The arrays that runs were given, and the locked ones. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = ForkLock()  # reentrant: garbage collection may free an array
        self._seen: dict[tuple[int, int], _Seen] = {}
        self.nbytes = 0
        """Bytes that are locked now."""

    def find(self, array: Any, address: int, graphs: Graphs) -> Handle | None:
        """Return the locked pages of a dense array, or None; each call counts as a run."""
        owner = array
        while owner.base is not None:
            owner = owner.base
            if owner.__class__ is not np.ndarray:
                return None  # memory of a mapped file or a library may go at any time
        seen = self._seen.get((id(owner), address))
        if seen is None or seen.owner() is not owner or seen.nbytes < array.nbytes:
            if not owner.flags.owndata:
                return None
            seen = self._remember(owner, address, array.nbytes, graphs)
        if seen.graphs is not graphs:
            return None
        if seen.pages is not None:
            return seen.pages
        seen.runs += 1
        if seen.runs <= OFTEN or seen.refused:
            return None
        return self._locked(seen, owner, address, graphs)

    def _remember(self, owner: Any, address: int, nbytes: int, graphs: Graphs) -> _Seen:
        with self._lock:
            key = id(owner), address
            known = self._seen.get(key)
            if known is not None and known.pages is not None:
                # The same address of the same array, but more bytes: the locked pages stay.
                return _Seen(known.owner, nbytes, graphs, refused=True)
            if len(self._seen) >= KNOWN:
                kept = self._seen.copy()  # garbage collection may remove some meanwhile
                self._seen = {k: s for k, s in kept.items() if s.pages is not None}
            seen = self._seen[key] = _Seen(weakref.ref(owner), nbytes, graphs)
            return seen

    def _locked(self, seen: _Seen, owner: Any, address: int, graphs: Graphs) -> Handle | None:
        with self._lock:
            if seen.pages is not None:
                return seen.pages
            start, count = whole_pages(address, seen.nbytes)
            if self.nbytes + count > MOST:
                return None
            try:
                seen.pages = graphs.lock_pages(start, count)
            except GraphError:  # a page is locked already, or a limit is reached
                seen.refused = True
                return None
            self.nbytes += count
            try:
                end = weakref.finalize(
                    owner, self._unlock, (id(owner), address), seen.pages, count, os.getpid()
                )
                end.atexit = False
            except BaseException:  # an interrupt: nothing else would unlock them
                seen.pages.close()
                seen.pages, seen.refused = None, True
                raise
            return seen.pages

    def forked(self) -> None:
        """Stop using locked pages after a fork, in the parent.

        Some kernels leave a shared page to the child and give the parent a copy when it writes. The
        device would read the old page.
        """
        with self._lock:
            for seen in list(self._seen.values()):
                if seen.pages is not None:
                    seen.pages, seen.refused = None, True

    def _unlock(self, key: tuple[int, int], pages: Handle, count: int, process: int) -> None:
        """Unlock pages before the array's memory is freed."""
        if os.getpid() != process:
            return  # the locks belong to the parent of a forked child
        with self._lock:
            pages.close()
            self.nbytes -= count
            seen = self._seen.get(key)
            if seen is not None and seen.pages is pages:
                del self._seen[key]


PINNED_ARRAYS = PinnedArrayRegistry()
"""The registry of this process, because a page can be locked only once."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=PINNED_ARRAYS.forked)


def whole_pages(address: int, nbytes: int) -> tuple[int, int]:
    """Return the start and the bytes of the pages of some memory."""
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    return start, -(-(address + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE - start


FETCHED = "fetched"
"""Key of the graph that reads pinned arrays, among an executable's graphs."""
_log = logging.getLogger("monograph")


class PinnedInputs:
    """The inputs of an executable that are worth locking, and the graph that reads them.

    Smaller inputs are gathered. Executables with donated state have no such graph: their memory is
    written, and a fed array is only read.
    """

    def __init__(
        self, launches: Launches, layout: GpuLayout, registry: PinnedArrayRegistry = PINNED_ARRAYS
    ) -> None:
        self._launches = launches
        self._registry = registry
        self.large = [s.name for s in layout.inputs if nbytes(s) >= SMALLEST]
        self.small = [s.name for s in layout.inputs if nbytes(s) < SMALLEST]
        self.possible = bool(self.large) and not any(s.over for s in layout.outputs)
        self._pages: list[Handle | None] = []
        """Pages that the graph was last bound to."""

    def addresses(self, given: Mapping[str, Any]) -> list[int] | None:
        """Return the addresses of the large arrays, if the device can read all of them."""
        found, pages = [], []
        for name in self.large:
            array = given[name]
            if not array.flags.c_contiguous:
                return None
            address = array.__array_interface__["data"][0]
            # Ask for each array, because every call counts as a run.
            pages.append(self._registry.find(array, address, self._launches.graphs))
            found.append(address)
        if None in pages:
            return None
        if pages != self._pages:
            self._rebind(pages)
        return found

    def _rebind(self, pages: list[Handle | None]) -> None:
        """Make the next launch rebind all addresses, also where they are equal to earlier ones.

        A driver resolves the memory of an address when a copy is written. Pages that were unlocked
        and locked again are different memory to it.
        """
        self._pages = pages
        made = self._launches.made.get(FETCHED)
        if made is not None:
            made.addresses = [made.addresses[0], *(0 for _ in pages)]

    def graph(
        self, addresses: Sequence[int], make: Callable[[Mapping[str, int]], CapturedGraph]
    ) -> CapturedGraph | None:
        """Return the graph that reads pinned arrays, built by `make` from ports and addresses.

        Returns None if it cannot be built; runs then use another graph.
        """
        made = self._launches.made.get(FETCHED)
        if made is None:
            ports = (f"input:{name}" for name in self.large)
            try:
                made = make(dict(zip(ports, addresses, strict=True)))
            except Exception as error:
                self.possible = False
                _log.info("cannot read pinned arrays directly: %s", str(error))
                return None
            self._launches.made[FETCHED] = made
            self._launches.counts.captures += 1
        return made
