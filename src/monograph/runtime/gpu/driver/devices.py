"""The interface of devices, and Triton's interpreter as a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch

from monograph.codegen.triton.module.launch import Arch, BufferRef, Launch
from monograph.config import make_config
from monograph.runtime.gpu.build.binaries import CompileRequest, KernelBinary
from monograph.runtime.gpu.driver.graphs import Graphs
from monograph.runtime.gpu.driver.interpreter_checks import checked_access
from monograph.runtime.gpu.tensors import typed

_INTERPRETING = threading.Lock()


class Record(Protocol):
    """A launch whose argument addresses may still change."""

    empty: bool
    """True if it has nothing to do: a size is 0."""

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        """Set the address of an argument: an offset in bytes into some memory."""

    def launch(self, stream: int) -> None:
        """Enqueue the kernel on a stream."""


class Device(Protocol):
    """A device that has memory and runs kernels."""

    arch: Arch
    place: torch.device
    name: str
    driver: str
    """The driver's version; measurements are valid for one."""
    measures: bool
    """Kernels can be timed on it."""
    cache_bytes: int
    """Bytes of its last-level cache."""
    keeps_code: bool
    """True if `code` returns the machine code of kernels."""
    graphs: Graphs | None
    """The graphs that sessions capture with, in place of the driver's."""

    def record(self, launch: Launch, arguments: Sequence[BufferRef], stem: str) -> Record:
        """Compile and load a kernel."""

    def loaded(
        self,
        binary: KernelBinary,
        grid: tuple[int, int, int],
        arguments: Sequence[BufferRef],
        sizes: tuple[int, ...] = (),
    ) -> Record:
        """Load a kernel that was compiled before."""

    def has(self, wanted: CompileRequest) -> bool:
        """Return whether a kernel need not be compiled."""

    def load(self, wanted: CompileRequest, binary: KernelBinary) -> None:
        """Load machine code that was compiled elsewhere."""

    def code(self, wanted: CompileRequest) -> KernelBinary:
        """Return the machine code of a kernel."""

    def active(self) -> AbstractContextManager[Any]:
        """Make this device current in the calling thread."""

    def stream(self) -> int:
        """Return the current stream."""

    def join(self, stream: int) -> None:
        """Make the current stream wait for the work of another."""

    def capturing(self, stream: int) -> bool:
        """Return whether a stream is capturing, for any caller."""

    def used(self, memory: Sequence[torch.Tensor]) -> None:
        """Tell the allocator that the current stream uses memory, so that it is reused later."""

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy of bytes on the current stream, without waiting for pinned memory."""

    def finish(self) -> None:
        """Wait for the work of the current stream."""

    def synchronise(self) -> None:
        """Wait for all enqueued work."""

    def free_bytes(self) -> int:
        """Return the bytes that can still be allocated."""

    def measure(self, *launches: Callable[[], None]) -> float:
        """Return the time of one launch on the device in us; several launches alternate."""


class _Interpreted:
    def __init__(self, launch: Launch, arguments: Sequence[BufferRef], stem: str) -> None:
        self._run = self._runner(launch, stem)
        self._dtypes = [a.dtype for a in arguments]
        self._tensors: list[torch.Tensor | None] = [None] * len(arguments)
        self._sizes = launch.sizes
        self.empty = 0 in launch.grid

    def _runner(self, launch: Launch, stem: str) -> Callable[..., None]:
        from monograph.runtime.gpu.build.compiler import function
        from monograph.runtime.gpu.driver.interpreter_batch import Grid

        return Grid(function(launch.source, stem), launch.grid)

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        self._tensors[position] = typed(memory, offset, self._dtypes[position])

    def launch(self, stream: int) -> None:
        # While it interprets, Triton patches its language for all threads.
        with _INTERPRETING:
            self._run(*self._tensors, *self._sizes)


class _Checked(_Interpreted):
    """An interpreted kernel whose every address is checked."""

    def __init__(self, launch: Launch, arguments: Sequence[BufferRef], stem: str) -> None:
        super().__init__(launch, arguments, stem)
        self._stem = stem
        self._arguments = arguments
        self._ranges: list[tuple[int, int, str]] = [(0, 0, "nothing")] * len(arguments)

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        super().point(position, memory, offset)
        own = self._arguments[position]
        start, room = memory.data_ptr() + offset, own.room
        if room < 0:
            room = memory.numel() - offset
        label = f"argument {position}, {own.port or own.memory}"
        self._ranges[position] = (start - own.below, start + room, label)

    def launch(self, stream: int) -> None:
        with _INTERPRETING, checked_access(self._stem, self._ranges):
            self._run(*self._tensors, *self._sizes)


class Launched(_Interpreted):
    """A kernel that Triton compiles and launches."""

    def __init__(self, launch: Launch, arguments: Sequence[BufferRef], stem: str) -> None:
        super().__init__(launch, arguments, stem)
        self.arguments = len(arguments)

    def _runner(self, launch: Launch, stem: str) -> Callable[..., None]:
        from monograph.runtime.gpu.build.compiler import function

        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        return partial(function(launch.source, stem)[launch.grid], **options)

    def launch(self, stream: int) -> None:
        if not self.empty:
            self._run(*self._tensors, *self._sizes)


class Interpreter:
    """Triton's interpreter: runs kernels without a device, slowly."""

    arch = Arch("cuda", "sm_80", interpreted=True)
    place = torch.device("cpu")
    name = "Triton's interpreter"
    driver = "none"
    measures = False
    cache_bytes = 0
    keeps_code = False
    graphs: Graphs | None = None

    checked: bool | None = None
    """Check every address of a kernel; None: as the configuration says."""

    def __init__(self, checked: bool | None = None) -> None:
        self.checked = checked

    def record(self, launch: Launch, arguments: Sequence[BufferRef], stem: str) -> Record:
        checked = make_config().checked if self.checked is None else self.checked
        kind = _Checked if checked else _Interpreted
        return kind(launch, arguments, stem)

    def loaded(
        self,
        binary: KernelBinary,
        grid: tuple[int, int, int],
        arguments: Sequence[BufferRef],
        sizes: tuple[int, ...] = (),
    ) -> Record:
        raise NotImplementedError("machine code is not interpreted")

    def has(self, wanted: CompileRequest) -> bool:
        return True

    def load(self, wanted: CompileRequest, binary: KernelBinary) -> None:
        raise NotImplementedError("machine code is not interpreted")

    def code(self, wanted: CompileRequest) -> KernelBinary:
        raise NotImplementedError("the interpreter compiles no machine code")

    def active(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def stream(self) -> int:
        return 0

    def join(self, stream: int) -> None:
        pass

    def capturing(self, stream: int) -> bool:
        return False

    def used(self, memory: Sequence[torch.Tensor]) -> None:
        pass

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        to.copy_(source)

    def finish(self) -> None:
        pass

    def synchronise(self) -> None:
        pass

    def free_bytes(self) -> int:
        return 0

    def measure(self, *launches: Callable[[], None]) -> float:
        raise NotImplementedError("the interpreter cannot time kernels")
