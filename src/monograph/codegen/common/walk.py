"""The walk over a fused expression, shared by both code generators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from monograph.ir import Value
from monograph.ops.scalar import Indexed, Scalar, ScalarBuilder
from monograph.program.fusion.access import Element, Indices, Resolved, resolve
from monograph.program.fusion.op_classes import is_view
from monograph.program.index import Index, flatten, strides_of

P = TypeVar("P")
"""The position in a generator's loops, from which it computes addresses."""


class Walk(Generic[P]):
    """Emits elements of a region's values, operands first, each once."""

    scalars: ScalarBuilder
    inputs: frozenset[Value]
    given: dict[Value, Scalar]
    """Values that are in registers already, such as an anchor's result."""

    def plan(self, values: Sequence[Value], at: Indices) -> list[Resolved]:
        """Return the loads and ops that some values need at an index, in order."""
        wanted = [Element(v, at) for v in values]
        return resolve(wanted, lambda v: v in self.inputs or v in self.given, is_view)

    def emit(
        self, order: Iterable[Resolved], point: P, known: Mapping[Element, Scalar] | None = None
    ) -> dict[Element, Scalar]:
        """Compute resolved elements at a point, except those that are known."""
        made = dict(known or {})
        for item in order:
            if item.element not in made:
                made[item.element] = self._one(item, made, point)
        return made

    def _one(self, item: Resolved, made: dict[Element, Scalar], point: P) -> Scalar:
        value = item.element.value
        if value in self.given:
            return self.given[value]
        if not item.operands:
            return self.load(value, item.element.at, point)
        operands = [made[o] for o in item.operands]
        if is_view(value):
            return operands[0]
        if isinstance(value.op, Indexed):
            place = flatten(item.element.at, strides_of(value.tensor.static))
            operands.append(self.count(place, point))
        result: Scalar = value.op.scalar(self.scalars, *operands)
        return result

    @abstractmethod
    def count(self, index: Index, point: P) -> Scalar:
        """An index as a number, an i64."""

    @abstractmethod
    def load(self, value: Value, at: Indices, point: P) -> Scalar:
        """An element from memory, or a literal."""
