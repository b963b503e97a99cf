"""Sub-programs of branches and loops: the work of a sub-graph, with memory in its step's
scratch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from monograph.codegen.triton.indexing.index_kernels import CopyOperand
from monograph.codegen.triton.module.kernel import (
    Argument,
    Branch,
    BufferView,
    GpuContext,
    RepeatWork,
    TritonFault,
    TritonPacked,
    TritonScratch,
    Work,
)
from monograph.codegen.triton.module.launch import is_unrolled
from monograph.codegen.triton.module.layout import plan_inside
from monograph.ir import Graph, Value, known
from monograph.ir.dtype import u8
from monograph.program.dynamic.bounded import CONTROL, graphs_of
from monograph.program.fusion.op_classes import is_native
from monograph.program.fusion.region import Region
from monograph.program.launch_regions import held_by_host, why_held
from monograph.program.lowering import lower_body
from monograph.program.memory.buffer_assignment import CONSTANT, TEMPORARY
from monograph.program.program import Program, Step

_PROGRAMS: WeakKeyDictionary[Graph, Program | None] = WeakKeyDictionary()


def lowered(graph: Graph) -> Program:
    """Return the program of a sub-graph that the device can run."""
    found = find_program(graph)
    assert found is not None
    return found


def find_program(graph: Graph) -> Program | None:
    """Return the program of a sub-graph, made once; None when a device cannot hold it."""
    # Kernels contain sub-programs and sub-programs contain kernels: circular imports.
    from monograph.codegen.triton.module.select import GpuTarget

    if graph not in _PROGRAMS:
        _PROGRAMS[graph] = lower_body(graph, GpuTarget())
    return _PROGRAMS[graph]


def compiles(value: Value) -> bool:
    """Return True if a branch or a loop is compiled as it is: all sizes known, also inside."""
    return all(map(is_native, (value, *value.inputs))) and serves(value)


def serves(value: Value) -> bool:
    """Return True if the device can compute everything inside a branch or a loop."""
    return isinstance(value.op, CONTROL) and all(map(_served, graphs_of(value)))


def _served(graph: Graph) -> bool:
    from monograph.codegen.triton.module import select

    if not all(map(is_native, (*graph.inputs, *(v for _, v in graph.outputs)))):
        return False
    program = find_program(graph)
    return program is not None and all(select.serves(step.region) for step in program.steps)


def host_reason(region: Region) -> str:
    """Return why a region runs on the host; "" if a device can hold all its values.

    A loop or branch with a data-dependent size inside runs on the host as a whole, because one
    compiled body serves all iterations.
    """
    if (why := held_by_host(region)) or region.anchor is None:
        return why
    return _held_inside(region.anchor)


def _held_inside(value: Value) -> str:
    if not isinstance(value.op, CONTROL):
        return ""
    for graph in graphs_of(value):
        values = (*graph.inputs, *(v for _, v in graph.outputs))
        program = find_program(graph) if all(map(is_native, values)) else None
        if program is None:
            reasons = (why_held(v.type) for v in (*values, *graph.values))
            return f"inside it: {next(filter(None, reasons))}"
        for step in program.steps:
            if why := host_reason(step.region):
                return why
    return ""


def programs(program: Program) -> list[Program]:
    """Return a program and all sub-programs inside it that the device runs."""
    found = [program]
    for step in program.steps:
        anchor = step.region.anchor
        if anchor is not None and compiles(anchor):
            found += [p for g in graphs_of(anchor) for p in programs(lowered(g))]
    return found


class InlinedWork:
    """A sub-program as work of the step that runs it, once or many times."""

    def __init__(self, context: GpuContext, graph: Graph) -> None:
        from monograph.codegen.triton.module import select

        self.program = lowered(graph)
        self.chosen: list[tuple[Step, tuple[Work, ...]]] = []
        for step in self.program.steps:
            inner = replace(context, program=self.program, step=step)
            way = context.choose(self.program, step, select.candidates(inner))
            self.chosen.append((step, way.make()))
        self.inside = plan_inside(self.program, self.chosen)
        self.memory = TritonScratch(max(self.inside.nbytes, 1), u8)
        self.constants: dict[Value, TritonPacked] = {}

    @property
    def size(self) -> int:
        """The pieces of work of one run."""
        return sum(len(works) for _, works in self.chosen)

    def works(
        self, inputs: Sequence[CopyOperand], outputs: Sequence[CopyOperand]
    ) -> tuple[Work, ...]:
        """Return the work of one run, on contiguous elements."""
        graph = self.program.graph
        given = dict(zip(graph.inputs, inputs, strict=True))
        made = {v: p for (_, v), p in zip(graph.outputs, outputs, strict=True)}
        ports = {self._buffer(v): p for v, p in (given | made).items()}
        run = _Run(self, ports)
        return tuple(run.work(step, w) for step, works in self.chosen for w in works)

    def _buffer(self, value: Value) -> int:
        """Return the number of an input's or output's buffer; -1 for one without readers."""
        place = self.program.places.storage.get(value)
        return -1 if place is None else place.buffer.id


@dataclass
class _Run:
    """One run of a sub-program: the locations of its ports."""

    sub: InlinedWork
    ports: dict[int, CopyOperand]

    def work(self, step: Step, work: Work) -> Work:
        """Return a piece of work with arguments of the outer program."""
        arguments = tuple(map(self.argument, work.arguments))
        if isinstance(work, (Branch, RepeatWork)):
            bodies = tuple(tuple(self.work(step, w) for w in body) for body in work.bodies)
            return replace(work, arguments=arguments, bodies=bodies)
        return replace(work, arguments=arguments, step=work.step or step)

    def argument(self, argument: Argument) -> Argument:
        if isinstance(argument, BufferView):
            whole = self.argument(argument.of)
            assert not isinstance(whole, TritonFault)
            if not isinstance(whole, BufferView):
                return replace(argument, of=whole)
            return replace(argument, of=whole.of, offset=whole.offset + argument.offset)
        if isinstance(argument, TritonScratch) and not argument.zeroed:
            at = self.sub.inside.scratch[id(argument)]
            return BufferView(self.sub.memory, at, argument.dtype, nbytes=argument.nbytes)
        if not isinstance(argument, Value):
            return argument
        place = self.sub.program.places.storage[argument]
        kind, dtype = argument.tensor, argument.dtype
        skipped = place.offset * dtype.itemsize
        of: Value | TritonPacked | TritonScratch
        if place.buffer.kind == TEMPORARY:
            of, at = self.sub.memory, self.sub.inside.buffers[place.buffer.id]
        elif place.buffer.kind == CONSTANT:
            of, at = self._constant(argument), 0
        else:
            port = self.ports[place.buffer.id]
            of, at = port.of, port.offset
        room = place.buffer.nbytes - skipped
        return BufferView(of, at + skipped, dtype, kind.static, place.strides, room, skipped)

    def _constant(self, value: Value) -> TritonPacked:
        data = known(value)
        assert data is not None
        return self.sub.constants.setdefault(value, TritonPacked(data, value.dtype))


def needs_conditions(work: Work) -> bool:
    """Return True if only a graph with conditional nodes can hold some work."""
    if isinstance(work, Branch):
        return True
    if not isinstance(work, RepeatWork):
        return False
    (body,) = work.bodies
    return not is_unrolled(work.count, len(body)) or any(map(needs_conditions, body))
