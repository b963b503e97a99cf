"""Where everything that kernels point to lies: arena, constants, memory that is kept, ports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from monograph.codegen.triton.module.kernel import (
    Argument,
    Branch,
    BufferView,
    Launch,
    RepeatWork,
    TritonFault,
    TritonPacked,
    TritonScratch,
    Work,
    every_argument,
)
from monograph.ir import Array, DType, Value, known
from monograph.program.legalise.lower_random import states_of
from monograph.program.memory.buffer_assignment import CONSTANT, TEMPORARY, Buffer
from monograph.program.memory.inplace import root
from monograph.program.memory.memory_planner import MemoryPlan
from monograph.program.memory.stream_schedule import (
    Schedule,
    Uses,
    needs,
    plan_concurrent,
    schedule,
)
from monograph.program.program import Program, Step

ARENA, CONSTANTS, KEPT, PORT = "arena", "constants", "kept", "port"
ALIGNMENT = 256


@dataclass(frozen=True)
class BufferRef:
    """An argument's place: which memory, and how many bytes into it."""

    memory: str
    offset: int
    dtype: DType
    port: str = ""
    """The input or output that is meant, for memory that the caller brings."""
    room: int = field(default=-1, compare=False)
    """The bytes of its buffer from there on, for checked runs; -1 where that is not known."""
    below: int = field(default=0, compare=False)
    """The bytes of its buffer before there."""

    @property
    def aligned(self) -> bool:
        """Whether vectors of 16 bytes may be read there."""
        return self.offset % 16 == 0


@dataclass(frozen=True)
class Bound:
    """A piece of work, and where its arguments lie."""

    step: Step
    work: Work
    arguments: tuple[BufferRef, ...]
    stream: int = 0
    waits: tuple[int, ...] = ()
    """Positions of the steps of other streams that must have ended before this work starts."""
    position: int = 0
    """That of its own step."""
    bodies: tuple[tuple[Bound, ...], ...] = ()
    """What a branch chooses from, or what is repeated."""

    @property
    def every(self) -> Iterator[Bound]:
        """The work itself, and all inside it."""
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
    """Where each temporary buffer lies in the arena."""
    faults: tuple[tuple[Step, TritonFault, int], ...] = ()
    """What may be wrong with data, and where in the kept memory that is noted."""
    pieces: tuple[tuple[int, int], ...] = ()
    """Where each constant starts in the block of constants, and its bytes."""
    host: tuple[tuple[int, Step], ...] = ()
    """Steps that only the host can do, and the number of works that come before each."""
    steps: tuple[Step, ...] = ()
    """By the positions that works and waits name."""

    @property
    def every(self) -> Iterator[Bound]:
        """All work, that inside branches and loops included."""
        for bound in self.works:
            yield from bound.every

    @property
    def bounds_checks(self) -> int:
        """Addresses that no proof covers: every run checks them."""
        works = (b.work for b in self.every)
        return sum(w.bounds_checks for w in works if isinstance(w, Launch))


def lay_out(
    program: Program,
    chosen: Sequence[tuple[Step, tuple[Work, ...]]],
    streams: int = 1,
    like: GpuModule | None = None,
) -> GpuModule:
    """Gives every argument of the chosen works its place, for steps in at most so many streams.

    like: a module of the same works, whose block of constants is taken over.
    """
    return _Layout(program).module(chosen, streams, like)


@dataclass(frozen=True)
class Inside:
    """The memory of a sub-program: where its temporaries and scratch memory lie in it."""

    nbytes: int
    buffers: dict[int, int]
    scratch: dict[int, int]
    """By identity."""


def plan_inside(program: Program, chosen: Sequence[tuple[Step, tuple[Work, ...]]]) -> Inside:
    """Plans the memory of a sub-program whose steps run one after the other."""
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
            # A step without work would neither wait for others nor be waited for.
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
        """All constants; one alone is not copied for that."""
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
        """A piece of work with the places of its arguments, and of those inside it."""
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
        """Whether a kernel reads an argument; of weights that are packed it reads only those."""
        argument = work.arguments[number]
        storage = self.program.places.storage.get(argument) if isinstance(argument, Value) else None
        if not isinstance(work, Launch) or storage is None or storage.buffer.kind != CONSTANT:
            return True
        _, _, body = work.source.partition("):\n")
        return re.search(rf"\bp{number}\b", body) is not None

    def uses(self, chosen: Sequence[tuple[Step, tuple[Work, ...]]]) -> list[Uses]:
        """Which steps use each temporary buffer, and each step's scratch memory.

        Buffers that are written over others are one with those: they lie in the same place.
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
                    sizes[key] = max(sizes.get(key, 0), storage.buffer.nbytes)
            for argument in {id(a): a for w in works for a in every_argument(w)}.values():
                if isinstance(argument, TritonScratch) and not argument.zeroed:
                    key = self.keys.setdefault(id(argument), -1 - len(self.keys))
                    extra.append(Uses(key, argument.nbytes, (position,)))
        return [Uses(key, sizes[key], tuple(at)) for key, at in found.items()] + extra

    def planned(
        self, chosen: Sequence[tuple[Step, tuple[Work, ...]]], order: Schedule
    ) -> MemoryPlan:
        """The arena, with the places of all temporary buffers and scratch memory."""
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
        return self.constant(value, data)

    def constant(self, key: object, data: Array) -> int:
        if key not in self.constant_at:
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            self.constant_at[key] = self.constant_bytes
            self.pieces.append((self.constant_bytes, raw))
            self.constant_bytes += _rounded(raw.size)
        return self.constant_at[key]

    def noted(self, step: Step, fault: TritonFault) -> int:
        """Two numbers that say whether a fault came, and with which data."""
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
    """The name by which a caller's memory is found: inputs and outputs may share names."""
    return f"{buffer.kind}:{buffer.name}"


def _rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
