"""The executables that a session keeps, the least recently used ones first.

Executables are added and dropped under the session's lock. Runs mark theirs as used without it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from monograph.runtime.executable import ANY_SHAPE, Executable

Key: TypeAlias = tuple[Any, ...]
MOST_BOUND = 256
"""The most executables that share the code and the memory of others; each takes some 10 KB."""


@dataclass(slots=True)
class _Kept:
    executable: Executable
    used: int
    """The number of the last use; later ones are greater."""


class KeptExecutables:
    """Executables by key. Those with code of their own have a limit of their own."""

    def __init__(self, limit: int) -> None:
        """limit: the most executables with code of their own."""
        self.gone: Counter[str] = Counter()
        """The counts of executables that were dropped."""
        self.added = 0
        """The number of executables that have been kept so far."""
        self._limit = limit
        self._kept: dict[Key, _Kept] = {}
        self._uses = itertools.count()

    def find(self, key: Key) -> Executable | None:
        """Return an executable and mark it as used."""
        found = self._kept.get(key)
        if found is None:
            return None
        found.used = next(self._uses)
        return found.executable

    def holds(self, key: Key) -> bool:
        """Return True if there is such an executable."""
        return key in self._kept

    def use(self, key: Key) -> None:
        """Mark an executable as used; KeyError if it has been dropped."""
        self._kept[key].used = next(self._uses)

    def keep(self, key: Key, made: Executable) -> None:
        """Keep an executable; drop the least recently used ones beyond the limits."""
        self._kept[key] = _Kept(made, next(self._uses))
        self.added += 1
        bound = [k for k, e in self._kept.items() if e.executable.tier == ANY_SHAPE]
        if len(bound) > MOST_BOUND:
            self._drop(self._least_used(bound))
        if len(self._kept) - len(bound) > self._limit:
            self._drop(self._least_used(self._kept.keys() - set(bound)))

    def items(self) -> list[tuple[Key, Executable]]:
        """Return the keys and executables, the least recently used first."""
        found = sorted(self._kept.items(), key=lambda pair: pair[1].used)
        return [(key, kept.executable) for key, kept in found]

    def clear(self) -> None:
        """Drop all."""
        for key in list(self._kept):
            self._drop(key)

    def _least_used(self, keys: Iterable[Key]) -> Key:
        return min(keys, key=lambda key: self._kept[key].used)

    def _drop(self, key: Key) -> None:
        e = self._kept.pop(key).executable
        self.gone.update(runs=e.runs, specialisations=e.specialisations, copies=e.copies)
