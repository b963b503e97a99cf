"""The sum of the statistics of several sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_LARGEST = {
    "launches_per_run", "kernels_per_run", "threads", "streams",
    "peak_bytes", "constant_bytes", "device_bytes",
}  # fmt: skip
"""Numbers of one run or moment: the largest counts, while others are added."""


@dataclass
class Timing:
    """The work so far, and its time."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    prefill_runs: int = 0
    decode_seconds: float = 0.0
    decode_runs: int = 0
    """Steps, including those of loops."""
    decode_launches: int = 0


def add_up(stats: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add the stats of sessions: counts are sums, reasons are merged."""
    total: dict[str, Any] = {}
    for one in stats:
        for name, value in one.items():
            total[name] = _both(name, total[name], value) if name in total else value
    return total


def _both(name: str, a: Any, b: Any) -> Any:
    if isinstance(a, dict):
        return {k: _sum(a[k], b[k]) if k in a and k in b else (a | b)[k] for k in a | b}
    if isinstance(a, list):
        return sorted({*a, *b})
    return max(a, b) if name in _LARGEST else _sum(a, b)


def _sum(a: Any, b: Any) -> Any:
    """Add counts; of names and reasons the later one stays."""
    return a + b if isinstance(a, int) and isinstance(b, int) else b
