"""A run on state that stays where it is, with nothing looked at twice.

A decoder's step has dozens of caches, and checking them takes as long as some of its kernels. When
the very arrays of the last run come again, what was found then still holds: that they fit, that
they overlap nothing, where they are. Only the other inputs are looked at, and they have to be
arrays of their own, like the last ones. Whatever is not so goes the long way.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from monograph.ir import Array
from monograph.runtime.cpu.launch import NativeExecutable


class Again:
    """What is known from the last run of an executable."""

    def __init__(
        self,
        executable: NativeExecutable,
        states: Mapping[str, tuple[str, Array]],
        named: bool,
        use: Callable[[], None],
    ) -> None:
        layout = executable.layout
        self._executable, self._named, self._use = executable, named, use
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
        self._results: list[tuple[int, int, tuple[int, ...], Any]] = []
        """For each output the number of its state, or -1; its slot; what it is."""
        for buffer in layout.results:
            s = by_buffer[buffer]
            number = numbers.get(s.name, -1)
            if number >= 0:
                self._slots[s.index] = kept[states[s.name][0]].__array_interface__["data"][0]
            self._results.append((number, s.index, s.shape, s.dtype.numpy))

    def run(self, feeds: Any, out: Any) -> list[Any] | None:
        """The outputs, or None where something is not as it was."""
        if feeds.__class__ is not dict or len(feeds) != self._count:
            return None
        places = out if self._named else feeds
        if (out is not None) != self._named or (self._named and out.__class__ is not dict):
            return None
        if self._named and len(out) != len(self._states):
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
            given: Any = feeds.get(name)
            if given.__class__ is not np.ndarray or given.shape != shape or given.dtype != dtype:
                return None
            # An array with memory of its own lies in no other's.
            if given.base is not None or id(given) in self._own or not given.flags.c_contiguous:
                return None
            slots[index] = given.__array_interface__["data"][0]
        try:
            self._use()
        except KeyError:  # others have been used more since
            return None
        made: list[Any] = []
        for number, index, shape, dtype in self._results:
            result = np.empty(shape, dtype) if number < 0 else held[number]
            if number < 0:
                slots[index] = result.__array_interface__["data"][0]
            made.append(result)
        self._executable.run_at(slots)
        return made


def again(
    executable: Any,
    feeds: Mapping[str, Any],
    places: Mapping[str, Any],
    donate: Mapping[str, str],
    named: frozenset[str],
    use: Callable[[], None],
) -> Again | None:
    """What a run has shown that the next one can count on; None where that is nothing.

    `places` are the arrays that outputs were written into, `named` those that the caller named.
    """
    if not donate or not isinstance(executable, NativeExecutable) or not executable.layout.whole:
        return None
    if named and named != frozenset(donate):
        return None
    layout = executable.layout
    inputs = {s.buffer: s.name for s in layout.inputs}
    outputs = {s.buffer: s for s in layout.outputs}
    if any(b not in outputs for b in layout.results) or len(feeds) != len(layout.inputs):
        return None
    written = {s.name: inputs.get(s.over) for s in layout.outputs}
    states = {}
    for output, input_ in donate.items():
        array = feeds.get(input_)
        in_place = written.get(output) == input_ and places.get(output) is array
        if not in_place or not isinstance(array, np.ndarray) or array.base is not None:
            return None
        states[output] = (input_, array)
    return Again(executable, states, bool(named), use)
