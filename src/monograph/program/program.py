"""The program: steps in order, over stored values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from monograph.errors import VerifyError
from monograph.ir import Constant, Graph, TensorType, Value
from monograph.ir.sizes import SizeScope, hint_of, is_open
from monograph.ops.composite import DecodeAttention
from monograph.passes.base import ORIGINS_BETWEEN
from monograph.program.fusion.op_classes import is_join, is_leaf, is_view
from monograph.program.fusion.region import Region
from monograph.program.memory.buffer_assignment import INPUT, TEMPORARY, Places, Storage
from monograph.program.memory.inplace import donated_buffers, root, why_not
from monograph.program.memory.memory_planner import Lifetime, MemoryPlan, fullest

if TYPE_CHECKING:
    from monograph.program.launch_regions import Launch


@dataclass(frozen=True, eq=False)
class Step:
    """One kernel at its position in the order."""

    index: int
    region: Region
    origin: str

    @property
    def nodes(self) -> list[str]:
        """Return the ONNX nodes of the step."""
        return [name for name in self.origin.split(ORIGINS_BETWEEN) if name]

    def __str__(self) -> str:
        made = ", ".join(str(v.type) for v in self.region.outputs)
        return f"{self.index}: {self.region.kind} -> {made}  // {self.origin}"


@dataclass(frozen=True, eq=False)
class Program:
    """A graph as a straight line of kernels."""

    graph: Graph
    steps: tuple[Step, ...]
    places: Places
    memory: MemoryPlan = field(default_factory=lambda: MemoryPlan({}, 0))
    launches: tuple[Launch, ...] = ()
    """The launches of the steps, once they are known (see `launch_regions`)."""

    @property
    def peak_bytes(self) -> int:
        """The size of the arena of temporaries."""
        return self.memory.size

    @property
    def donated(self) -> dict[str, str]:
        """The donated outputs that are written over their inputs, without a copy."""
        buffers, over = self.places.buffers, self.places.over
        return {
            buffers[new].name: buffers[old].name
            for new, old in over.items()
            if buffers[old].kind == INPUT
        }

    @cached_property
    def scope(self) -> SizeScope | None:
        """The open sizes of the program; None if all sizes are known."""
        values = (*self.graph.inputs, *(v for s in self.steps for v in s.region.outputs))
        dims = (d for v in values if isinstance(v.type, TensorType) for d in v.type.shape or ())
        return next((d.scope for d in dims if is_open(d)), None)

    def in_place(self, step: Step) -> bool:
        """Return True if a step writes its result over one of its operands."""
        place = self.places.storage.get(step.region.root)
        under = None if place is None else self.places.over.get(place.buffer.id)
        read = (self.places.storage.get(v) for v in step.region.inputs)
        return under is not None and any(p is not None and p.buffer.id == under for p in read)

    def updated(self, step: Step) -> dict[Value, Value]:
        """Return the results of a step that are an operand but for a part, with that operand.

        The rest of the operand stays where it is: nothing copies it.
        """
        anchor = step.region.anchor
        if anchor is None or not (
            anchor.op.updates_first or isinstance(anchor.op, DecodeAttention)
        ):
            return {}
        storage, over = self.places.storage, self.places.over
        found = {}
        for result in step.region.outputs:
            place = storage.get(result)
            under = None if place is None else over.get(place.buffer.id)
            for operand in step.region.inputs:
                held = storage.get(operand)
                if under is not None and held is not None and held.buffer.id == under:
                    found[result] = operand
        return found

    def storage(self, value: Value) -> Storage:
        return self.places.storage[value]

    def __str__(self) -> str:
        lines = [f"program {self.graph.name!r}: {len(self.steps)} steps, {self.peak_bytes:,} bytes"]
        headings = {launch.steps[0].index: str(launch) for launch in self.launches}
        for step in self.steps:
            if step.index in headings:
                lines.append(f" {headings[step.index]}")
            reads = ", ".join(_where(self, v) for v in step.region.inputs)
            writes = ", ".join(_where(self, v) for v in step.region.outputs)
            lines.append(
                f"  {step.index}: {writes} = {step.region.kind}({reads})  // {step.origin}"
            )
        return "\n".join([*lines, f"  {self.peak_report()}"])

    def peak_report(self) -> str:
        """Describe the step at which temporaries take the most memory, and the largest of them."""
        step, needed = fullest(lifetimes(self.steps, self.places))
        listed = ", ".join(f"t{x.key} {x.nbytes:,} (steps {x.first}-{x.last})" for x in needed[:8])
        more = f", {len(needed) - 8} more" if len(needed) > 8 else ""
        total = sum(x.nbytes for x in needed)
        return f"most at step {step}: {total:,} bytes needed: {listed or 'nothing'}{more}"


def _where(program: Program, value: Value) -> str:
    storage = program.places.storage.get(value)
    if storage is None:
        return f"host {value.type}"
    buffer = storage.buffer
    under = program.places.over.get(buffer.id)
    over = "" if under is None else f" over {program.places.buffers[under].kind[0]}{under}"
    return f"{buffer.kind[0]}{buffer.id}{over}+{storage.offset}:{value.type}"


def lifetimes(steps: tuple[Step, ...], places: Places) -> list[Lifetime]:
    """Return the first write and last read of each temporary buffer.

    The lifetime of a buffer includes those of the buffers written over it.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    nbytes: dict[int, int] = {}
    members: dict[int, dict[int, None]] = {}
    for step in steps:
        for value in (*step.region.inputs, *step.region.outputs):
            storage = places.storage.get(value)
            if storage is None or storage.buffer.kind != TEMPORARY:
                continue
            buffer = storage.buffer
            key = root(buffer.id, places.over)
            members.setdefault(key, {})[buffer.id] = None
            nbytes[key] = max(nbytes.get(key, 0), buffer.nbytes)
            first.setdefault(key, step.index)
            last[key] = step.index
    return [
        Lifetime(k, nbytes[k], first[k], last[k], tuple(m for m in members[k] if m != k))
        for k in first
    ]


def verify_program(program: Program) -> Program:
    """Verify that reads follow writes, outputs are written, live buffers not overwritten."""
    written: set[Value] = set(program.graph.inputs)
    for step in program.steps:
        for value in step.region.inputs:
            if not isinstance(value.op, Constant) and not _written(value, written):
                raise VerifyError(
                    "a step reads a value that no earlier step writes",
                    node=step.origin,
                    op=step.region.kind,
                    given=value.type,
                )
        written.update(step.region.outputs)
        written.update(step.region.body)
    for name, value in program.graph.outputs:
        if not is_leaf(value) and not _written(value, written):
            raise VerifyError(f"output {name!r} is never written", given=value.type)
    _verify_overwrites(program)
    _verify_memory(program)
    return program


def _written(value: Value, written: set[Value]) -> bool:
    if value in written:
        return True
    # A join has no step of its own: it is there when its parts are.
    stack, seen = [value], set[Value]()
    while stack:
        v = stack.pop()
        if v in written or v in seen or isinstance(v.op, Constant):
            continue
        if not is_join(v) and not is_view(v):
            return False
        seen.add(v)
        stack.extend(v.inputs)
    return True


def _verify_memory(program: Program) -> None:
    lives = lifetimes(program.steps, program.places)
    starts = {x.key: program.memory.offsets[x.key] for x in lives}
    starts = {key: hint_of(start) for key, start in starts.items()}
    ordered = sorted(lives, key=lambda x: starts[x.key])
    ranges = [(starts[x.key], starts[x.key] + hint_of(x.nbytes), x) for x in ordered]
    live: list[tuple[int, int, Lifetime]] = []
    for start, stop, life in ranges:
        live = [r for r in live if r[1] > start]
        for _, _, other in live:
            if other.first <= life.last and life.first <= other.last:
                raise VerifyError(
                    "two buffers that live at once overlap", given=(other.key, life.key)
                )
        live.append((start, stop, life))


def _verify_overwrites(program: Program) -> None:
    """Verify that an overwritten buffer is no longer needed, nor read elsewhere by its writer."""
    places, buffers = program.places, program.places.buffers
    if len(set(places.over.values())) < len(places.over):
        raise VerifyError("at most one buffer may be written over another", given=places.over)
    readers, writers = (_by_buffer(program, which) for which in ("inputs", "outputs"))
    donated = {(new.id, old.id) for new, old in donated_buffers(program.graph, places)}
    for new, old in places.over.items():
        kinds = (buffers[new].kind, buffers[old].kind)
        if kinds != (TEMPORARY, TEMPORARY) and (new, old) not in donated:
            raise VerifyError("only donated inputs may be written over", given=buffers[old].name)
        first = writers.get(new, program.steps[-1:])[0].index
        for step in readers.get(old, ()):
            reason = "it is read after it is written over" if step.index > first else None
            if step.index == first:
                reason = why_not(step.region, buffers[new], buffers[old], places)
            if reason is not None:
                raise VerifyError(
                    f"a buffer that is still needed must not be written over: {reason}",
                    node=step.origin,
                    op=step.region.kind,
                    given=f"buffer {new} over {old}",
                )


def _by_buffer(program: Program, which: str) -> dict[int, list[Step]]:
    """Return the steps that read or write each buffer, in order."""
    found: dict[int, list[Step]] = {}
    for step in program.steps:
        places = (program.places.storage.get(v) for v in getattr(step.region, which))
        for buffer in dict.fromkeys(p.buffer.id for p in places if p is not None):
            found.setdefault(buffer, []).append(step)
    return found
