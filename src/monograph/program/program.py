"""The Program: steps in order, over placed values."""

from __future__ import annotations

from dataclasses import dataclass, field

from monograph.errors import VerifyError
from monograph.ir import Constant, Graph, Value
from monograph.program.fuse import fuse
from monograph.program.kinds import is_join, is_leaf, is_native
from monograph.program.normalise import normalise
from monograph.program.place import TEMPORARY, Buffer, Places, Storage, Target, place
from monograph.program.plan import Lifetime, Plan, plan
from monograph.program.region import Region
from monograph.program.split import split_reductions


@dataclass(frozen=True, eq=False)
class Step:
    """One kernel at its place in the order."""

    index: int
    region: Region
    origin: str

    def __str__(self) -> str:
        made = ", ".join(str(v.type) for v in self.region.outputs)
        return f"{self.index}: {self.region.kind} -> {made}  // {self.origin}"


@dataclass(frozen=True, eq=False)
class Program:
    """A graph as a straight line of kernels."""

    graph: Graph
    steps: tuple[Step, ...]
    places: Places
    memory: Plan = field(default_factory=lambda: Plan({}, 0))

    @property
    def peak_bytes(self) -> int:
        """What the temporaries take together."""
        return self.memory.size

    def storage(self, value: Value) -> Storage:
        return self.places.storage[value]

    def __str__(self) -> str:
        lines = [f"program {self.graph.name!r}: {len(self.steps)} steps, {self.peak_bytes:,} bytes"]
        for step in self.steps:
            reads = ", ".join(_where(self, v) for v in step.region.inputs)
            writes = ", ".join(_where(self, v) for v in step.region.outputs)
            lines.append(
                f"  {step.index}: {writes} = {step.region.kind}({reads})  // {step.origin}"
            )
        return "\n".join(lines)


def _where(program: Program, value: Value) -> str:
    storage = program.places.storage.get(value)
    if storage is None:
        return f"host {value.type}"
    return f"{storage.buffer.kind[0]}{storage.buffer.id}+{storage.offset}:{value.type}"


def lower(graph: Graph, target: Target) -> Program:
    """The program of a graph for a target."""
    prepared = normalise(split_reductions(graph), target.readable, target.halo)
    regions = fuse(prepared)
    places = place(prepared, regions, target)
    kept = [r for r in regions if not (is_join(r.root) and is_native(r.root))]
    steps = tuple(Step(i, r, _origin(prepared, r)) for i, r in enumerate(kept))
    program = Program(prepared, steps, places, plan(lifetimes(steps, places)))
    return verify_program(program)


def _origin(graph: Graph, region: Region) -> str:
    names = dict.fromkeys(t for v in region.body if (t := graph.origin(v)))
    return " + ".join(names)


def lifetimes(steps: tuple[Step, ...], places: Places) -> list[Lifetime]:
    """When each temporary buffer is written first and read last."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for step in steps:
        for value in (*step.region.inputs, *step.region.outputs):
            storage = places.storage.get(value)
            if storage is not None and storage.buffer.kind == TEMPORARY:
                first.setdefault(storage.buffer, step.index)
                last[storage.buffer] = step.index
    return [Lifetime(b.id, b.nbytes, first[b], last[b]) for b in first]


def verify_program(program: Program) -> Program:
    """Every read follows its write, every output is written, no live buffer is overwritten."""
    written: set[Value] = set(program.graph.inputs)
    for step in program.steps:
        for value in step.region.inputs:
            if not isinstance(value.op, Constant) and not _written(value, written):
                raise VerifyError(
                    "a step reads what no step before it writes",
                    node=step.origin,
                    op=step.region.kind,
                    given=value.type,
                )
        written.update(step.region.outputs)
        written.update(step.region.body)
    for name, value in program.graph.outputs:
        if not is_leaf(value) and not _written(value, written):
            raise VerifyError(f"output {name!r} is never written", given=value.type)
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
        if not is_join(v):
            return False
        seen.add(v)
        stack.extend(v.inputs)
    return True


def _verify_memory(program: Program) -> None:
    lives = lifetimes(program.steps, program.places)
    starts = {x.key: program.memory.offsets[x.key] for x in lives}
    ordered = sorted(lives, key=lambda x: starts[x.key])
    ranges = [(starts[x.key], starts[x.key] + x.nbytes, x) for x in ordered]
    live: list[tuple[int, int, Lifetime]] = []
    for start, stop, life in ranges:
        live = [r for r in live if r[1] > start]
        for _, _, other in live:
            if other.first <= life.last and life.first <= other.last:
                raise VerifyError(
                    "two buffers that live at once overlap", given=(other.key, life.key)
                )
        live.append((start, stop, life))
