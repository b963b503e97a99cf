"""The fast path of CPU runs on donated state that stays where it is.

A decoding step has dozens of caches, and their checks take as long as some of its kernels. If a
run gets the same arrays as the last run, the results of those checks still hold: the arrays fit,
they overlap nothing, and their addresses are known. Only the other inputs are checked. They must
be arrays that own their memory, like those of the last run.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from monograph.ir import Array
from monograph.runtime.executable import DonatedRun, Feeds, Outputs, Stream

if TYPE_CHECKING:
    from monograph.runtime.cpu.launch import NativeExecutable


class StateInPlace:
    """Runs of one executable on the donated arrays of its last run."""

    def __init__(
        self, executable: NativeExecutable, states: Mapping[str, tuple[str, Array]], run: DonatedRun
    ) -> None:
        """states: by output, the input that it overwrites and its array."""
        layout = executable.layout
        self._executable, self._named, self._use = executable, bool(run.named), run.use
        self._states = [(i, o, weakref.ref(a), a.shape, a.dtype) for o, (i, a) in states.items()]
        kept = dict(states.values())
        self._own = frozenset(map(id, kept.values()))
        self._moving = [
            (s.index, s.name, s.shape, s.dtype.numpy) for s in layout.inputs if s.name not in kept
        ]
        self._count = len(layout.inputs)
        self._slots = np.zeros(1 + max(s.index for s in layout.outputs), np.int64)
        for slot in layout.inputs:
            if slot.name in kept:
                self._slots[slot.index] = kept[slot.name].__array_interface__["data"][0]
        numbers = {o: n for n, o in enumerate(states)}
        by_buffer = {s.buffer: s for s in layout.outputs}
        self._results: list[tuple[int, int, tuple[int, ...], np.dtype]] = []
        """For each output the number of its state, or -1; its slot, shape and element type."""
        for buffer in layout.results:
            s = by_buffer[buffer]
            number = numbers.get(s.name, -1)
            if number >= 0:
                self._slots[s.index] = kept[states[s.name][0]].__array_interface__["data"][0]
            self._results.append((number, s.index, s.shape, s.dtype.numpy))

    def try_run(self, feeds: Feeds, out: Feeds | None) -> Outputs | None:
        """Run in place, or return None if an array is not what it was in the last run."""
        if feeds.__class__ is not dict or len(feeds) != self._count:
            return None
        if (out is not None) != self._named:
            return None
        places = feeds if out is None else out
        if out is not None and (out.__class__ is not dict or len(out) != len(self._states)):
            return None
        held: list[Array] = []
        for input_, output, reference, shape, dtype in self._states:
            array = reference()
            if array is None:
                return None
            place = places.get(output if self._named else input_)
            comes_back = feeds.get(input_) is array and place is array
            if not comes_back:
                return None
            flags = array.flags
            if array.shape != shape or array.dtype != dtype:
                return None
            if not (flags.writeable and flags.c_contiguous):
                return None
            held.append(array)
        slots = self._slots.copy()
        for index, name, shape, dtype in self._moving:
            given = feeds.get(name)
            if given.__class__ is not np.ndarray or given.shape != shape or given.dtype != dtype:
                return None
            # An array that owns its memory overlaps no other array.
            if given.base is not None or id(given) in self._own or not given.flags.c_contiguous:
                return None
            slots[index] = given.__array_interface__["data"][0]
        try:
            self._use()
        except KeyError:  # the session has dropped the executable
            return None
        made: Outputs = []
        for number, index, shape, dtype in self._results:
            result = np.empty(shape, dtype) if number < 0 else held[number]
            if number < 0:
                slots[index] = result.__array_interface__["data"][0]
            made.append(result)
        self._executable.run_at(slots)
        return made

    def try_start(self, feeds: Feeds, out: Feeds | None, stream: Stream) -> None:
        """Decline: a CPU run is not enqueued."""


def remember_state(executable: NativeExecutable, run: DonatedRun) -> StateInPlace | None:
    """Return the fast path for the state of a run; None if some of it moved or was copied."""
    layout, donate = executable.layout, run.donate
    if not donate or not layout.whole or (run.named and run.named != frozenset(donate)):
        return None
    inputs = {s.buffer: s.name for s in layout.inputs}
    outputs = {s.buffer: s for s in layout.outputs}
    if any(b not in outputs for b in layout.results) or len(run.feeds) != len(layout.inputs):
        return None
    written = {s.name: inputs.get(s.over) for s in layout.outputs}
    states = {}
    for output, input_ in donate.items():
        array = run.feeds.get(input_)
        in_place = written.get(output) == input_ and run.places.get(output) is array
        if not in_place or not isinstance(array, np.ndarray) or array.base is not None:
            return None
        states[output] = (input_, array)
    return StateInPlace(executable, states, run)
