"""Launches bound to memory: what a run needs, and nothing of how the kernels were made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from monograph.codegen.triton.module.launch import ARENA, CONSTANTS, KEPT, PORT, BufferRef
from monograph.errors import ExecutionError
from monograph.ir import Array, DType
from monograph.runtime.executable import Executable, Feeds, Outputs, Stream
from monograph.runtime.gpu.capture.control import LaunchTree, count_kernels, outermost, syncs
from monograph.runtime.gpu.device_faults import FaultReport, Notes
from monograph.runtime.gpu.driver.devices import Device, Record
from monograph.runtime.gpu.memory import (
    SLACK,
    ConstantBlock,
    DeviceConstants,
    Pieces,
    out_of_memory,
    told_of_failure,
)
from monograph.runtime.gpu.run_turns import RunTurns
from monograph.runtime.gpu.tensors import from_numpy, is_plain, plain, raw, torch_type
from monograph.runtime.outputs import NOTHING, refuse_unlike
from monograph.runtime.pending import Pending

if TYPE_CHECKING:
    from monograph.codegen.triton.module.layout import Bound

EnqueueLaunches: TypeAlias = Callable[[int, int, Mapping[str, torch.Tensor], int], None]
"""Enqueues launches from one number to another, given the memory of all ports and a stream."""
VECTOR = 16
"""Bytes at which memory of the caller's has to be aligned: kernels read vectors of so many."""


@dataclass(frozen=True)
class DevicePort:
    """An input or output of the program."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    over: str = ""
    """The input that a donated output is written over."""
    narrowed: DType | None = None
    """The type of 16 bits that every element of an input is cast to before anything else: rounded
    to it on the way, the input is as good as whole.
    """


@dataclass(frozen=True)
class DeviceFaultText:
    """The error text for data that a kernel cannot use, and where the kernel reports it."""

    message: str
    expected: str
    node: str
    op: str
    at: int
    shows_data: bool = True
    internal: bool = False


@dataclass(frozen=True)
class GpuLayout:
    """The properties of a program that a run needs, as plain data for a file."""

    inputs: tuple[DevicePort, ...]
    outputs: tuple[DevicePort, ...]
    arguments: tuple[tuple[BufferRef, ...], ...]
    """Of every launch, in order, those inside branches and loops included."""
    arena_bytes: int
    kept_bytes: int
    pieces: tuple[tuple[int, int], ...]
    faults: tuple[DeviceFaultText, ...]
    flops: float = 0.0
    moved: float = 0.0
    nests: tuple[LaunchTree, ...] = ()
    """The launches inside branches and loops; empty if there are none."""
    bounds_checks: int = 0
    """Addresses that no proof covers: every run checks them."""

    streams: tuple[int, ...] = ()
    """The stream of each launch, those inside others not counted; empty for a single stream."""
    waits: tuple[tuple[int, ...], ...] = ()
    """The launches of other streams that each launch waits for."""
    stream_key: str = ""
    """The key of the measured number of streams."""

    @property
    def every_nest(self) -> tuple[LaunchTree, ...]:
        """For every launch what it contains, where none contains anything too."""
        return self.nests or (LaunchTree(),) * len(self.arguments)


class GpuProgram(Executable):
    """The launches and the memory of one program on one device. Runs wait for each other."""

    runs: int = 0
    copies: int = 0
    whole: bool = True
    """True if the device does all the work, and every output has memory of its own."""
    works: Sequence[Bound] = ()
    """The compiled work of each launch; empty for a program from a package."""

    def __init__(
        self,
        layout: GpuLayout,
        records: Callable[[], Sequence[Record]],
        device: Device,
        block: Array,
        constants: DeviceConstants | ConstantBlock | None = None,
        held: Mapping[str, torch.Tensor] = NOTHING,
        turns: RunTurns | None = None,
    ) -> None:
        self.layout = layout
        self.held = {f"input:{name}": memory for name, memory in held.items()}
        """Memory in the place of inputs that the caller does not bring."""
        self.device = device
        self.turns = turns or RunTurns(device)
        self.lock = self.turns.lock
        self.marked_streams: set[int] = set()
        """Streams that its memory is known to be used on."""
        self._process = os.getpid()
        pieces: Pieces = layout.pieces or ((0, block.size),)
        needs = (layout.arena_bytes, block.size, layout.kept_bytes)
        try:
            if isinstance(constants, ConstantBlock):
                self._constants = constants
            else:
                self._constants = (constants or DeviceConstants(device)).upload(block, pieces)
            self.buffers = {
                ARENA: self.turns.arena(layout.arena_bytes),
                KEPT: self._bytes(torch.zeros, layout.kept_bytes),
            }
        except torch.OutOfMemoryError as e:
            raise out_of_memory(device, *needs, e) from None
        self.notes = Notes(layout.faults, self.buffers[KEPT], device) if layout.faults else None
        """The data faults that kernels report; None if no data can be wrong."""
        every = list(records())
        self.records = outermost(every, layout.nests)
        self.port_arguments: list[tuple[str, Record, int, int]] = []
        for record, arguments in zip(every, layout.arguments, strict=True):
            for position, where in enumerate(arguments):
                self._point(record, position, where)

    def __repr__(self) -> str:
        place, size = self.device.place, f"kernels={self.kernels}, launches={self.launches}"
        return f"{type(self).__name__}({place}, {size})"

    def _bytes(self, make: Callable[..., torch.Tensor], count: int) -> torch.Tensor:
        return make(count + SLACK, dtype=torch.uint8, device=self.device.place)

    def _point(self, record: Record, position: int, where: BufferRef) -> None:
        if where.port in self.held:
            record.point(position, self.held[where.port], where.offset)
        elif where.memory == PORT:
            self.port_arguments.append((where.port, record, position, where.offset))
        elif where.memory == CONSTANTS:
            record.point(position, *self._constants.at(where.offset))
        else:
            record.point(position, self.buffers[where.memory], where.offset)

    @property
    def bounds_checks(self) -> int:
        """Addresses that no proof covers: every run checks them."""
        return self.layout.bounds_checks

    @property
    def kernels(self) -> int:
        """The kernels of a run (see `count_kernels`); a library's call counts as one."""
        return count_kernels(self.layout.every_nest)

    @property
    def launches(self) -> int:
        """Launches of a run, a branch or a loop counted as one."""
        return len(self.records)

    @property
    def syncs(self) -> int:
        """The number of times that the host has waited to read a condition."""
        return syncs(self.records)

    @property
    def flops(self) -> float:
        return self.layout.flops

    @property
    def moved(self) -> float:
        return self.layout.moved

    @property
    def arena_bytes(self) -> int:
        """The bytes of the temporaries of a run."""
        return self.layout.arena_bytes

    @property
    def constant_bytes(self) -> int:
        """The bytes of the constants; other executables may read them too."""
        return self._constants.nbytes

    @property
    def own_bytes(self) -> int:
        return sum(m.numel() for m in self.buffers.values())

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        """Run once; outputs are torch tensors if any feed is one, else numpy arrays."""
        self.check_process()
        try:
            with told_of_failure(), self.device.active():
                return self._run(feeds, out)
        except torch.OutOfMemoryError as e:
            raise self.no_memory(e) from None

    def start(self, feeds: Feeds, out: Feeds = NOTHING, stream: Stream = None) -> Pending:
        """Enqueue a run kernel by kernel; if the host takes part in it, the run has ended."""
        from monograph.runtime.gpu.capture.async_run import start_on_stream

        return start_on_stream(self, feeds, out, stream)

    def run_parts(
        self, feeds: Feeds, out: Feeds, enqueue: EnqueueLaunches | None = None
    ) -> Outputs:
        """Run a program that is not whole."""
        raise NotImplementedError

    def no_memory(self, error: torch.OutOfMemoryError) -> ExecutionError:
        """Return the error of a run that finds no memory."""
        layout = self.layout
        needs = (layout.arena_bytes, self.constant_bytes, layout.kept_bytes)
        return out_of_memory(self.device, *needs, error)

    def check_process(self) -> None:
        """Refuses a child that was forked: it has no part in its parent's device."""
        if self.device.place.type != "cpu" and os.getpid() != self._process:
            raise forked()

    def _run(self, feeds: Feeds, out: Feeds) -> Outputs:
        as_tensors = any(isinstance(x, torch.Tensor) for x in feeds.values())
        with self.lock:
            inputs = {s.name: self.input_tensor(feeds[s.name], s) for s in self.layout.inputs}
            outputs = self.output_tensors(feeds, inputs, out)
            ports = {f"input:{n}": t for n, t in inputs.items()}
            ports |= {f"output:{n}": t for n, t in outputs.items()}
            note = self.enqueue({n: raw(t) for n, t in ports.items()})
            if note is not None:
                self.device.finish()
                note.check()
        return [self.result(s, outputs[s.name], out, as_tensors) for s in self.layout.outputs]

    def input_tensor(self, data: Any, slot: DevicePort) -> torch.Tensor:
        """An input on the device: the caller's own tensor where kernels can read it."""
        if isinstance(data, torch.Tensor):
            tensor = plain(data.detach()).to(self.device.place).contiguous()
            return tensor.clone() if tensor.data_ptr() % VECTOR else tensor
        host = from_numpy(np.ascontiguousarray(data, dtype=slot.dtype.numpy))
        # On the host itself a copy: what is donated may be written over.
        tensor = host.to(self.device.place, copy=True)
        return tensor.view(torch_type(slot.dtype)).reshape(slot.shape)

    def output_tensors(
        self, feeds: Feeds, inputs: dict[str, torch.Tensor], out: Feeds
    ) -> dict[str, torch.Tensor]:
        """Return the memory of each output; a donated output overwrites its input."""
        found = {}
        for slot in self.layout.outputs:
            old = inputs.get(slot.over)
            given = out.get(slot.name)
            if given is not None:
                refuse_unlike(slot.name, given, slot.shape, _expected_type(given, slot))
            if isinstance(given, torch.Tensor) and self._usable(given, slot, inputs):
                tensor = given
            elif old is not None and not isinstance(feeds[slot.over], torch.Tensor):
                tensor = old  # a copy that nobody else has
            else:
                tensor = self.fresh_output(slot)
            if old is not None and tensor.data_ptr() != old.data_ptr():
                tensor.copy_(old)
                self.copies += 1
            if old is not None:
                inputs[slot.over] = tensor
            found[slot.name] = tensor
        return found

    def _usable(
        self, given: torch.Tensor, slot: DevicePort, inputs: Mapping[str, torch.Tensor]
    ) -> bool:
        """Return True if kernels can write into a tensor: it is no input that is still needed."""
        if given.device != self.device.place or not given.is_contiguous() or not is_plain(given):
            return False
        if given.data_ptr() % VECTOR:
            return False
        others = (t for n, t in inputs.items() if n != slot.over)
        return all(given.data_ptr() != t.data_ptr() for t in others)

    def result(self, slot: DevicePort, tensor: torch.Tensor, out: Feeds, as_tensors: bool) -> Any:
        given = out.get(slot.name)
        if isinstance(given, torch.Tensor):
            if given is not tensor:
                given.copy_(tensor)
                self.copies += 1
            return given
        if given is None and as_tensors:
            return tensor
        array = given if given is not None else np.empty(slot.shape, slot.dtype.numpy)
        from_numpy(array).copy_(raw(tensor))
        return array

    def fresh_output(self, slot: DevicePort) -> torch.Tensor:
        kind = torch_type(slot.dtype)
        return torch.empty(slot.shape, dtype=kind, device=self.device.place)

    def fill(self, numbers: Callable[[int, torch.device], torch.Tensor]) -> None:
        """Puts some numbers into the arena, for measurements of single steps."""
        arena = self.buffers[ARENA]
        arena.copy_(numbers(arena.numel(), self.device.place)[: arena.numel()])

    def check(self) -> None:
        """Waits for a run that `_begin` has begun, and fails where data did not fit."""
        notes = self._readable(self.device.stream())
        if notes is not None:
            note = notes.take()
            self.device.finish()
            note.check()

    def _readable(self, stream: int) -> Notes | None:
        """The notes, where there are any, and somebody can read them: not in a caller's graph."""
        if self.notes is not None and self.device.capturing(stream):
            self.notes.give_up()
            return None
        return self.notes

    def enqueue(self, ports: Mapping[str, torch.Tensor]) -> FaultReport | None:
        """Enqueues a run on the current stream, and what it notes of its data behind it."""
        with self.lock:
            stream = self.begin(ports)
            self._launch_all(stream)
            notes = self._readable(stream)
            return None if notes is None else notes.take()

    def launch(self, ports: Mapping[str, torch.Tensor]) -> None:
        """Enqueues every piece of work once, on the current stream, and nothing besides."""
        with self.lock:
            self._launch_all(self.begin(ports, noted=False))

    def _launch_all(self, stream: int) -> None:
        for record in self.records:
            record.launch(stream)
        self.runs += 1

    def begin(self, ports: Mapping[str, torch.Tensor], noted: bool = True) -> int:
        """Points the launches to a caller's memory; runs on other streams are waited for.

        noted: whether somebody will look at what the run finds wrong with its data.
        """
        for port, record, position, offset in self.port_arguments:
            record.point(position, ports[port], offset)
        stream = self.device.stream()
        if self.order(stream) and stream not in self.marked_streams:
            self.marked_streams.add(stream)
            self.device.used(self.memory)
        notes = self._readable(stream)
        if notes is not None and noted:
            notes.begin()
        elif notes is not None:
            notes.doubt()
        return stream

    @property
    def memory(self) -> list[torch.Tensor]:
        """All memory of the device that runs use, but what callers bring."""
        notes = [] if self.notes is None else self.notes.memory
        own = [*self.buffers.values(), *self.held.values(), *notes]
        return [*own, *self._constants.tensors]

    def order(self, stream: int) -> bool:
        """Make the current stream wait for runs on another, which use the same memory.

        Returned is whether there was another. Whoever captures the current one sees to the order.
        """
        last = self.turns.stream
        if stream == self.last_stream or self.device.capturing(stream):
            return False
        if stream != last:
            if self.device.capturing(last):
                raise _waits_for_capture()
            self.device.join(last)
        self.turns.take(self, stream)
        return True

    @property
    def last_stream(self) -> int:
        """The stream that was last given work on its memory; none if another program has it."""
        return self.turns.stream_of(self)


def _waits_for_capture() -> ExecutionError:
    return ExecutionError(
        "the stream of the run before this one is being captured, and cannot be waited for",
        hint="end that capture first, or keep to streams that nobody captures",
    )


def forked() -> ExecutionError:
    """Return the error of a child that was forked after its parent had used a GPU."""
    return ExecutionError(
        "a GPU cannot be used in a process that was forked after its first use",
        hint='start processes by "spawn", or load the model in the child',
    )


def _expected_type(given: Any, slot: DevicePort) -> Any:
    return torch_type(slot.dtype) if isinstance(given, torch.Tensor) else slot.dtype.numpy
