"""The memory that the works of a module read and write, for the race detector."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from monograph.codegen.triton.module.kernel import Argument, BufferView, TritonFault, TritonScratch
from monograph.codegen.triton.module.launch import CONSTANTS, PORT, BufferRef
from monograph.codegen.triton.module.layout import Bound, GpuModule
from monograph.ir import Value
from monograph.program.legalise.lower_random import states_of
from monograph.program.memory.buffer_assignment import CONSTANT
from tests.program.races import Task, Touch

NOTE_BYTES = 16
"""The bytes of a device fault report."""


def tasks_of(module: GpuModule) -> list[Task]:
    """The works of a module with what they wait for and what they touch, bodies included."""
    states = states_of(module.program.graph)
    over = {f"output:{new}": f"input:{old}" for new, old in module.program.donated.items()}
    found = []
    for bound in module.works:
        written = {*module.steps[bound.position].region.outputs, *states}
        touches = tuple(_touches(module, bound, written, over))
        found.append(Task(bound.stream, bound.position, bound.waits, touches))
    return found


def _touches(
    module: GpuModule, outer: Bound, written: Container[Value], over: Mapping[str, str]
) -> Iterator[Touch]:
    for bound in outer.every:
        for argument, where in zip(bound.work.arguments, bound.arguments, strict=True):
            memory = over.get(where.port, where.port) if where.memory == PORT else where.memory
            if memory != CONSTANTS and not _is_constant(module, argument):
                yield _touch(module, argument, where, memory, written)


def _is_constant(module: GpuModule, argument: Argument) -> bool:
    """Tell whether an argument is a constant: a kernel that does not read it gets a stand-in."""
    place = module.program.places.storage.get(argument) if isinstance(argument, Value) else None
    return place is not None and place.buffer.kind == CONSTANT


def _touch(
    module: GpuModule, argument: Argument, where: BufferRef, memory: str, written: Container[Value]
) -> Touch:
    """An argument's elements; of a part all of what it is a part of."""
    start = where.offset
    if isinstance(argument, BufferView):
        start -= argument.offset
        argument = argument.of
    if isinstance(argument, Value):
        place = module.program.places.storage[argument]
        shape = argument.tensor.static
        size = argument.dtype.itemsize
        return Touch(memory, start, size, shape, place.strides, argument in written)
    assert isinstance(argument, (TritonFault, TritonScratch))
    count = argument.nbytes if isinstance(argument, TritonScratch) else NOTE_BYTES
    return Touch(memory, start, 1, (count,), (1,), True)
