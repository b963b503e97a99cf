"""Counters of the backend of `torch.compile`: what was compiled, and what ran eagerly and why."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

import torch

_log = logging.getLogger("monograph")


class Counters:
    """Counts of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forget all counts, and which reasons were logged."""
        self.graphs = self.exports = self.runs = 0
        self._eager: Counter[str] = Counter()
        self._breaks_before = _graph_breaks()

    def count(self, name: str) -> None:
        """Add one to `graphs`, `exports` or `runs`."""
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)

    def count_eager(self, reason: str) -> None:
        """Count a run of torch's own, and log its reason the first time."""
        with self._lock:
            self._eager[reason] += 1
            first = self._eager[reason] == 1
        if first:
            _log.warning("torch.compile: a graph runs eagerly: %s", reason)

    def as_dict(self) -> dict[str, Any]:
        breaks = _graph_breaks() - self._breaks_before
        with self._lock:
            return {
                "graphs": self.graphs,
                "exports": self.exports,
                "runs": self.runs,
                "eager_runs": sum(self._eager.values()),
                "eager_reasons": dict(self._eager),
                "graph_breaks": sum(breaks.values()),
                "graph_break_reasons": dict(breaks),
            }


def _graph_breaks() -> Counter[str]:
    """Return how often torch has split a model in this process, by the first line of the reason."""
    counted = torch._dynamo.utils.counters
    found: Counter[str] = Counter()
    # torch counts a branch on data under the second name.
    for reason, times in (*counted["graph_break"].items(), *counted["unimplemented"].items()):
        found[str(reason).splitlines()[0]] += times
    return found


COUNTERS = Counters()


def stats() -> dict[str, Any]:
    """Return the counts of this process since the last `reset_stats`.

    `graphs` that torch handed over, `exports` of them, `runs` of compiled code, `eager_runs` by
    reason (`eager_reasons`), and `graph_breaks`, where torch split a model, by reason.
    """
    return COUNTERS.as_dict()


def reset_stats() -> None:
    """Set all counts to 0; reasons that were logged are logged again."""
    COUNTERS.reset()
