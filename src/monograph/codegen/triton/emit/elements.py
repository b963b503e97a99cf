"""Emits fused pointwise work: loads through views, the ops, stores, on blocks of elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monograph.codegen.common.scalars import Walk
from monograph.codegen.triton.emit.scalar import TritonScalars
from monograph.codegen.triton.emit.writer import Writer
from monograph.ir import DType, Value, known
from monograph.ir.dtype import i64
from monograph.ir.sizes import is_open
from monograph.ops.scalar import Scalar
from monograph.program.fusion.index_bounds import inside, substitute
from monograph.program.fusion.op_classes import is_view
from monograph.program.fusion.region import Element, Indices, through_view
from monograph.program.index import Atom, Counter, Index, Quotient, Remainder, flatten
from monograph.program.memory.buffer_assignment import Storage, described

INT32_MOST = (1 << 31) - 1


@dataclass(frozen=True)
class BlockAxis:
    """A counter as a block of numbers: an expression, and the mask of its extent."""

    text: str
    mask: str | None = None
    joint: bool = False
    """True if the mask is that of all counters together, and may be a larger block than this."""


Point = Mapping[Counter, BlockAxis]
"""The point of a loop nest at which a block of elements is: the numbers of each counter."""


@dataclass
class TritonElements(Walk[Point]):
    """Emits elements of a region's values at points; a value's pointer is at its first element."""

    w: Writer
    storage: Mapping[Value, Storage]
    pointers: Mapping[Value, str]
    inputs: frozenset[Value]
    given: dict[Value, Scalar] = field(default_factory=dict)
    guard: Callable[[str, str], None] | None = None
    """Reports an address outside of its buffer where a condition holds."""
    narrowed: dict[Counter, Index] = field(default_factory=dict)
    """Replacements of counters in loads, if masks leave some of their numbers out."""
    ground: BlockAxis | None = None
    """The numbers of the blocks themselves, for results without counters."""
    scalars: TritonScalars = field(init=False)

    def __post_init__(self) -> None:
        self.scalars = TritonScalars(self.w)

    def element(self, value: Value, at: Indices, point: Point) -> Scalar:
        """Return a value's element at an index, computed from what is in memory."""
        return self.emit(self.plan((value,), at), point)[Element(value, at)]

    def load(self, value: Value, at: Indices, point: Point) -> Scalar:
        """An element from memory, or a literal."""
        data = known(value)
        if data is not None and data.size == 1:
            return self._only(data.reshape(-1)[0], value.dtype)
        return self.scalars.decoded(self.loaded(value, at, point), value.dtype)

    def _only(self, number: Any, dtype: DType) -> Scalar:
        """The only element of a constant: a literal, or an open size."""
        return self.scalars.literal(number if is_open(number) else number.item(), dtype)

    def loaded(self, value: Value, at: Indices, point: Point) -> str:
        """Load elements in their memory form, 0 outside of the masks."""
        position = flatten(at, self.storage[value].strides)
        mask = self.mask(position, point)
        number = self.integer(position, point)
        joint = {c for c, axis in point.items() if axis.joint}
        if mask and joint & position.counters and not joint <= position.counters:
            # A view has fewer counters than the mask: pointers need the mask's shape.
            number = self.w.let(f"({mask}).to(tl.int32) * 0 + {number}", "i")
        mask = self._guarded(value, substitute(position, self.narrowed), number, mask)
        where = f"{self.pointers[value]} + {number}"
        text = f"tl.load({where}, mask={mask}, other=0)" if mask else f"tl.load({where})"
        return self.w.let(text, "x")

    def through_views(self, value: Value, at: Indices, point: Point) -> str:
        """Return elements in their memory form: of a stored value, a view, an expression.

        Outside of the masks they are 0 too, including masks of counters that a view drops: a
        dimension of one element, which a reshape adds or removes, may have edges.
        """
        element, masks = Element(value, at), self._masks(at, point)
        while element.value not in self.pointers and is_view(element.value):
            element = through_view(element.value, element.at)
        if element.value in self.pointers:
            made = self.loaded(element.value, element.at, point)
            position = flatten(element.at, self.storage[element.value].strides)
            masks -= self._masks((position,), point)
        else:
            made = self.scalars.encoded(self.element(element.value, element.at, point))
        if not masks:
            return self.w.let(made)
        inside = " & ".join(sorted(masks))
        return self.w.let(f"tl.where({inside}, {made}, tl.zeros_like({made}))")

    def _masks(self, at: Indices, point: Point) -> set[str]:
        found = {point[c].mask for index in at for c in index.counters}
        return {m for m in found if m is not None}

    def store(self, value: Value, at: Indices, scalar: Scalar, point: Point) -> None:
        """Store elements."""
        place = self.storage[value]
        position = flatten(at, place.strides)
        mask = self.mask(position, point)
        number = self.integer(position, point)
        if not position.counters and self.ground is not None:
            # One address for a whole block: its pointers need the block's shape, and one may write.
            number = self.w.let(f"({self.ground.text}) * 0 + {number}", "i")
            mask = self.ground.mask
        mask = self._guarded(value, position, number, mask)
        where = f"{self.pointers[value]} + {number}"
        masked = f", mask={mask}" if mask else ""
        self.w.line(f"tl.store({where}, {self.scalars.encoded(scalar)}{masked})")

    def _guarded(self, value: Value, position: Index, number: str, mask: str | None) -> str | None:
        """Return the mask of an access, without addresses outside of the buffer unless proven."""
        place = self.storage[value]
        extent = math.prod(place.buffer.padded)
        if inside(position + place.offset, extent, described(place.buffer)):
            return mask
        assert self.guard is not None
        low, high = -place.offset, extent - place.offset
        wrong = self.w.let(f"({number} < {low}) | ({number} >= {high})", "m")
        if mask:
            wrong = self.w.let(f"({wrong}) & ({mask})", "m")
        self.guard(wrong, number)
        within = f"({number} >= {low}) & ({number} < {high})"
        return self.w.let(f"{within} & ({mask})" if mask else within, "m")

    def mask(self, position: Index, point: Point) -> str | None:
        """Return the mask of all counters that a position depends on."""
        used = (point[c].mask for c in sorted(position.counters, key=lambda c: c.name))
        masks = list(dict.fromkeys(m for m in used if m is not None))
        return self.w.let(" & ".join(masks), "m") if masks else None

    def count(self, index: Index, point: Point) -> Scalar:
        """An index as numbers, i64."""
        if not index.terms:
            return self.scalars.literal(index.constant, i64)
        return self.scalars.decoded(f"({self.integer(index, point)}).to(tl.int64)", i64)

    def integer(self, index: Index, point: Point) -> str:
        """Return an index as an expression, in 64 bits if 32 are too few."""
        low, high = index.bounds()
        wide = high > INT32_MOST or low < -INT32_MOST
        parts = [self._term(atom, factor, point, wide) for atom, factor in index.terms]
        if index.constant or not parts:
            parts.append(str(index.constant))
        return self.w.let(" + ".join(parts), "i") if index.terms else parts[0]

    def _term(self, atom: Atom, factor: int, point: Point, wide: bool) -> str:
        if isinstance(atom, Counter):
            text = point[atom].text
        elif isinstance(atom, Quotient):
            text = self.w.let(f"({self.integer(atom.index, point)}) // {atom.by}", "q")
        else:
            assert isinstance(atom, Remainder)
            text = self.w.let(f"({self.integer(atom.index, point)}) % {atom.by}", "r")
        if wide:
            text = f"({text}).to(tl.int64)"
        return text if factor == 1 else f"({text}) * {factor}"
