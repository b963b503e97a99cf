"""The trace of a rewrite: the firings, and the reasons of rules that did not fire."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from dataclasses import dataclass, field

MISSES_KEPT = 32
KEPT_PER_REASON = 8
"""The number of misses kept per reason, so that a common reason does not hide the others."""


@dataclass(frozen=True)
class Fired:
    """A rewrite that happened: the rule, the ONNX nodes behind it, the text before and after."""

    rule: str
    origin: str
    before: str
    after: str


@dataclass(frozen=True, order=True)
class Missed:
    """A place where a rule nearly applied; a higher score is a nearer miss."""

    score: int
    rule: str
    origin: str
    reason: str


@dataclass
class Trace:
    """Collects rewrites and the nearest misses of each rule."""

    fired: list[Fired] = field(default_factory=list)
    misses: dict[str, list[Missed]] = field(default_factory=dict)
    seen: set[tuple[str, str, str]] = field(default_factory=set)
    tally: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of times that a rule declined for a reason, whatever the values."""

    def note_fired(self, rule: str, origin: str, before: str, after: str) -> None:
        self.fired.append(Fired(rule, origin, before, after))

    def note_missed(
        self, rule: str, origin: str, reason: str, score: int, *, always: bool = False
    ) -> None:
        """Record that a rule declined; `always` keeps the miss beyond the limit per reason."""
        key = (rule, origin, reason)
        if key in self.seen:
            return
        self.seen.add(key)
        alike = (rule, _without_values(reason))
        self.tally[alike] += 1
        if self.tally[alike] > KEPT_PER_REASON and not always:
            return
        kept = self.misses.setdefault(rule, [])
        entry = Missed(score, rule, origin, reason)
        if always or len(kept) < MISSES_KEPT:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)

    def nearest(self, rule: str) -> list[Missed]:
        """Return the misses of a rule, nearest first; of equally near ones rare reasons first."""

        def order(m: Missed) -> tuple[int, int, str, str]:
            return -m.score, self.tally[rule, _without_values(m.reason)], m.origin, m.reason

        return sorted(self.misses.get(rule, []), key=order)

    def counts(self) -> dict[str, int]:
        """Return the number of firings of each rule."""
        totals: dict[str, int] = {}
        for f in self.fired:
            totals[f.rule] = totals.get(f.rule, 0) + 1
        return totals


def _without_values(reason: str) -> str:
    return re.sub("<[^>]*>", "<>", reason.split(" (expected", 1)[0])
