"""In-place results: the steps that may write over an operand, and those that do.

A step may write its result into the buffer of an operand that has no later reader, if it reads each
element of that buffer only to compute the element at the same position: pointwise loops, epilogues
of dots and convolutions, and updates that keep most of an operand. The same holds for an output
that is donated the memory of an input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from monograph.ir import Graph, Item, Op, Value
from monograph.ir.sizes import proven
from monograph.ops.composite import DecodeAttention
from monograph.ops.control import Loop
from monograph.program.dynamic.bounded import BoundedLoop
from monograph.program.fusion.op_classes import is_join, is_native, is_view
from monograph.program.fusion.region import Element, Region, counters, resolve
from monograph.program.index import Index, flatten
from monograph.program.memory.buffer_assignment import INPUT, OUTPUT, TEMPORARY, Buffer, Places

if TYPE_CHECKING:
    from monograph.program.lowering import LoweringTarget

STATEFUL = (DecodeAttention, Loop, BoundedLoop)
"""Ops with several results, some of which are operands in a new state."""


def choose_overwrites(
    graph: Graph, regions: Sequence[Region], places: Places, target: LoweringTarget
) -> dict[int, int]:
    """Return the buffers that are written over others, by the numbers of both."""
    over = _donations(graph, regions, places, target)
    first, last = _uses(regions, places)
    taken: set[Buffer] = set()
    for step, region in enumerate(regions):
        if len(region.outputs) != 1 or not target.overwrites(region):
            continue
        place = places.storage.get(region.root)
        if place is None or place.buffer.kind != TEMPORARY or first[place.buffer] != step:
            continue
        for old in _buffers(region.inputs, places):
            dying = old.kind == TEMPORARY and last[old] == step and old not in taken
            if dying and clash(region, old, places) is None:
                over[place.buffer.id] = old.id
                taken.add(old)
                break
    return over


def _donations(
    graph: Graph, regions: Sequence[Region], places: Places, target: LoweringTarget
) -> dict[int, int]:
    """Return donated outputs that can be written over their inputs during the run."""
    found = {}
    first, last = _uses(regions, places)
    for new, old in donated_buffers(graph, places):
        start = first.get(new, -1)
        if new not in first or last.get(old, -1) > start:
            continue
        if last.get(old, -1) == start:
            region = regions[start]
            if not target.overwrites(region) or why_not(region, new, old, places) is not None:
                continue
        found[new.id] = old.id
    return found


def donated_buffers(graph: Graph, places: Places) -> Iterator[tuple[Buffer, Buffer]]:
    """Yield (output, input) for every donation between values that compiled code can hold."""
    inputs = dict(zip(graph.input_names, graph.inputs, strict=True))
    outputs = dict(graph.outputs)
    for output, input_ in graph.donations:
        new, old = (places.storage.get(v) for v in (outputs[output], inputs[input_]))
        if new is None or old is None:
            continue
        if new.buffer.kind == OUTPUT and old.buffer.kind == INPUT:
            yield new.buffer, old.buffer


def why_not(region: Region, new: Buffer, old: Buffer, places: Places) -> str | None:
    """Return why a region must not write one of its results over a buffer that it reads."""
    anchor = region.anchor
    if anchor is None or not isinstance(anchor.op, STATEFUL):
        return clash(region, old, places)
    for item in region.outputs:
        if places.storage[item].buffer is not new or not isinstance(item.op, Item):
            continue
        state = _updated(anchor.op, item.op.index)
        readers = [i for i, v in enumerate(anchor.inputs) if _is_in(v, old, places)]
        if state is None or readers != [state]:
            return "the kernel reads it at other places too"
        a, b = places.storage[item], places.storage.get(anchor.inputs[state])
        if b is None:
            return "what is updated is a view of it"
        return None if (a.strides, a.offset) == (b.strides, b.offset) else "it lies elsewhere"
    return "it is no result of its own"


def _updated(op: Op, result: int) -> int | None:
    """Return the operand whose new state a result is, if an op updates state."""
    if isinstance(op, DecodeAttention):
        return op.updates.get(result)
    assert isinstance(op, (Loop, BoundedLoop))
    return 2 + result if result < op.carried else None


def _is_in(value: Value, buffer: Buffer, places: Places) -> bool:
    """Return True if a value, or the source of a view, is in a buffer."""
    while is_view(value) and value not in places.storage:
        value = value.inputs[0]
    place = places.storage.get(value)
    return place is not None and place.buffer is buffer


def clash(region: Region, old: Buffer, places: Places) -> str | None:
    """Return why a region must not write its result over a buffer that it reads, or None."""
    result = region.root
    place = places.storage[result]
    new = place.buffer
    pairs = zip((*new.padded, *sum(new.halo, ())), (*old.padded, *sum(old.halo, ())), strict=False)
    if len(new.padded) != len(old.padded) or not all(proven(a, "==", b) for a, b in pairs):
        return "the buffers differ in their shape"
    if new.dtype.itemsize != old.dtype.itemsize:
        return "the elements differ in their size"
    at = counters(result.tensor.static)
    target = flatten(at, place.strides, place.offset)
    anchor = region.anchor
    inside = frozenset(region.inputs)
    if anchor is not None:
        plain: Sequence[Value] = anchor.inputs
        if anchor.op.updates_first and not region.epilogue:
            updated, *plain = anchor.inputs
            read = _positions([Element(updated, at)], inside, old, places)
            if read - {_key(target)}:
                return "what is updated lies elsewhere"
        if any(b is old for b in _buffers(_sources(plain, inside), places)):
            return "the kernel reads it at other places too"
        inside |= {anchor}
    read = _positions([Element(result, at)], inside, old, places)
    return "an element is read at another place" if read - {_key(target)} else None


_Key = tuple[int, frozenset[tuple[object, int]]]


def _key(index: Index) -> _Key:
    """Return a key that is equal for equal indices, whatever the order of their terms."""
    return index.constant, frozenset(index.terms)


def _positions(
    wanted: list[Element], inside: frozenset[Value], old: Buffer, places: Places
) -> set[_Key]:
    """Return the positions in a buffer that are read to compute some elements."""
    found = set()
    for item in resolve(wanted, lambda v: v in inside, is_view):
        place = places.storage.get(item.element.value)
        if not item.operands and place is not None and place.buffer is old:
            found.add(_key(flatten(item.element.at, place.strides, place.offset)))
    return found


def _sources(values: Iterable[Value], inside: frozenset[Value]) -> list[Value]:
    """Return the stored values that some values of a region are computed from."""
    found: dict[Value, None] = {}
    stack, seen = list(values), set[Value]()
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in inside:
            found[value] = None
        else:
            stack.extend(value.inputs)
    return list(found)


def _buffers(values: Iterable[Value], places: Places) -> list[Buffer]:
    places_ = (places.storage.get(v) for v in values)
    return list(dict.fromkeys(p.buffer for p in places_ if p is not None))


def _uses(regions: Sequence[Region], places: Places) -> tuple[dict[Buffer, int], dict[Buffer, int]]:
    """Return the first and the last step that reads or writes each buffer."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for step, region in enumerate(regions):
        for buffer in _buffers((*region.inputs, *region.outputs), places):
            first.setdefault(buffer, step)
            last[buffer] = step
    return first, last


def read_before_donated(graph: Graph, regions: list[Region], places: Places) -> list[Region]:
    """Order the regions so that old state is read before new state is written over it.

    If a read of the old value depends on the new one, there is no such order; the donation then
    costs a copy.
    """
    for new, old in donated_buffers(graph, places):
        first, last = _uses(regions, places)
        start, stop = first.get(new, 0), last.get(old, 0)
        if stop <= start:
            continue
        later = _dependants(regions, start, stop)
        span = range(start + 1, stop + 1)
        before = [regions[k] for k in span if k not in later]
        after = [regions[k] for k in span if k in later]
        regions = [*regions[:start], *before, regions[start], *after, *regions[stop + 1 :]]
    return regions


def _dependants(regions: Sequence[Region], start: int, stop: int) -> set[int]:
    """Return the steps up to `stop` that depend on a step."""
    made: set[Value] = set(regions[start].outputs)
    found: set[int] = set()
    for k in range(start + 1, stop + 1):
        region = regions[k]
        if any(_made_from(v, made) for v in region.inputs):
            found.add(k)
            made.update(region.outputs)
    return found


def _made_from(value: Value, made: set[Value]) -> bool:
    """Return True if a value, or a part of a join that has no step of its own, is in `made`."""
    stack, seen = [value], set[Value]()
    while stack:
        v = stack.pop()
        if v in made:
            return True
        if v not in seen and is_join(v) and is_native(v):
            stack.extend(v.inputs)
        seen.add(v)
    return False


def root(buffer: int, over: Mapping[int, int]) -> int:
    """Return the buffer at the bottom of a chain of buffers written over each other."""
    while buffer in over:
        buffer = over[buffer]
    return buffer
