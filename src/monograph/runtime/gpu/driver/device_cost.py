"""The cost model of a GPU, from what its driver tells of it.

Arithmetic follows the multiprocessors and their clock, memory follows its clock and width. Figures
are rounded to powers of two around `GPU_COST`, which was measured on `USUAL`. Without a driver for
CUDA, and for the interpreter or an architecture without a device, `GPU_COST` is used.
"""

from __future__ import annotations

import ctypes
import logging
import math
from dataclasses import dataclass, replace
from functools import cache

from monograph.config import Config
from monograph.rewrite.cost import GPU_COST, LinearCost
from monograph.runtime.gpu.driver.device_discovery import INTERPRETER, names_architecture

_log = logging.getLogger("monograph")
_LIBRARY = "libcuda.so.1"
# Numbers of CUdevice_attribute; clocks are in kHz, the width of memory is in bits.
_CLOCK, _PROCESSORS, _MEMORY_CLOCK, _MEMORY_BITS = 13, 16, 36, 37
WIDEST = 3
"""The largest distance of a figure from its default, in powers of two."""


@dataclass(frozen=True)
class DeviceRates:
    """The figures of a device: multiprocessor cycles and bytes of memory per second."""

    cycles_per_second: float
    bytes_per_second: float


USUAL = DeviceRates(132 * 1.98e9, 4.9e12)
"""The device that `GPU_COST` was measured on, an H200."""


def device_cost(config: Config) -> LinearCost:
    """Return the cost model of the GPU that a configuration names."""
    if config.device == INTERPRETER or names_architecture(config.device):
        return GPU_COST
    found = _described(int(config.device or 0))
    return GPU_COST if found is None else rounded(found)


def rounded(found: DeviceRates) -> LinearCost:
    """Return a cost model whose figures are powers of two times those of `GPU_COST`."""
    arithmetic = _steps(found.cycles_per_second / USUAL.cycles_per_second)
    memory = _steps(found.bytes_per_second / USUAL.bytes_per_second)
    return replace(
        GPU_COST,
        flops_per_second=GPU_COST.flops_per_second * arithmetic,
        bytes_per_second=GPU_COST.bytes_per_second * memory,
    )


def _steps(ratio: float) -> float:
    return 2.0 ** max(-WIDEST, min(WIDEST, round(math.log2(ratio))))


@cache
def _described(index: int) -> DeviceRates | None:
    """Ask the driver for the figures of a device; None if it does not tell all of them."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    device = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    figures = []
    for attribute in (_PROCESSORS, _CLOCK, _MEMORY_CLOCK, _MEMORY_BITS):
        number = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device):
            return None
        figures.append(number.value)
    processors, clock, memory_clock, bits = figures
    if min(figures) <= 0:
        return None
    # Memory moves data at both edges of its clock.
    found = DeviceRates(processors * clock * 1e3, 2 * memory_clock * 1e3 * bits / 8)
    _log.info("the driver describes gpu:%d: %s", index, found)
    return found
