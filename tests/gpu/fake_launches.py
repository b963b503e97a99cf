"""Kernels, libraries and a device for the fake driver: functions of addresses in Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monograph.codegen.triton.kernel import Launch
from monograph.codegen.triton.layout import Where
from monograph.runtime.gpu.devices import _INTERPRETING, Interpreter
from monograph.runtime.gpu.source import function
from monograph.runtime.gpu.tensors import TORCH, stored

if TYPE_CHECKING:
    from tests.gpu.fake_driver import FakeDriver

Function = Callable[[list[int]], None]


class FakeRecord:
    """A launch of our own: the words of its parameters, and a function of them."""

    def __init__(self, driver: FakeDriver, name: str, run: Function, arguments: int) -> None:
        self.driver = driver
        self.name = name
        self.run = run
        self.words = [0] * arguments

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        self.words[position] = memory.data_ptr() + offset

    def launch(self, stream: int) -> None:
        blobs = [w.to_bytes(8, "little") for w in self.words]
        self.driver.launch(stream, self.name, self.run, blobs)


class FakeLibrary:
    """A library's launch: a function that tells the driver what to do with some addresses."""

    def __init__(self, call: Callable[[list[int], int], None], arguments: int) -> None:
        self.call = call
        self.words = [0] * arguments

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        self.words[position] = memory.data_ptr() + offset

    def launch(self, stream: int) -> None:
        self.call(self.words, stream)


class FakeDevice(Interpreter):
    """Triton's interpreter behind a driver that records."""

    def __init__(self, driver: FakeDriver, graphs: Any = None) -> None:
        self.fake = driver
        self.joined: list[int] = []
        self.graphs = graphs
        """What sessions on this device capture with."""

    def record(self, launch: Launch, arguments: Sequence[Where], stem: str) -> Any:
        made = function(launch.source, stem)
        kinds = [TORCH[stored(a.dtype)] for a in arguments]

        def run(words: list[int]) -> None:
            tensors = [_at(w, kind) for w, kind in zip(words, kinds, strict=True)]
            with _INTERPRETING:
                made[launch.grid](*tensors)

        return FakeRecord(self.fake, stem, run, len(arguments))

    def stream(self) -> int:
        return self.fake.current

    def join(self, stream: int) -> None:
        self.joined.append(stream)


def _at(address: int, kind: torch.dtype) -> torch.Tensor:
    """An element at an address: kernels reach what is behind it by themselves."""
    size = torch.empty(0, dtype=kind).element_size()
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=kind)


def numbers(address: int, count: int) -> np.ndarray:
    """So many floats at an address, as an array in the same memory."""
    return np.frombuffer((ctypes.c_char * (4 * count)).from_address(address), np.float32)
