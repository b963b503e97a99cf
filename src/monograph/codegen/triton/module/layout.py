"""The memory layout of kernels' arguments: arena, constants, persistent memory, ports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from monograph.codegen.triton.module.kernel import (
    Argument,
    Branch,
    BufferView,
    RepeatWork,
    TritonFault,
    TritonPacked,
    TritonScratch,
    Work,
    every_argument,
)
from monograph.codegen.triton.module.launch import ARENA, CONSTANTS, KEPT, PORT, BufferRef, Launch
from monograph.errors import UnsupportedError
from monograph.ir import Array, Value, known
from monograph.ir.sizes import largest
from monograph.ir.types import holds_open
from monograph.program.legalise.lower_random import states_of
from monograph.program.memory.buffer_assignment import CONSTANT, TEMPORARY, Buffer
from monograph.program.memory.inplace import root
from monograph.program.memory.memory_planner import MemoryPlan
from monograph.program.memory.schedules import Schedule, schedule
from monograph.program.memory.stream_schedule import Uses, needs, plan_concurrent
from monograph.program.program import Program, Step

ALIGNMENT = 256


@dataclass(frozen=True)
class Bound:
    """A piece of work, and the locations of its arguments."""

    step: Step
    work: Work
    arguments: tuple[BufferRef, ...]
    stream: int = 0
    waits: tuple[int, ...] = ()
    """Positions of the steps of other streams that must have ended before this work starts."""
    position: int = 0
    """The position of its own step."""
    bodies: tuple[tuple[Bound, ...], ...] = ()
    """The bodies of a branch, or the repeated body."""

    @property
    def every(self) -> Iterator[Bound]:
        """Yield the work itself, and all work inside it."""
        yield self
        for body in self.bodies:
            for bound in body:
                yield from bound.every


@dataclass(frozen=True)
class GpuModule:
    """A program's work in order, and the memory it needs."""

    program: Program
    works: tuple[Bound, ...]
    arena_bytes: int
    kept_bytes: int
    constants: Array
    offsets: dict[int, int]
    """The offset of each temporary buffer in the arena."""
    faults: tuple[tuple[Step, TritonFault, int], ...] = ()
    """Possible faults of data, and their offsets in persistent memory."""
    pieces: tuple[tuple[int, int], ...] = ()
    """The offset of each constant in the block of constants, and its bytes."""
    host: tuple[tuple[int, Step], ...] = ()
    """Host steps, and the number of pieces of work before each."""
    steps: tuple[Step, ...] = ()
    """By the positions that works and waits name."""

    @property
    def every(self) -> Iterator[Bound]:
        """Yield all work, including that inside of branches and loops."""
        for bound in self.works:
            yield from bound.every

    @property
    def bounds_checks(self) -> int:
        """The number of addresses that no proof covers: every run checks them."""
        works = (b.work for b in self.every)
        return sum(w.bounds_checks for w in works if isinstance(w, Launch))


def lay_out(
    program: Program,
    chosen: Sequence[tuple[Step, tuple[Work, ...]]],
    streams: int = 1,
    like: GpuModule | None = None,
) -> GpuModule:
    """Assign a location to every argument of the chosen work, on at most `streams` streams.

    like: a module of the same work, whose block of constants is reused.
    """
    return _Layout(program).module(chosen, streams, like)


@dataclass(frozen=True)
class Inside:
    """The memory of a sub-program: offsets of its temporaries and scratch memory."""

    nbytes: int
    buffers: dict[int, int]
    scratch: dict[int, int]
    """By identity."""


def plan_inside(program: Program, chosen: Sequence[tuple[Step, tuple[Work, ...]]]) -> Inside:
    """Plan the memory of a sub-program whose steps run one after the other."""
    layout = _Layout(program)
    order = schedule(needs([step for step, _ in chosen], program.places), 1)
    memory = layout.planned(chosen, order)
    scratch = {number: memory.offsets[key] for number, key in layout.keys.items()}
    return Inside(memory.size, memory.offsets, scratch)


@dataclass
class _Layout:
    program: Program
    constant_at: dict[object, int] = field(default_factory=dict)
    packed_at: dict[TritonPacked, BufferRef] = field(default_factory=dict)
    pieces: list[tuple[int, Array]] = field(default_factory=list)
    constant_bytes: int = 0
    kept: dict[int, int] = field(default_factory=dict)
    kept_bytes: int = 0
    faults: list[tuple[Step, TritonFault, int]] = field(default_factory=list)
    noted_at: dict[tuple[Step, TritonFault], int] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)
    """Scratch memory by identity: its key in the plan of the arena."""

    def module(
        self,
        chosen: Sequence[tuple[Step, tuple[Work, ...]]],
        streams: int,
        like: GpuModule | None = None,
    ) -> GpuModule:
        if streams > 1:
            # A step without work could neither wait nor be waited for.
            chosen = [(step, works) for step, works in chosen if works]
        steps = [step for step, _ in chosen]
        states = states_of(self.program.graph)
        order = schedule(needs(steps, self.program.places, states), streams)
        memory = self.planned(chosen, order)
        bound = [
            self.bound(
                step,
                work,
                memory.offsets,
                order.stream[position],
                order.waits[position] if number == 0 else (),
                position,
            )
            for position, (step, works) in enumerate(chosen)
            for number, work in enumerate(works)
        ]
        pieces = tuple((at, piece.size) for at, piece in self.pieces)
        assert like is None or pieces == like.pieces
        return GpuModule(
            self.program,
            tuple(bound),
            memory.size,
            self.kept_bytes,
            self.block() if like is None else like.constants,
            memory.offsets,
            tuple(self.faults),
            pieces,
            steps=tuple(steps),
        )

    def block(self) -> Array:
        """Return all constants; a single one is not copied."""
        if len(self.pieces) == 1 and self.pieces[0][1].size == self.constant_bytes:
            return self.pieces[0][1]
        block = np.zeros(max(self.constant_bytes, 1), np.uint8)
        for at, piece in self.pieces:
            block[at : at + piece.size] = piece
        return block

    def bound(
        self,
        step: Step,
        work: Work,
        offsets: dict[int, int],
        stream: int,
        waits: tuple[int, ...],
        position: int,
    ) -> Bound:
        """Return a piece of work with the locations of its arguments, and of those inside it."""
        if isinstance(work, (Branch, RepeatWork)):
            bodies = tuple(
                tuple(self.bound(step, w, offsets, stream, (), position) for w in body)
                for body in work.bodies
            )
        else:
            bodies, step = (), work.step or step
        places = tuple(
            self.where(step, a, offsets)
            if self.is_read(work, number)
            else BufferRef(KEPT, 0, a.dtype)
            for number, a in enumerate(work.arguments)
        )
        return Bound(step, work, places, stream, waits, position, bodies)

    def is_read(self, work: Work, number: int) -> bool:
        """Return True if a kernel reads an argument; of packed weights only the packed form."""
        argument = work.arguments[number]
        storage = self.program.places.storage.get(argument) if isinstance(argument, Value) else None
        if not isinstance(work, Launch) or storage is None or storage.buffer.kind != CONSTANT:
            return True
        _, _, body = work.source.partition("):\n")
        return re.search(rf"\bp{number}\b", body) is not None

    def uses(self, chosen: Sequence[tuple[Step, tuple[Work, ...]]]) -> list[Uses]:
        """Return the steps that use each temporary buffer, and each step's scratch memory.

        Buffers that are written over others count as one: they have the same address.
        """
        over = self.program.places.over
        found: dict[int, list[int]] = {}
        sizes: dict[int, int] = {}
        extra = []
        for position, (step, works) in enumerate(chosen):
            for value in (*step.region.inputs, *step.region.outputs):
                storage = self.program.places.storage.get(value)
                if storage is not None and storage.buffer.kind == TEMPORARY:
                    key = root(storage.buffer.id, over)
                    found.setdefault(key, []).append(position)
                    sizes[key] = largest((sizes.get(key, 0), storage.buffer.nbytes))
            for argument in {id(a): a for w in works for a in every_argument(w)}.values():
                if isinstance(argument, TritonScratch) and not argument.zeroed:
                    key = self.keys.setdefault(id(argument), -1 - len(self.keys))
                    extra.append(Uses(key, argument.nbytes, (position,)))
        return [Uses(key, sizes[key], tuple(at)) for key, at in found.items()] + extra

    def planned(
        self, chosen: Sequence[tuple[Step, tuple[Work, ...]]], order: Schedule
    ) -> MemoryPlan:
        """Plan the arena, with the addresses of all temporary buffers and scratch memory."""
        memory = plan_concurrent(self.uses(chosen), order)
        over = self.program.places.over
        inside = {
            new: memory.offsets[root(new, over)]
            for new in over
            if root(new, over) in memory.offsets
        }
        return MemoryPlan(memory.offsets | inside, memory.size)

    def where(self, step: Step, argument: Argument, offsets: dict[int, int]) -> BufferRef:
        if isinstance(argument, TritonFault):
            return BufferRef(KEPT, self.noted(step, argument), argument.dtype, room=16)
        if isinstance(argument, BufferView):
            base = self.where(step, argument.of, offsets)
            at, exact = argument.offset, argument.nbytes >= 0
            return replace(
                base,
                offset=base.offset + at,
                dtype=argument.dtype,
                room=argument.nbytes if exact else base.room - at,
                below=argument.below if exact else base.below + at,
            )
        if isinstance(argument, TritonPacked):
            if argument in self.packed_at:
                return self.packed_at[argument]
            key = (argument.dtype, argument.array.shape, argument.digest)
            at = self.constant(key, argument.array)
            nbytes = argument.array.nbytes
            self.packed_at[argument] = BufferRef(CONSTANTS, at, argument.dtype, room=nbytes)
            return self.packed_at[argument]
        if isinstance(argument, TritonScratch):
            if argument.zeroed:
                return BufferRef(KEPT, self.keep(argument), argument.dtype, room=argument.nbytes)
            at = offsets[self.keys[id(argument)]]
            return BufferRef(ARENA, at, argument.dtype, room=argument.nbytes)
        storage = self.program.places.storage[argument]
        skipped = storage.offset * argument.dtype.itemsize
        found = BufferRef(PORT, skipped, argument.dtype, port_key(storage.buffer))
        if storage.buffer.kind == TEMPORARY:
            found = BufferRef(ARENA, offsets[storage.buffer.id] + skipped, argument.dtype)
        elif storage.buffer.kind == CONSTANT:
            found = BufferRef(CONSTANTS, self.weights(argument) + skipped, argument.dtype)
        return replace(found, room=storage.buffer.nbytes - skipped, below=skipped)

    def weights(self, value: Value) -> int:
        data = known(value)
        assert data is not None
        if holds_open(data):
            # Kernels take a single open size as a number.
            if data.size > 1:
                raise UnsupportedError("a vector of open sizes has no memory", given=value.type)
            data = np.zeros(1, np.int64)
        return self.constant(value, data)

    def constant(self, key: object, data: Array) -> int:
        if key not in self.constant_at:
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            self.constant_at[key] = self.constant_bytes
            self.pieces.append((self.constant_bytes, raw))
            self.constant_bytes += _rounded(raw.size)
        return self.constant_at[key]

    def noted(self, step: Step, fault: TritonFault) -> int:
        """Return the offset of two numbers: whether a fault occurred, and its data."""
        if (step, fault) not in self.noted_at:
            self.noted_at[step, fault] = self.kept_bytes
            self.faults.append((step, fault, self.kept_bytes))
            self.kept_bytes += 16
        return self.noted_at[step, fault]

    def keep(self, scratch: TritonScratch) -> int:
        if id(scratch) not in self.kept:
            self.kept_bytes = _rounded(self.kept_bytes)
            self.kept[id(scratch)] = self.kept_bytes
            self.kept_bytes += _rounded(scratch.nbytes)
        return self.kept[id(scratch)]


def port_key(buffer: Buffer) -> str:
    """Return the name of a caller's memory: inputs and outputs may share names."""
    return f"{buffer.kind}:{buffer.name}"


def _rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
