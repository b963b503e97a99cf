"""Counts and times of the requests and runs of a model."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any


@dataclass
class Duration:
    """A number of events and their time together."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.ns += int(seconds * 1e9)

    def as_dict(self) -> dict[str, int]:
        """Return the form of the protocol."""
        return {"count": self.count, "ns": self.ns}


SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""The bounds of histograms of times."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass
class Histogram:
    """Counts of values between bounds, and the sum of the values."""

    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def names(self) -> list[str]:
        """Return the upper bounds as texts."""
        return [*(f"{b:g}" for b in self.bounds), "+Inf"]

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the number of values up to each bound."""
        return list(zip(self.names(), map(float, accumulate(self.counts)), strict=True))


@dataclass
class ModelStatistics:
    """Counts of one version of a model; the threads that run it write in turn, others read."""

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    generated: int = 0
    latency: Histogram = field(default_factory=Histogram)
    batch_rows: Histogram = field(default_factory=lambda: Histogram(ROWS))
    first: Histogram = field(default_factory=Histogram)
    between: Histogram = field(default_factory=Histogram)
    compiled_aside: int = 0
    """Sets of shapes that were compiled while the model was serving."""
    rows: int = 0
    runs: int = 0
    padding: int = 0
    """Rows that were run and belong to no request."""
    last_ms: int = 0
    """The time of the last request in milliseconds since 1970."""
    batches: dict[int, Duration] = field(default_factory=dict)
    """Runs by their number of rows."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failed requests by the kind of failure."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Runs without compiled code for their sizes, by reason."""
    retries: Counter[str] = field(default_factory=Counter)
    """Requests that were sent to another replica, by reason."""

    def ran(self, rows: int, seconds: float) -> None:
        """Count a run."""
        self.runs += 1
        self.rows += rows
        self.batch_rows.add(rows)
        self.compute_infer.add(seconds)
        self.batches.setdefault(rows, Duration()).add(seconds)
        self.last_ms = int(time.time() * 1e3)

    def tokens(self, seconds: float, first: bool, since_arrival: float) -> None:
        """Count a generated token."""
        self.generated += 1
        if first:
            self.runs += 1
            self.first.add(since_arrival)
            self.last_ms = int(time.time() * 1e3)
        else:
            self.between.add(seconds)

    def succeeded(self, seconds: float) -> None:
        """Count an answered request."""
        self.success.add(seconds)
        self.latency.add(seconds)

    def failed(self, kind: str, seconds: float) -> None:
        """Count a failed request."""
        self.failures[kind] += 1
        self.fail.add(seconds)

    def as_dict(self) -> dict[str, object]:
        """Return the form of the protocol."""
        parts = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
        nothing = Duration().as_dict()
        return {
            "last_inference": self.last_ms,
            "inference_count": self.rows,
            "execution_count": self.runs,
            "inference_stats": {
                **{name: getattr(self, name).as_dict() for name in parts},
                "cache_hit": nothing,
                "cache_miss": nothing,
            },
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": nothing,
                    "compute_infer": took.as_dict(),
                    "compute_output": nothing,
                }
                for rows, took in sorted(self.batches.items())
            ],
        }


def memory_of(stats: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes that the statistics of a session tell, by their use."""
    return {
        "weights": int(stats.get("constant_bytes", 0)),
        "temporaries": int(stats.get("peak_bytes", 0)),
    }


def fallbacks_of(stats: Mapping[str, Any], own: Mapping[str, int]) -> dict[str, int]:
    """Return the fallbacks of a server and those of its session, by reason."""
    found = Counter(own)
    for reason, count in (stats.get("fallbacks") or {}).items():
        found[str(reason)] += int(count)
    return dict(found)
