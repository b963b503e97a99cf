"""Arrays of callers that come back: their pages are locked, and the device fetches them itself.

To gather an array in pinned memory costs the host more than anything else of a run on large arrays.
Locking pages costs still more, but once: it pays for an array that is fed again and again, such as
the one that a camera or a decoder fills. Nobody but the owner of the memory can say how long it
lives: only memory that belongs to a numpy array is locked, and let go before the array frees it.
"""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.runtime.forking import ForkLock
from monograph.runtime.gpu.driver.graphs import GraphError, Graphs, Handle

OFTEN = 8
"""Runs that are given an array before it is locked: that costs as much as a few runs save."""
SMALLEST = 128 << 10
"""Bytes of an array from which it is worth while: less is gathered sooner than the copy starts."""
MOST = 256 << 20
"""Bytes that are locked at once, by all sessions of a process. Nothing makes room for another: what
is locked and let go in turns would cost more than it saves."""
KNOWN = 64
"""Arrays that are remembered before they are locked."""


@dataclass(eq=False)
class _Seen:
    """A place in an array that runs were given."""

    owner: weakref.ref[Any]
    nbytes: int
    graphs: Graphs
    """Of the device that it was locked for: another device's graphs may not copy from there."""
    runs: int = 0
    pages: Handle | None = None
    refused: bool = False


class PinnedArrayRegistry:
    """What runs were given, and what of it is locked. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = ForkLock()  # one that is entered twice: a collection may free an array
        self._seen: dict[tuple[int, int], _Seen] = {}
        self.nbytes = 0
        """What is locked now."""

    def find(self, array: Any, address: int, graphs: Graphs) -> Handle | None:
        """The locked pages of a dense array, if the device can fetch it; every call is a run."""
        owner = array
        while owner.base is not None:
            owner = owner.base
            if owner.__class__ is not np.ndarray:
                return None  # of a mapped file, another library: it may go at any time
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
                # The same place of the same array, but more of it: what is locked stays.
                return _Seen(known.owner, nbytes, graphs, refused=True)
            if len(self._seen) >= KNOWN:
                kept = self._seen.copy()  # a collection may let go of some meanwhile
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
            except GraphError:  # a page may be another's already, or there is a limit
                seen.refused = True
                return None
            self.nbytes += count
            try:
                end = weakref.finalize(
                    owner, self._let_go, (id(owner), address), seen.pages, count, os.getpid()
                )
                end.atexit = False
            except BaseException:  # an interrupt: nobody would let go of them
                seen.pages.close()
                seen.pages, seen.refused = None, True
                raise
            return seen.pages

    def forked(self) -> None:
        """Behind a fork, in the parent: what is locked is gathered from now on.

        Some kernels give a page that parent and child share to the child, and the parent another
        when it writes to it. The device would go on reading the old one.
        """
        with self._lock:
            for seen in list(self._seen.values()):
                if seen.pages is not None:
                    seen.pages, seen.refused = None, True

    def _let_go(self, key: tuple[int, int], pages: Handle, count: int, process: int) -> None:
        """Before the array's memory is freed: nobody else can have it meanwhile."""
        if os.getpid() != process:
            return  # what a forked child has inherited is its parent's
        with self._lock:
            pages.close()
            self.nbytes -= count
            seen = self._seen.get(key)
            if seen is not None and seen.pages is pages:
                del self._seen[key]


RETURNING = PinnedArrayRegistry()
"""Of this process: pages can be locked only once, whichever session wants them."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=RETURNING.forked)


def whole_pages(address: int, nbytes: int) -> tuple[int, int]:
    """Where the pages of some memory begin, and how many bytes they have."""
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    return start, -(-(address + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE - start
