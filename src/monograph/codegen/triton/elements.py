"""Emits fused work on elements: loads through views, the ops, stores, as blocks of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monograph.codegen.triton.scalar import TritonScalars
from monograph.codegen.triton.writer import Writer
from monograph.codegen.walk import Walk
from monograph.ir import Value, known
from monograph.ops.scalar import Scalar
from monograph.program.access import Element, Indices, through_view
from monograph.program.index import Atom, Counter, Index, Quotient, Remainder, flatten
from monograph.program.kinds import is_view
from monograph.program.place import Storage

INT32_MOST = (1 << 31) - 1


@dataclass(frozen=True)
class Axis:
    """A counter as a block of numbers: an expression, and where it is within its extent."""

    text: str
    mask: str | None = None


Point = Mapping[Counter, Axis]
"""Where in a loop nest a block of elements is: the numbers of each counter."""


@dataclass
class Elements(Walk[Point]):
    """Emits elements of a region's values at points; a pointer of a value starts at its offset."""

    w: Writer
    storage: Mapping[Value, Storage]
    pointers: Mapping[Value, str]
    inputs: frozenset[Value]
    given: dict[Value, Scalar] = field(default_factory=dict)
    scalars: TritonScalars = field(init=False)

    def __post_init__(self) -> None:
        self.scalars = TritonScalars(self.w)

    def element(self, value: Value, at: Indices, point: Point) -> Scalar:
        """One value's element at an index, computed through whatever leads to memory."""
        return self.emit(self.plan((value,), at), point)[Element(value, at)]

    def load(self, value: Value, at: Indices, point: Point) -> Scalar:
        """An element from memory, or a literal."""
        data = known(value)
        if data is not None and data.size == 1:
            return self.scalars.literal(data.reshape(-1)[0].item(), value.dtype)
        return self.scalars.decoded(self.loaded(value, at, point), value.dtype)

    def loaded(self, value: Value, at: Indices, point: Point) -> str:
        """Elements as they are in memory, 0 beyond the masks."""
        position = flatten(at, self.storage[value].strides)
        mask = self.mask(position, point)
        where = f"{self.pointers[value]} + {self.integer(position, point)}"
        text = f"tl.load({where}, mask={mask}, other=0)" if mask else f"tl.load({where})"
        return self.w.let(text, "x")

    def through_views(self, value: Value, at: Indices, point: Point) -> str:
        """Elements as they are, or would be, in memory: of a stored value, a view, an expression.

        Beyond the masks those of an expression are 0 too.
        """
        element = Element(value, at)
        while element.value not in self.pointers:
            if not is_view(element.value):
                return self._computed(element, point)
            element = through_view(element.value, element.at)
        return self.loaded(element.value, element.at, point)

    def _computed(self, element: Element, point: Point) -> str:
        made = self.scalars.encoded(self.element(element.value, element.at, point))
        masks = {point[c].mask for i in element.at for c in i.counters} - {None}
        if not masks:
            return self.w.let(made)
        inside = " & ".join(sorted(m for m in masks if m))
        return self.w.let(f"tl.where({inside}, {made}, tl.zeros_like({made}))")

    def store(self, value: Value, at: Indices, scalar: Scalar, point: Point) -> None:
        """Puts elements into memory."""
        place = self.storage[value]
        position = flatten(at, place.strides)
        mask = self.mask(position, point)
        where = f"{self.pointers[value]} + {self.integer(position, point)}"
        masked = f", mask={mask}" if mask else ""
        self.w.line(f"tl.store({where}, {self.scalars.encoded(scalar)}{masked})")

    def mask(self, position: Index, point: Point) -> str | None:
        """Where every counter that a position depends on is within its extent."""
        used = (point[c].mask for c in sorted(position.counters, key=lambda c: c.name))
        masks = list(dict.fromkeys(m for m in used if m is not None))
        return self.w.let(" & ".join(masks), "m") if masks else None

    def integer(self, index: Index, point: Point) -> str:
        """An index as an expression, in 64 bits where 32 are too few."""
        wide = max(map(abs, index.bounds())) > INT32_MOST
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
