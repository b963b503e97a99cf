"""What runs kernels: a device by its driver, or Triton's interpreter in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from monograph.codegen.triton.kernel import Arch, Launch
from monograph.codegen.triton.layout import Where
from monograph.runtime.gpu.source import function
from monograph.runtime.gpu.tensors import typed


class Record(Protocol):
    """A launch that is ready but for some addresses."""

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        """Lets an argument point into some memory, so many bytes from its start."""

    def launch(self, stream: int) -> None:
        """Enqueues the kernel on a stream."""


class Device(Protocol):
    """A place that has memory and runs kernels."""

    arch: Arch
    place: torch.device

    def record(self, launch: Launch, arguments: Sequence[Where], stem: str) -> Record:
        """A kernel compiled and loaded."""

    def stream(self) -> int:
        """The stream that work goes to now."""

    def synchronise(self) -> None:
        """Waits for everything enqueued."""


class _Interpreted:
    def __init__(self, launch: Launch, arguments: Sequence[Where], stem: str) -> None:
        self._function: Any = function(launch.source, stem)
        self._grid = launch.grid
        self._dtypes = [a.dtype for a in arguments]
        self._tensors: list[torch.Tensor | None] = [None] * len(arguments)

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        self._tensors[position] = typed(memory, offset, self._dtypes[position])

    def launch(self, stream: int) -> None:
        self._function[self._grid](*self._tensors)


class Interpreter:
    """Triton's interpreter: the kernels' numbers without a device, slowly."""

    arch = Arch("cuda", "sm_80", interpreted=True)
    place = torch.device("cpu")

    def record(self, launch: Launch, arguments: Sequence[Where], stem: str) -> Record:
        return _Interpreted(launch, arguments, stem)

    def stream(self) -> int:
        return 0

    def synchronise(self) -> None:
        pass
