"""Regions: the values that one kernel computes."""

from __future__ import annotations

from dataclasses import dataclass

from monograph.ir import Op, Value


@dataclass(frozen=True, eq=False)
class Region:
    """One kernel's work.

    `body` holds everything that is computed inside, in order: views, work on single elements, the
    anchor. Only `outputs` are stored; `inputs` are read from memory. Without an anchor the region
    is a loop over elements.
    """

    outputs: tuple[Value, ...]
    inputs: tuple[Value, ...]
    body: tuple[Value, ...]
    anchor: Value | None = None

    @property
    def kind(self) -> str:
        if self.anchor is None:
            return "pointwise"
        # The compiled form of an op goes by that op's name.
        inner = getattr(self.anchor.op, "of", None)
        return inner.name if isinstance(inner, Op) else self.anchor.op.name

    @property
    def root(self) -> Value:
        """What the region is named after: its last result."""
        return self.outputs[-1]

    @property
    def epilogue(self) -> tuple[Value, ...]:
        """What is computed from the anchor's result before it is stored."""
        if self.anchor is None:
            return ()
        at = self.body.index(self.anchor)
        return self.body[at + 1 :]

    def inputs_besides(self, operand: int) -> tuple[Value, ...]:
        """The inputs without the one that serves only as this operand of the anchor.

        A kernel that packs constant weights reads them from memory no more, unless what follows
        it, or its other operand, is the same constant.
        """
        assert self.anchor is not None
        others = [v for i, v in enumerate(self.anchor.inputs) if i != operand]
        read = {*others, *self.outputs}
        read.update(v for user in self.body if user is not self.anchor for v in user.inputs)
        only = self.anchor.inputs[operand]
        return tuple(v for v in self.inputs if v is not only or v in read)
