"""What runs kernels: a device by its driver, or Triton's interpreter in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from monograph.codegen.triton.kernel import Arch, Launch
from monograph.codegen.triton.layout import Where
from monograph.runtime.gpu.source import function
from monograph.runtime.gpu.tensors import typed


class Device(Protocol):
    """A place that has memory and runs kernels."""

    arch: Arch
    place: torch.device

    def prepare(self, launch: Launch, arguments: Sequence[Where], stem: str) -> Any:
        """A kernel ready to run: compiled, loaded."""

    def launch(self, kernel: Any, launch: Launch, memories: Sequence[torch.Tensor]) -> None:
        """Runs a prepared kernel; each memory starts at its argument."""


class Interpreter:
    """Triton's interpreter: the kernels' numbers without a device, slowly."""

    arch = Arch("cuda", "sm_80", interpreted=True)
    place = torch.device("cpu")

    def prepare(self, launch: Launch, arguments: Sequence[Where], stem: str) -> Any:
        return function(launch.source, stem), [a.dtype for a in arguments]

    def launch(self, kernel: Any, launch: Launch, memories: Sequence[torch.Tensor]) -> None:
        made, dtypes = kernel
        tensors = [typed(m, 0, t) for m, t in zip(memories, dtypes, strict=True)]
        made[launch.grid](*tensors)
