"""Kernels, libraries and a device for the fake driver: functions of addresses in Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monograph.codegen.triton.module.launch import BufferRef, Launch
from monograph.runtime.gpu.build.compiler import function
from monograph.runtime.gpu.driver.devices import _INTERPRETING, Interpreter
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
        self.empty = False

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        self.words[position] = memory.data_ptr() + offset

    def launch(self, stream: int) -> None:
        if self.empty and stream not in self.driver._recording:
            return
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
        self.marked: list[int] = []
        """Streams that memory was said to be used on, by whom no graphs serve."""
        self.copies = 0
        """Of what kernels note of their data."""
        self.graphs = graphs
        """The graphs that sessions on this device capture with."""

    def record(self, launch: Launch, arguments: Sequence[BufferRef], stem: str) -> Any:
        from monograph.runtime.gpu.driver.interpreter_batch import Grid

        if launch.aligned is not None:
            return self._sized_record(launch, arguments, stem)
        grid = Grid(function(launch.source, stem), launch.grid)
        kinds = [TORCH[stored(a.dtype)] for a in arguments]

        def run(words: list[int]) -> None:
            tensors = [_at(w, kind) for w, kind in zip(words, kinds, strict=True)]
            with _INTERPRETING:
                grid(*tensors)

        return FakeRecord(self.fake, stem, run, len(arguments))

    def _sized_record(self, launch: Launch, arguments: Sequence[BufferRef], stem: str) -> Any:
        """A launch of code for any shape: sizes and grid are words too."""
        from monograph.runtime.gpu.driver.interpreter_batch import Grid

        kinds = [TORCH[stored(a.dtype)] for a in arguments]
        last = len(kinds) + len(launch.sizes)

        def run(words: list[int]) -> None:
            grid = words[last:]
            assert len(grid) == 3
            assert all(grid), "a driver refuses a launch without work"
            tensors = [_at(w, kind) for w, kind in zip(words[: len(kinds)], kinds, strict=True)]
            with _INTERPRETING:
                Grid(function(launch.source, stem), grid)(*tensors, *words[len(kinds) : last])

        made = FakeRecord(self.fake, stem, run, len(arguments))
        made.words += [n % 2**64 for n in (*launch.sizes, *launch.grid)]
        made.empty = 0 in launch.grid
        return made

    def stream(self) -> int:
        return self.fake.current

    def join(self, stream: int) -> None:
        assert not self.capturing(stream)  # it would draw the current one into its capture
        self.joined.append(stream)

    def capturing(self, stream: int) -> bool:
        return stream in self.fake._recording

    def used(self, memory: Sequence[torch.Tensor]) -> None:
        self.marked.append(self.fake.current)

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        self.copies += 1

        def run(_: list[int]) -> None:
            to.copy_(source)

        self.fake.launch(self.fake.current, "notes", run, [])

    def finish(self) -> None:
        self.fake.drain()


def _at(address: int, kind: torch.dtype) -> torch.Tensor:
    """An element at an address: kernels reach what is behind it by themselves."""
    size = torch.empty(0, dtype=kind).element_size()
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=kind)


def numbers(address: int, count: int, kind: Any = np.float32) -> np.ndarray:
    """So many floats at an address, as an array in the same memory."""
    nbytes = np.dtype(kind).itemsize * count
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), kind)
