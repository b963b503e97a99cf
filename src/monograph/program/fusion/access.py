"""Element access: every value of a region at an index, resolved down to loads from memory.

A fused expression is resolved once, symbolically: which op reads which operand at which index. Code
generators walk the result in order; nothing here depends on the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monograph.errors import InferError
from monograph.ir import Value
from monograph.ops.pad_tile import Tile
from monograph.ops.quant import Dequantize, Quantize
from monograph.ops.shape import Broadcast, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.ops.signal import Frames
from monograph.program.index import Index, counter, flatten, strides_of, unflatten

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
    return tuple(Index() if d == 1 else i for d, i in zip(shape, own, strict=True))


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
