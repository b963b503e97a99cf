"""The executables that a session keeps, the least recently used ones first."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any, TypeAlias

from monograph.runtime.executable import ANY_SHAPE, Executable

Key: TypeAlias = tuple[Any, ...]
MOST_BOUND = 256
"""The most executables that share the code and the memory of others; each takes some 10 KB."""


class KeptExecutables:
    """Executables by key. Those with code of their own have a limit of their own."""

    def __init__(self, limit: int) -> None:
        """limit: the most executables with code of their own."""
        self.gone: Counter[str] = Counter()
        """The counts of executables that were dropped."""
        self.added = 0
        """The number of executables that have been kept so far."""
        self._limit = limit
        self._kept: OrderedDict[Key, Executable] = OrderedDict()

    def find(self, key: Key) -> Executable | None:
        """Return an executable and mark it as used."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def holds(self, key: Key) -> bool:
        """Return True if there is such an executable."""
        return key in self._kept

    def use(self, key: Key) -> None:
        """Mark an executable as used; KeyError if it has been dropped."""
        self._kept.move_to_end(key)

    def keep(self, key: Key, made: Executable) -> None:
        """Keep an executable; drop the least recently used ones beyond the limits."""
        self._kept[key] = made
        self.added += 1
        bound = [k for k, e in self._kept.items() if e.tier == ANY_SHAPE]
        if len(bound) > MOST_BOUND:
            self._drop(bound[0])
        if len(self._kept) - len(bound) > self._limit:
            self._drop(next(k for k, e in self._kept.items() if e.tier != ANY_SHAPE))

    def items(self) -> list[tuple[Key, Executable]]:
        """Return the keys and executables, the least recently used first."""
        return list(self._kept.items())

    def clear(self) -> None:
        """Drop all."""
        for key in list(self._kept):
            self._drop(key)

    def _drop(self, key: Key) -> None:
        e = self._kept.pop(key)
        self.gone.update(runs=e.runs, specialisations=e.specialisations, copies=e.copies)
