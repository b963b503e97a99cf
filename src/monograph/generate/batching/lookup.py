"""Prompt lookup: tokens are proposed from earlier text, and several are checked in one step.

A sequence often repeats what it said or was told. If its last tokens occurred before, those that
followed then are likely to follow again. One step computes the logits after each proposed token; a
token is kept while it is the one that plain decoding chooses, so that the output is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

MATCHED = 3
"""The tokens at the end of a sequence that must have occurred before."""
MOST_PROPOSED = 16
_FORGET = 0.9
"""The weight of older observations."""


@dataclass(eq=False)
class Repeats:
    """The places in a sequence by the tokens before them, and how often proposals were right."""

    _places: dict[tuple[int, ...], int] = field(default_factory=dict)
    _indexed: int = MATCHED - 1
    _right: float = 1.0
    _all: float = 2.0

    def proposals(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return the tokens that followed the last place like this one; none if there is none."""
        for place in range(self._indexed + 1, len(tokens)):
            self._places[tuple(tokens[place - MATCHED : place])] = place
        self._indexed = max(self._indexed, len(tokens) - 1)
        place_before = self._places.get(tuple(tokens[-MATCHED:]))
        if place_before is None:
            return []
        found: list[int] = []
        for at in range(place_before, place_before + count):
            found.append(tokens[at] if at < len(tokens) else found[at - len(tokens)])
        return found

    def observe(self, right: bool) -> None:
        """Count a proposed token that was right or wrong."""
        self._right = self._right * _FORGET + right
        self._all = self._all * _FORGET + 1

    def expected(self, count: int) -> float:
        """Return how many of so many proposed tokens are likely to be kept."""
        share = self._right / self._all
        return sum(share**k for k in range(1, count + 1))


class PromptLookup:
    """Decides by measured times whether a step checks proposed tokens.

    count: the most tokens that are proposed for a sequence.
    """

    def __init__(self, count: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.count = count
        self.clock = clock
        self._seconds: dict[tuple[int, int], float | None] = {}
        """The time of a step by its rows and tokens; None after the first, which compiles."""

    def add_time(self, rows: int, size: int, seconds: float) -> None:
        """Add the time of a step of some rows with `size` tokens each."""
        key = (rows, size)
        if key not in self._seconds:
            self._seconds[key] = None
            return
        old = self._seconds[key]
        self._seconds[key] = seconds if old is None else old * _FORGET + seconds * (1 - _FORGET)

    def pays(self, rows: int, active: int, guesses: Mapping[Repeats, Sequence[int]]) -> bool:
        """Return True if a check is likely to make more tokens in its time than plain steps.

        active: the sequences that get tokens, those without proposals too.
        """
        if not any(guesses.values()):
            return False
        plain = self._seconds.get((rows, 1))
        check = self._seconds.get((rows, 1 + self.count))
        if plain is None:
            return False  # first measure plain steps
        if check is None:
            return True
        made = active + sum(r.expected(len(g)) for r, g in guesses.items())
        return check * active <= plain * made
