"""Runs on arrays that are locked where they are: a graph whose copies begin at the caller's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monograph.runtime.gpu.bound_program import GpuLayout
from monograph.runtime.gpu.capture.captured_graph import Recorded
from monograph.runtime.gpu.capture.launches import Launches
from monograph.runtime.gpu.driver.graphs import Handle
from monograph.runtime.gpu.host_io.pinned_arrays import RETURNING, SMALLEST, PinnedArrayRegistry
from monograph.runtime.gpu.host_io.pinned_staging import nbytes

FETCHED = "fetched"
"""The graph of an executable that fetches arrays, among its others."""
_log = logging.getLogger("monograph")


class Fetching:
    """Which inputs of an executable are worth locking, and the graph that fetches them.

    Smaller inputs are gathered as ever. Where state is donated nothing is fetched: its memory is
    read and written, and an array that is fed is only to be read.
    """

    def __init__(
        self, launches: Launches, layout: GpuLayout, returning: PinnedArrayRegistry = RETURNING
    ) -> None:
        self._launches = launches
        self._returning = returning
        self.large = [s.name for s in layout.inputs if nbytes(s) >= SMALLEST]
        self.small = [s.name for s in layout.inputs if nbytes(s) < SMALLEST]
        self.possible = bool(self.large) and not any(s.over for s in layout.outputs)
        self._pages: list[Handle | None] = []
        """Those that the graph was last told to copy from."""

    def addresses(self, given: Mapping[str, Any]) -> list[int] | None:
        """Where the large arrays lie that fit a run, if the device can fetch all of them."""
        found, pages = [], []
        for name in self.large:
            array = given[name]
            if not array.flags.c_contiguous:
                return None
            address = array.__array_interface__["data"][0]
            # Each is asked for, whatever is known of those before: this is a run for it, too.
            pages.append(self._returning.find(array, address, self._launches.graphs))
            found.append(address)
        if None in pages:
            return None
        if pages != self._pages:
            self._tell(pages)
        return found

    def _tell(self, pages: list[Handle | None]) -> None:
        """Has the graph take addresses as moved, also where arrays lie as others lay before them.

        A driver looks up what an address is when it is given a copy: pages that were let go and
        locked again are others to it.
        """
        self._pages = pages
        made = self._launches.made.get(FETCHED)
        if made is not None:
            made.addresses = [made.addresses[0], *(0 for _ in pages)]

    def graph(
        self, addresses: Sequence[int], make: Callable[[Mapping[str, int]], Recorded]
    ) -> Recorded | None:
        """The graph that fetches; made by what is given, of every large input's port and address.

        Runs do without where it cannot be made: they have another.
        """
        made = self._launches.made.get(FETCHED)
        if made is None:
            ports = (f"input:{name}" for name in self.large)
            try:
                made = make(dict(zip(ports, addresses, strict=True)))
            except Exception as error:
                self.possible = False
                _log.info("arrays are not fetched from where they are: %s", str(error))
                return None
            self._launches.made[FETCHED] = made
            self._launches.counts.captures += 1
        return made
