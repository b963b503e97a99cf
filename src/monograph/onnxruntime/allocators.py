"""ONNX Runtime's descriptions of memory. Monograph plans memory itself: they have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from monograph.onnxruntime.options import NamedNumber, log_once


class OrtAllocatorType(NamedNumber):
    """Kinds of allocators."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(NamedNumber):
    """Uses of memory."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(NamedNumber):
    """Kinds of memory of a device."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(NamedNumber):
    """Kinds of devices."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


@dataclass(frozen=True)
class OrtMemoryInfo:
    """A kind of memory on a device."""

    name: str
    allocator_type: OrtAllocatorType
    device_id: int
    mem_type: OrtMemType

    @property
    def device_mem_type(self) -> OrtDeviceMemoryType:
        """The kind of memory: the default one."""
        return OrtDeviceMemoryType.DEFAULT

    @property
    def device_vendor_id(self) -> int:
        """The number of the vendor: of none."""
        return 0


class OrtArenaCfg:
    """The settings of an arena: four numbers, or a dict of them."""

    max_mem: int
    arena_extend_strategy: int
    initial_chunk_size_bytes: int
    max_dead_bytes_per_chunk: int
    initial_growth_chunk_size_bytes: int
    max_power_of_two_extend_bytes: int

    _names = (
        "max_mem", "arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk",
        "initial_growth_chunk_size_bytes", "max_power_of_two_extend_bytes",
    )  # fmt: skip

    def __init__(self, *given: Any) -> None:
        if len(given) == 1 and isinstance(given[0], Mapping):
            found = dict(given[0])
        elif len(given) == 4:
            found = dict(zip(self._names, given, strict=False))
        else:
            raise TypeError("OrtArenaCfg takes a dict of settings, or four numbers")
        if unknown := sorted(set(found) - set(self._names)):
            raise RuntimeError(f"Invalid OrtArenaCfg option: {', '.join(map(str, unknown))}")
        for name in self._names:
            default = 0 if name == "max_mem" else -1
            setattr(self, name, int(found.get(name, default)))


_Arena: TypeAlias = "OrtArenaCfg | None"


def create_and_register_allocator(memory: OrtMemoryInfo, arena: _Arena) -> None:
    """Accept an allocator that sessions share, without effect."""
    log_once(f"the allocator that was registered for {memory.name} has no effect")


def create_and_register_allocator_v2(
    provider: str, memory: OrtMemoryInfo, options: Mapping[str, str], arena: _Arena
) -> None:
    """Accept an allocator of a provider that sessions share, without effect."""
    create_and_register_allocator(memory, arena)


HOST = OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)
"""The memory of the host."""
