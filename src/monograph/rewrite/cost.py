"""The cost model that rules and passes ask, and a default for each target.

The CPU target replaces the figures of `CPU_COST` by measured ones (`runtime/cpu/host_cost.py`), a
GPU those of `GPU_COST` by its driver's description (`runtime/gpu/driver/device_cost.py`).
Rules never hold a threshold of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from monograph.ir.dtype import DType
from monograph.ir.sizes import hint_of


@dataclass(frozen=True)
class Work:
    """The work of one or more kernels: launches, floating-point operations, bytes moved."""

    launches: int
    flops: float
    bytes: float

    def __post_init__(self) -> None:
        # Work is an estimate: it is that of the run that is compiled for.
        object.__setattr__(self, "flops", hint_of(self.flops))
        object.__setattr__(self, "bytes", hint_of(self.bytes))

    def __add__(self, other: Work) -> Work:
        return Work(
            self.launches + other.launches, self.flops + other.flops, self.bytes + other.bytes
        )


class CostModel(Protocol):
    """An estimate of the time of an amount of work, in seconds."""

    @property
    def rows_normalised(self) -> int:
        """The most rows that the kernel of a product normalises itself, at no extra cost."""

    @property
    def narrow_rows_normalised(self) -> int:
        """The same for numbers of 16 bits, which matrix units multiply."""

    @property
    def decodes(self) -> bool:
        """True if one kernel applies rope, updates the caches and computes attention."""

    def seconds(self, work: Work) -> float:
        """Return the time of some work."""


@dataclass(frozen=True)
class LinearCost:
    """Launches cost a fixed time; each kernel is bound by arithmetic or by memory."""

    launch_seconds: float
    flops_per_second: float
    bytes_per_second: float
    rows_normalised: int = 0
    narrow_rows_normalised: int = 0
    decodes: bool = False

    def seconds(self, work: Work) -> float:
        busy = max(work.flops / self.flops_per_second, work.bytes / self.bytes_per_second)
        return work.launches * self.launch_seconds + busy


def rows_normalised(cost: CostModel, dtype: DType) -> int:
    """Return the most rows of a type that the kernel of a product normalises itself."""
    return cost.narrow_rows_normalised if dtype.itemsize <= 2 else cost.rows_normalised


CPU_COST = LinearCost(launch_seconds=0.5e-6, flops_per_second=1.2e11, bytes_per_second=2.0e10)
"""Two cores with wide vectors; kernels of one native function are separated by a barrier only."""
GPU_COST = LinearCost(
    launch_seconds=1.0e-6,
    flops_per_second=2.0e14,
    bytes_per_second=3.0e12,
    rows_normalised=8,
    narrow_rows_normalised=16,
    decodes=True,
)
"""A data-centre GPU at small batch; each kernel is one node of a replayed graph."""
