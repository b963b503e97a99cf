"""What rules that trade work for launches ask: the protocol, and a default for each target.

Targets refine these numbers with measurements; rules never hold a threshold of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Work:
    """What some kernels do together: launches, floating-point operations, bytes moved."""

    launches: int
    flops: float
    bytes: float

    def __add__(self, other: Work) -> Work:
        return Work(
            self.launches + other.launches, self.flops + other.flops, self.bytes + other.bytes
        )


class CostModel(Protocol):
    """Seconds for an amount of work."""

    def seconds(self, work: Work) -> float: ...


def rows_normalised(cost: CostModel) -> int:
    """Rows up to which a target's products normalise them; 0 where a cost model does not say."""
    return int(getattr(cost, "rows_normalised", 0))


def decodes(cost: CostModel) -> bool:
    """Whether a target does a step of decoding in one kernel; not where a cost model is silent."""
    return bool(getattr(cost, "decodes", False))


@dataclass(frozen=True)
class LinearCost:
    """Launches cost a fixed time; each kernel is bound by arithmetic or by memory."""

    launch_seconds: float
    flops_per_second: float
    bytes_per_second: float
    rows_normalised: int = 0
    """Rows up to which the kernel of a product normalises them itself, at no cost of its own."""
    decodes: bool = False
    """Whether one kernel turns a query, adds to the caches and attends to them."""

    def seconds(self, work: Work) -> float:
        busy = max(work.flops / self.flops_per_second, work.bytes / self.bytes_per_second)
        return work.launches * self.launch_seconds + busy


CPU_COST = LinearCost(launch_seconds=0.5e-6, flops_per_second=1.2e11, bytes_per_second=2.0e10)
"""Two wide-vector cores; between kernels of one native function stands only a barrier."""
GPU_COST = LinearCost(
    launch_seconds=1.0e-6,
    flops_per_second=2.0e14,
    bytes_per_second=3.0e12,
    rows_normalised=8,
    decodes=True,
)
"""A data-centre GPU at small batch, one node of a replayed graph a kernel."""
