"""Regions: the values that one kernel computes, their loop nests, and access to their elements.

A fused expression is resolved once, symbolically: which op reads which operand at which index. Code
generators walk the result in order, down to loads from memory; nothing here depends on the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monograph.errors import InferError
from monograph.ir import Op, Value
from monograph.ir.sizes import is_one, proven, same_sizes
from monograph.ops.pad_tile import Tile
from monograph.ops.quant import Dequantize, Quantize
from monograph.ops.shape import Broadcast, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.ops.signal import Frames
from monograph.program.index import Counter, Index, counter, flatten, strides_of, unflatten

if TYPE_CHECKING:
    from monograph.program.memory.buffer_assignment import Storage


Indices = tuple[Index, ...]


@dataclass(frozen=True)
class Element:
    """One element of a value: the value and its index."""

    value: Value
    at: Indices


@dataclass(frozen=True)
class Resolved:
    """An element that is computed: its op on other elements. `operands` is empty for a load."""

    element: Element
    operands: tuple[Element, ...]


def counters(shape: Sequence[int], stem: str = "i") -> Indices:
    """A counter for each dimension of a loop nest."""
    return tuple(counter(f"{stem}{k}", d) for k, d in enumerate(shape))


def through_view(value: Value, at: Indices) -> Element:
    """Return the element of a view's operand that an element of the view shows."""
    op, source = value.op, value.inputs[0]
    shape = source.tensor.static
    if isinstance(op, Transpose):
        found = [Index()] * len(at)
        for i, p in enumerate(op.permutation):
            found[p] = at[i]
        return Element(source, tuple(found))
    if isinstance(op, Slice):
        moved = zip(op.starts, op.steps, at, strict=True)
        return Element(source, tuple(i * step + start for start, step, i in moved))
    if isinstance(op, Broadcast):
        return Element(source, aligned(at, shape))
    if isinstance(op, Unsqueeze):
        return Element(source, tuple(i for k, i in enumerate(at) if k not in op.axes))
    if isinstance(op, Squeeze):
        rest = iter(at)
        every = range(len(shape))
        return Element(source, tuple(Index() if k in op.axes else next(rest) for k in every))
    if isinstance(op, Tile):
        return Element(source, tuple(i % d if d else i for i, d in zip(at, shape, strict=True)))
    if isinstance(op, Frames):
        k = op.axis
        return Element(source, (*at[:k], at[k] * op.step + at[k + 1], *at[k + 2 :]))
    if isinstance(op, Reshape):
        return Element(source, unflatten(flatten(at, strides_of(value.tensor.static)), shape))
    raise InferError("the op must be a view", op=op.name)


def aligned(at: Indices, shape: Sequence[int]) -> Indices:
    """Return the index into a broadcast operand: its own dimensions, 0 where it repeats."""
    own = at[len(at) - len(shape) :]
    return tuple(Index() if is_one(d) else i for d, i in zip(shape, own, strict=True))


def operand_index(value: Value, position: int, at: Indices) -> Indices:
    """Return the index at which a pointwise op reads an operand."""
    shape = value.inputs[position].tensor.static
    op = value.op
    if isinstance(op, (Quantize, Dequantize)) and position > 0 and shape and op.axis is not None:
        if op.block == 0:
            return (Index() if shape[0] == 1 else at[op.axis],)
        return tuple(i // op.block if k == op.axis else i for k, i in enumerate(at))
    if isinstance(op, (Quantize, Dequantize)) and position > 0:
        return (Index(),) * len(shape)
    return aligned(at, shape)


def resolve(
    wanted: Sequence[Element],
    is_input: Callable[[Value], bool],
    is_view: Callable[[Value], bool],
) -> list[Resolved]:
    """Return the loads and computations for some elements, operands first, each once."""
    done: dict[Element, None] = {}
    order: list[Resolved] = []
    stack: list[tuple[Element, bool]] = [(e, False) for e in reversed(wanted)]
    while stack:
        element, ready = stack.pop()
        if element in done:
            continue
        operands = _operands(element, is_input, is_view)
        if ready or not operands:
            done[element] = None
            order.append(Resolved(element, operands))
            continue
        stack.append((element, True))
        stack.extend((o, False) for o in reversed(operands) if o not in done)
    return order


def _operands(
    element: Element, is_input: Callable[[Value], bool], is_view: Callable[[Value], bool]
) -> tuple[Element, ...]:
    value = element.value
    if is_input(value):
        return ()
    if is_view(value):
        return (through_view(value, element.at),)
    return tuple(
        Element(v, operand_index(value, i, element.at)) for i, v in enumerate(value.inputs)
    )


@dataclass(frozen=True, eq=False)
class Region:
    """The work of one kernel.

    `body` holds all values computed inside, in order: views, pointwise values, the anchor. Only
    `outputs` are stored; `inputs` are read from memory. A region without an anchor is a loop over
    elements.
    """

    outputs: tuple[Value, ...]
    inputs: tuple[Value, ...]
    body: tuple[Value, ...]
    anchor: Value | None = None

    @property
    def kind(self) -> str:
        if self.anchor is None:
            return "pointwise"
        # A compiled form of an op has the name of that op.
        inner = getattr(self.anchor.op, "of", None)
        return inner.name if isinstance(inner, Op) else self.anchor.op.name

    @property
    def root(self) -> Value:
        """The last result, which names the region."""
        return self.outputs[-1]

    @property
    def epilogue(self) -> tuple[Value, ...]:
        """The values computed from the anchor's result before it is stored."""
        if self.anchor is None:
            return ()
        at = self.body.index(self.anchor)
        return self.body[at + 1 :]

    def inputs_besides(self, operand: int) -> tuple[Value, ...]:
        """Return the inputs without the one that is only this operand of the anchor.

        A kernel that packs constant weights no longer reads them from memory, unless its epilogue
        or another operand is the same constant.
        """
        assert self.anchor is not None
        others = [v for i, v in enumerate(self.anchor.inputs) if i != operand]
        read = {*others, *self.outputs}
        read.update(v for user in self.body if user is not self.anchor for v in user.inputs)
        only = self.anchor.inputs[operand]
        return tuple(v for v in self.inputs if v is not only or v in read)


def merge(shape: Sequence[int], at: Indices, positions: Sequence[Index]) -> Indices:
    """Return the index of each dimension in terms of fewer counters.

    Neighbouring dimensions become one loop if the outer factor is the inner factor times the inner
    extent in every position in memory.
    """
    groups: list[list[int]] = []
    for axis, extent in enumerate(shape):
        if is_one(extent):
            continue
        if groups and _runs_on(shape, at, positions, groups[-1][-1], axis):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    merged: list[Index] = [Index()] * len(shape)
    for number, group in enumerate(groups):
        sizes = [shape[a] for a in group]
        whole = counter(f"m{number}", math.prod(sizes))
        for axis, index in zip(group, unflatten(whole, sizes), strict=True):
            merged[axis] = index
    return tuple(merged)


def _runs_on(
    shape: Sequence[int], at: Indices, positions: Sequence[Index], outer: int, inner: int
) -> bool:
    (a, _), (b, _) = at[outer].terms[0], at[inner].terms[0]
    for position in positions:
        if not position.is_linear and position.counters & {a, b}:
            return False
        if not proven(position.factor(a), "==", position.factor(b) * shape[inner]):
            return False
    return True


@dataclass(frozen=True)
class RowNest:
    """The loops over the rows of an operand: its index in as few counters as possible.

    A row is the elements along the reduced axes, at one index of the kept ones.
    """

    at: Indices
    kept: list[Counter]
    reduced: list[Counter]


def row_nest(
    shape: Sequence[int], axes: Sequence[int], positions: Callable[[Indices], list[Index]]
) -> RowNest:
    """Build the loops over an operand; `positions` maps an index to what it reads and writes."""
    at = plain = counters(shape)
    if 0 not in shape:
        kept = [1 if d in axes else n for d, n in enumerate(shape)]
        # A distinct address for kept dimensions alone prevents a merge of kept and reduced ones.
        apart = flatten(
            [Index() if d in axes else i for d, i in enumerate(plain)], strides_of(kept)
        )
        at = merge(shape, plain, [apart, *positions(plain)])
    named = sorted({c for i in at for c in i.counters}, key=lambda c: (len(c.name), c.name))
    across = {c for d, i in enumerate(at) if d not in axes for c in i.counters}
    return RowNest(at, [c for c in named if c in across], [c for c in named if c not in across])


def result_index(operand: Value, result: Value, axes: Sequence[int], at: Indices) -> Indices:
    """Return the index of the result of an element's row, or of the same element."""
    if same_sizes(result.tensor.static, operand.tensor.static):
        return at
    if len(result.tensor.static) == len(at):
        return tuple(Index() if d in axes else i for d, i in enumerate(at))
    return tuple(i for d, i in enumerate(at) if d not in axes)


def positions_read(order: Sequence[Resolved], storage: Mapping[Value, Storage]) -> list[Index]:
    """Return the positions in memory of the loads in an order of elements."""
    return [
        flatten(r.element.at, storage[r.element.value].strides)
        for r in order
        if not r.operands and r.element.value in storage
    ]
