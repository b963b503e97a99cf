"""Buffer assignment: the buffer, offset and strides of each value.

Parts of a join are stored inside the joined value, so that joining costs nothing. A buffer that
padded windows read has a halo of zeros, so that padding costs nothing either. A
product whose views are outputs is written directly into them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monograph.ir import Constant, DType, Graph, Input, TensorType, Value
from monograph.ir.sizes import largest
from monograph.ops.linear import Dot
from monograph.ops.shape import Concat, Reshape, Squeeze, Transpose, Unsqueeze
from monograph.program.fusion.op_classes import is_join, is_kernel, is_native, is_pointwise, is_view
from monograph.program.fusion.region import Region
from monograph.program.index import split_strides, strides_of

if TYPE_CHECKING:
    from monograph.program.lowering import LoweringTarget


Strides = tuple[int, ...]
TURNED = 1 << 16
"""The most elements stored out of order: each writes a sector of 32 bytes.

A launch after another takes 0.64 us on an H200, in which its cache accepts 100,000 sectors.
"""


def product_ends(graph: Graph) -> frozenset[Value]:
    """Return the outputs that are views of a product's epilogue and can be written directly."""
    users = Counter(i for v in graph.values for i in v.inputs)
    users.update(v for _, v in graph.outputs)
    donated = {name for name, _ in graph.donations}
    return frozenset(
        value for name, value in graph.outputs if name not in donated and _is_end(value, users)
    )


def written_through(value: Value) -> tuple[Value, Strides] | None:
    """Return the source of a view, and its strides in the view's own memory.

    None for a value that is no view, and for views that drop or repeat elements.
    """
    if not is_view(value) or not is_native(value):
        return None
    strides = strides_of(value.tensor.static)
    while is_view(value):
        op, shape = value.op, value.tensor.static
        value = value.inputs[0]
        before = value.tensor.static
        found: Strides | None = None
        if isinstance(op, Transpose):
            found = tuple(strides[op.permutation.index(d)] for d in range(len(before)))
        elif isinstance(op, (Reshape, Squeeze, Unsqueeze)):
            in_a_row = strides == strides_of(shape)
            found = strides_of(before) if in_a_row else split_strides(shape, strides, before)
        if found is None:
            return None
        strides = found
    return value, strides


def _is_end(value: Value, users: Counter[Value]) -> bool:
    found = written_through(value)
    if found is None:
        return False
    source, strides = found
    while value is not source:
        if users[value] != 1:
            return False
        value = value.inputs[0]
    size = source.tensor.size
    in_a_row = strides == strides_of(source.tensor.static)
    return (in_a_row or 0 < size <= TURNED) and users[source] == 1 and _follows(source, users)


def _follows(source: Value, users: Counter[Value]) -> bool:
    """Return True for a product, or for pointwise work on one without other users."""
    body: dict[Value, None] = {}
    products: dict[Value, None] = {}
    stack = [source]
    while stack:
        value = stack.pop()
        if isinstance(value.op, Dot):
            products[value] = None
        elif is_pointwise(value) and value not in body:
            body[value] = None
            stack += [v for v in value.inputs if _shape(v) == _shape(source)]
    inside = Counter(i for v in body for i in v.inputs)
    inside[source] += 1  # the view
    return len(products) == 1 and all(users[v] == inside[v] for v in (*products, *body))


def _shape(value: Value) -> tuple[int, ...] | None:
    return value.tensor.static if is_native(value) else None


Halo = tuple[tuple[int, int], ...]
"""Elements before and after, for each dimension."""

Joined = tuple[Value, int, Value]
"""A join, the start of a part along its axis, and the part."""

INPUT, OUTPUT, CONSTANT, TEMPORARY = "input", "output", "constant", "temporary"
OWN = (CONSTANT, TEMPORARY)
"""Buffers in the program's own memory: vectors may read a little beyond their end."""


@dataclass(frozen=True)
class Buffer:
    """The memory of one value, or of a joined value and all its parts."""

    id: int
    kind: str
    dtype: DType
    shape: tuple[int, ...]
    halo: Halo
    name: str = ""

    @property
    def padded(self) -> tuple[int, ...]:
        return tuple(d + a + b for d, (a, b) in zip(self.shape, self.halo, strict=True))

    @property
    def nbytes(self) -> int:
        return math.prod(self.padded) * self.dtype.itemsize

    @property
    def has_halo(self) -> bool:
        return any(a or b for a, b in self.halo)


def described(buffer: Buffer) -> str:
    """Return the name of a buffer for errors."""
    name = f" {buffer.name!r}" if buffer.name else ""
    return f"{buffer.kind} {buffer.id}{name}, {buffer.dtype}{list(buffer.padded)}"


@dataclass(frozen=True)
class Storage:
    """The location of a value: a buffer, an offset and strides, in elements."""

    buffer: Buffer
    offset: int
    strides: tuple[int, ...]


@dataclass
class Places:
    """The storage of every stored value, and every buffer."""

    storage: dict[Value, Storage] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    over: dict[int, int] = field(default_factory=dict)
    """Buffers written over others, in the same memory: by the numbers of both."""

    def new_buffer(
        self, kind: str, type_: TensorType, halo: Halo | None = None, name: str = ""
    ) -> Storage:
        shape = type_.static
        halo = halo or ((0, 0),) * len(shape)
        buffer = Buffer(len(self.buffers), kind, type_.dtype, shape, halo, name)
        self.buffers.append(buffer)
        strides = strides_of(buffer.padded)
        offset = sum(before * s for (before, _), s in zip(halo, strides, strict=True))
        return Storage(buffer, offset, strides)


def place(graph: Graph, regions: list[Region], target: LoweringTarget) -> Places:
    """Assign storage to every stored value."""
    parent = _parents(regions)
    halos = _halos(regions, parent, target)
    places = Places()
    for name, value in zip(graph.input_names, graph.inputs, strict=True):
        if is_native(value):
            places.storage[value] = places.new_buffer(INPUT, value.tensor, name=name)
    names = {v: name for name, v in graph.outputs}
    for name, value in graph.outputs:
        _place_shown(places, name, value)
    stored = [v for r in regions for v in (*r.inputs, *r.outputs)]
    # Joined values come after their parts: in reverse, a join is placed before its parts.
    for value in reversed(list(dict.fromkeys(stored))):
        _place_value(places, value, parent, halos, names)
    return places


def _place_shown(places: Places, name: str, value: Value) -> None:
    """Place an output that is a view: no step computes it; its source is written into it."""
    shown = written_through(value)
    if shown is not None:
        source, strides = shown
        places.storage[value] = whole = places.new_buffer(OUTPUT, value.tensor, name=name)
        places.storage[source] = Storage(whole.buffer, whole.offset, strides)


def _place_value(
    places: Places,
    value: Value,
    parent: Mapping[Value, Joined],
    halos: Mapping[Value, Halo],
    names: Mapping[Value, str],
) -> None:
    if value in places.storage or isinstance(value.op, Input) or not is_native(value):
        return
    if isinstance(value.op, Constant):
        places.storage[value] = places.new_buffer(CONSTANT, value.tensor)
    elif value in parent:
        join, start, part = parent[value]
        assert isinstance(join.op, Concat)
        whole = places.storage[join]
        offset = whole.offset + start * whole.strides[join.op.axis]
        strides: tuple[int, ...] | None = whole.strides
        if part is not value:
            shape = part.tensor.static
            strides = split_strides(shape, whole.strides, value.tensor.static)
        assert strides is not None
        places.storage[value] = Storage(whole.buffer, offset, strides)
    elif value in names:
        places.storage[value] = places.new_buffer(OUTPUT, value.tensor, name=names[value])
    else:
        places.storage[value] = places.new_buffer(TEMPORARY, value.tensor, halos.get(value))


def _parents(regions: list[Region]) -> dict[Value, Joined]:
    """Return the values stored inside joins: the parts, or the sources of reshaped parts."""
    found: dict[Value, Joined] = {}
    for region in regions:
        join = region.root
        if not is_join(join) or not is_native(join):
            continue
        assert isinstance(join.op, Concat)
        start = 0
        for part in join.inputs:
            source = part
            while is_view(source):
                source = source.inputs[0]
            found[source] = (join, start, part)
            start += part.tensor.static[join.op.axis]
    return found


def _halos(
    regions: list[Region], parent: Mapping[Value, Joined], target: LoweringTarget
) -> dict[Value, Halo]:
    """Return the halo that each outermost value needs for the windows that read it or its parts."""
    found: dict[Value, Halo] = {}
    for region in regions:
        anchor = region.anchor
        if anchor is None or not is_kernel(anchor):
            continue
        for i, operand in enumerate(anchor.inputs):
            halo = target.halo(anchor, i)
            if halo is None:
                continue
            while is_view(operand):
                operand = operand.inputs[0]
            while operand in parent:
                operand = parent[operand][0]
            known = found.get(operand, ((0, 0),) * len(halo))
            found[operand] = tuple(
                (largest((a, c)), largest((b, d)))
                for (a, b), (c, d) in zip(known, halo, strict=True)
            )
    return found
