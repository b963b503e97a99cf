"""Native functions bound to memory: what a run needs, and nothing of how they were made.

A process that finds its code on disk imports this and no compiler.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from monograph.codegen.llvm.module.barrier import (
    ARENA,
    BARRIER_BYTES,
    CONSTANTS,
    FAULT_BYTES,
    FIRST_PORT,
    SHARING,
    SIZES,
    WEIGHTS,
)
from monograph.codegen.llvm.module.parts import sharing_bytes
from monograph.errors import ExecutionError, InternalError, MonographError
from monograph.ir import Array, DType
from monograph.runtime.addresses import data_address
from monograph.runtime.counts import Counts, host_takes_part
from monograph.runtime.cpu.donation_fast_path import remember_state
from monograph.runtime.cpu.native import NativeCode
from monograph.runtime.cpu.pool import shared_pool
from monograph.runtime.executable import DonatedRun, Executable, FastPath, Feeds, Outputs
from monograph.runtime.outputs import NOTHING, refuse_unlike, same_memory

ALIGNMENT = 64
MAPPED_BYTES = 1 << 20
"""Arenas of at least this size are mapped; smaller ones come from the allocator."""
RESERVED = 2
"""The addresses of a mapped arena, as a multiple of its size: larger runs find room there."""
NO_SIZES = np.empty(0, np.int64)
NO_WEIGHTS: Mapping[str, Array] = MappingProxyType({})


def aligned_bytes(count: int) -> Array:
    """Memory that starts on a cache line."""
    raw = np.empty(count + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + count]


def reserved_bytes(count: int) -> Array:
    """Return at least so many zeros on a cache line, with room for more behind them.

    A page becomes memory when it is first written to, so the room costs nothing.
    """
    if count >= MAPPED_BYTES and hasattr(mmap, "MAP_ANONYMOUS"):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        with suppress(OSError):  # a process with limited addresses
            area = mmap.mmap(-1, RESERVED * count, flags=flags)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # a kernel without large pages
                    area.madvise(mmap.MADV_HUGEPAGE)
            return np.frombuffer(area, np.uint8)
    made = aligned_bytes(count)
    made[:] = 0
    return made


def aligned(data: Array) -> Array:
    """The same bytes on a cache line; a copy only where they are not there already."""
    if data.ctypes.data % ALIGNMENT == 0:
        return data
    made = aligned_bytes(data.size)
    made[:] = data
    return made


def fresh(result: Any) -> Any:
    """A result that shares memory with nothing: no feed, no constant, no other result."""
    if isinstance(result, np.ndarray):
        return np.array(result, order="C", copy=True)
    if isinstance(result, (list, tuple)):
        return [fresh(x) for x in result]
    if isinstance(result, dict):
        return dict(result)
    return result if result is None else np.array(result)


@dataclass(frozen=True)
class NativePort:
    """An input or output of a compiled program: where its address goes, and what lies there."""

    index: int
    buffer: int
    """The number of its buffer in the program."""
    name: str
    dtype: DType
    shape: tuple[int, ...]
    over: int = -1
    """The buffer of the input that a donated output is written over; -1 for others."""


@dataclass(frozen=True)
class NativeFaultText:
    """The error text for data that a kernel cannot use."""

    message: str
    expected: str
    node: str
    op: str
    shows_data: bool
    buffers: tuple[str, ...] = ()
    """For accesses outside of buffers: the buffers by their numbers, from 1 (see `Fault`)."""
    step: int = 0

    def changed(self, change: Callable[[str], str]) -> NativeFaultText:
        """Return the text with its parts changed."""
        buffers = tuple(map(change, self.buffers))
        return replace(
            self, message=change(self.message), expected=change(self.expected), buffers=buffers
        )

    def error(self, came: int, given: int) -> MonographError:
        """Return the error of a run, from the two words that a kernel has written."""
        if self.buffers:
            return InternalError(
                self.message,
                node=self.node or None,
                op=f"step {self.step}, {self.op}",
                expected=f"an access within {self.buffers[came - 1]}",
                given=f"one that starts at {given}",
            )
        return ExecutionError(
            self.message,
            node=self.node or None,
            op=self.op,
            expected=self.expected or None,
            given=given if self.shows_data else None,
        )


@dataclass(frozen=True)
class Layout:
    """The properties of a compiled program that a run needs, as plain data for a file."""

    functions: tuple[str, ...]
    """The native functions by name, in the order in which they are launched."""
    threads: int
    arena_bytes: int
    inputs: tuple[NativePort, ...]
    outputs: tuple[NativePort, ...]
    results: tuple[int, ...]
    """For each output of the model, the buffer that holds it; -1 where the host does."""
    faults: tuple[NativeFaultText, ...]
    kernels: int
    host_kinds: tuple[str, ...]
    """The kinds of the steps that no compiled code serves, in order."""
    flops: float
    """Floating-point operations of a run; NaN where data decide how often loops turn."""
    moved: float
    """Bytes that the steps of a run read and write."""
    bounds_checks: int = 0
    """Addresses that no proof covers: every run checks them."""
    meeting: tuple[str, ...] = ()
    """The functions whose threads wait for each other in kernels: they need all their threads."""
    weights: tuple[str, ...] = ()
    """The digests of the large constants, in the order of their table."""

    @property
    def whole(self) -> bool:
        """True if one native function does all the work: the usual case."""
        return len(self.functions) == 1 and not self.host_kinds and -1 not in self.results


class Workspace:
    """The memory of one run: arena, context, and nothing that another run could see."""

    def __init__(self, layout: Layout, constants: Array, weights: Array, sizes: Array) -> None:
        self.arena = aligned_bytes(layout.arena_bytes)
        self.arena[:] = 0
        ports = len(layout.inputs) + len(layout.outputs)
        slots = BARRIER_BYTES + 8 * (FIRST_PORT + ports)
        faults = slots + FAULT_BYTES * len(layout.faults)
        sharing = -(-faults // ALIGNMENT) * ALIGNMENT
        self.memory = aligned_bytes(sharing + sharing_bytes(layout.threads))
        self.memory[:] = 0
        self.slots = self.memory[BARRIER_BYTES:slots].view(np.int64)
        self.faults = self.memory[slots:faults].view(np.int64).reshape(-1, FAULT_BYTES // 8)
        # Bytes are compared in a tenth of the time that numpy takes to look at a small array.
        self.fault_bytes = self.memory[slots:faults].data
        self.no_faults = bytes(faults - slots)
        self.address = int(self.memory.ctypes.data)
        self.memory[SHARING:BARRIER_BYTES].view(np.int64)[0] = self.address + sharing
        self.slots[ARENA] = self.arena.ctypes.data
        self.slots[CONSTANTS] = constants.ctypes.data
        self.slots[WEIGHTS] = weights.ctypes.data
        self.slots[SIZES] = sizes.ctypes.data

    def grow(self, arena: Array) -> None:
        """Replace the arena by a larger one."""
        self.arena = arena
        self.slots[ARENA] = self.arena.ctypes.data


class NativeExecutable(Executable):
    """The native functions of a program, its constants, and the workspaces of its runs."""

    runs: int = 0
    copies: int = 0
    threads: int = 1

    def __init__(
        self,
        layout: Layout,
        code: NativeCode,
        constants: Array,
        weights: Mapping[str, Array] = NO_WEIGHTS,
        sizes: Array = NO_SIZES,
    ) -> None:
        """weights: the large constants by digest, in the order of the layout."""
        self.layout = layout
        self.threads = layout.threads
        self.counts = Counts()
        """The counters of runs; a session replaces them by its own."""
        self._code = code
        self._pool = shared_pool()
        self._hold(constants, weights)
        self._sizes = sizes
        """The table of open sizes; empty for code of one shape."""
        self._free: list[Workspace] = []
        self._functions = {name: code.address(name) for name in layout.functions}
        self._meeting = {self._functions[name] for name in layout.meeting}
        self._inputs = [(s.index, s.name, s.buffer, s.shape, s.dtype.numpy) for s in layout.inputs]
        self._outputs = [(s.index, s.buffer, s.shape, s.dtype.numpy) for s in layout.outputs]
        numbers = {s.buffer: n for n, s in enumerate(layout.outputs)}
        self._results = [numbers.get(buffer, -1) for buffer in layout.results]
        """For each output of the model, its number in `_outputs`; -1 where the host holds it."""
        self._donated = [s for s in layout.outputs if s.over >= 0]
        self._input_slots = {s.buffer: s.index for s in layout.inputs}
        self._whole = self._functions[layout.functions[0]] if layout.whole else None
        if self.threads > 1:
            self._pool.reserve(self.threads)

    def _hold(self, constants: Array, weights: Mapping[str, Array]) -> None:
        """Take the constants and the addresses of the weights."""
        assert tuple(weights) == self.layout.weights
        self._constants = aligned(constants)
        self._weights = weights
        self._addresses = np.array([w.ctypes.data for w in weights.values()], np.int64)

    def __repr__(self) -> str:
        slots = (self.layout.inputs, self.layout.outputs)
        taken, made = (", ".join(f"{s.dtype}{list(s.shape)}" for s in group) for group in slots)
        size = f"kernels={self.kernels}, threads={self.threads}"
        return f"{type(self).__name__}(({taken}) -> ({made}), {size})"

    @property
    def input_shapes(self) -> dict[str, list[int]]:
        return {s.name: list(s.shape) for s in self.layout.inputs}

    @property
    def launches(self) -> int:
        """Native functions called for one run: 1 where everything is compiled."""
        return len(self.layout.functions)

    @property
    def kernels(self) -> int:
        """Kernels that run inside those functions."""
        return self.layout.kernels

    @property
    def flops(self) -> float:
        """Floating-point operations of a run."""
        return self.layout.flops

    @property
    def moved(self) -> float:
        """Bytes that the steps of a run read and write."""
        return self.layout.moved

    @property
    def bounds_checks(self) -> int:
        """Addresses that no proof covers: every run checks them."""
        return self.layout.bounds_checks

    @property
    def arena_bytes(self) -> int:
        """The bytes of the temporaries of a run."""
        return self.layout.arena_bytes

    @property
    def host_kinds(self) -> tuple[str, ...]:
        """The kinds of the steps that no compiled code serves."""
        return self.layout.host_kinds

    @property
    def constant_bytes(self) -> int:
        """The bytes of the constants, in the form that kernels read."""
        return int(self._constants.nbytes) + sum(self.shared_bytes.values())

    @property
    def shared_bytes(self) -> dict[str, int]:
        """The bytes of the large constants by digest; other executables may read them too."""
        return {digest: int(w.nbytes) for digest, w in self._weights.items()}

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        """The outputs for some inputs, as fresh arrays or in those given by name in `out`.

        An output that is donated an input's memory may be given the very array of that input.
        Outputs that the host computes are fresh in any case (see `deliver`).
        """
        workspace = self._take()
        self.runs += 1
        try:
            return self._run(workspace, feeds, out)
        finally:
            self._free.append(workspace)

    def try_run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs | None:
        """Run one native function on dense arrays of its own types; None for anything else."""
        launched = self._whole
        if launched is None or out or self._donated:
            return None
        workspace = self._take()
        try:
            slots = workspace.slots
            for slot, name, _, shape, dtype in self._inputs:
                array = feeds.get(name)
                if array.__class__ is not np.ndarray or array.shape != shape:
                    return None
                if array.dtype != dtype or not array.flags.c_contiguous:
                    return None
                slots[slot] = data_address(array)
            made = []
            for slot, _, shape, dtype in self._outputs:
                array = np.empty(shape, dtype)
                slots[slot] = data_address(array)
                made.append(array)
            self.runs += 1
            self._launch(launched, workspace)
        finally:
            self._free.append(workspace)
        return [made[number] for number in self._results]

    def state_fast_path(self, run: DonatedRun) -> FastPath | None:
        return remember_state(self, run)

    def run_at(self, slots: Array) -> None:
        """A run whose inputs and outputs lie at these addresses, which have been looked at."""
        assert self._whole is not None
        workspace = self._take()
        self.runs += 1
        try:
            workspace.slots[FIRST_PORT:] = slots[FIRST_PORT:]
            self._launch(self._whole, workspace)
        finally:
            self._free.append(workspace)

    def _take(self) -> Workspace:
        # No lock, which a fork might leave locked: taking from a list is one step.
        try:
            return self._free.pop()
        except IndexError:
            self.counts.captures = len(self._functions)
            return Workspace(self.layout, self._constants, self._addresses, self._sizes)

    def _run(self, workspace: Workspace, feeds: Feeds, out: Feeds) -> Outputs:
        bound = self._bind(workspace, feeds)
        if out or self._donated:
            self._bind_given(workspace, bound, out)
        if self._whole is None:
            if self.layout.host_kinds:
                self.counts.fallbacks[host_takes_part(self.layout.host_kinds)] += 1
            return self._run_parts(workspace, bound, feeds)
        self._launch(self._whole, workspace)
        return [bound[buffer] for buffer in self.layout.results]

    def _bind(self, workspace: Workspace, feeds: Feeds) -> dict[int, Array]:
        """The arrays of inputs and outputs by their buffers; the context gets their addresses."""
        bound: dict[int, Array] = {}
        slots = workspace.slots
        for slot, name, buffer, shape, dtype in self._inputs:
            array = feeds[name]
            if not array.flags.c_contiguous or array.shape != shape:
                if not array.flags.c_contiguous:
                    self.counts.staged[f"{name}: it is strided"] += 1
                array = np.ascontiguousarray(array, dtype).reshape(shape)
            bound[buffer] = array
            slots[slot] = data_address(array)
        for slot, buffer, shape, dtype in self._outputs:
            array = bound[buffer] = np.empty(shape, dtype)
            slots[slot] = data_address(array)
        return bound

    def _bind_given(self, workspace: Workspace, bound: dict[int, Array], out: Feeds) -> None:
        """Puts the caller's arrays in the place of fresh ones, and donated ones under both."""
        slots = workspace.slots
        inputs = {int(slots[s.index]) for s in self.layout.inputs}
        for output in self.layout.outputs:
            if output.name not in out:
                continue
            array = out[output.name]
            refuse_unlike(output.name, array, output.shape, output.dtype.numpy)
            address = data_address(array)
            if output.over < 0 and address in inputs:
                # Donated, but the old value is needed longer: `deliver` copies the new one.
                continue
            bound[output.buffer] = array
            slots[output.index] = address
        for output in self._donated:
            array, old = bound[output.buffer], bound[output.over]
            if not same_memory(array, old):
                np.copyto(array, old)
                self.copies += 1
            bound[output.over] = array
            slots[self._input_slots[output.over]] = slots[output.index]

    def _run_parts(self, workspace: Workspace, bound: dict[int, Array], feeds: Feeds) -> Outputs:
        """Runs a program that is more than one native function."""
        raise NotImplementedError

    def _launch(self, address: int, workspace: Workspace) -> None:
        """Runs a native function; fails where a kernel has found data that does not fit."""
        if self.threads == 1 or address in self._meeting:
            self._pool.launch(address, workspace.address, self.threads)
        else:
            self._pool.share(address, workspace.address, self.threads)
        self.counts.replays += 1
        if workspace.fault_bytes == workspace.no_faults:
            return
        # A fault of Monograph's own may have made the others.
        came = [n for n, words in enumerate(workspace.faults) if words[0]]
        number = min(came, key=lambda n: not self.layout.faults[n].buffers)
        words = workspace.faults[number].tolist()
        workspace.faults[:] = 0
        raise self._fault_text(number).error(*words)

    def _fault_text(self, number: int) -> NativeFaultText:
        """Return the text of a fault by its number."""
        return self.layout.faults[number]
