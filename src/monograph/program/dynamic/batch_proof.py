"""The result of following a batch axis: it is kept on disk, and read without the compiler."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class BatchProof:
    """The batch axis of each input and output; or the node that mixes rows, and the reason."""

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    reason: str = ""
    """Empty if the model has a batch axis."""
    node: str = ""

    @property
    def holds(self) -> bool:
        """True if rows are independent."""
        return not self.reason

    def __str__(self) -> str:
        """For example `x: axis 0 -> y: axis 0`, or the node and the reason."""
        if not self.holds:
            return f"{self.node}: {self.reason}" if self.node else self.reason
        sides = (self.inputs, self.outputs)
        return " -> ".join(", ".join(f"{n}: axis {a}" for n, a in s.items()) for s in sides)

    def to_json(self) -> str:
        """Return the text of which `from_json` makes the same proof."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> BatchProof | None:
        """Return the proof of a text; None if it is none, as of a file that was cut off."""
        try:
            found = BatchProof(**json.loads(text))
            axes = [*found.inputs.values(), *found.outputs.values()]
        except (ValueError, TypeError, AttributeError):
            return None
        sound = all(isinstance(x, str) for x in (found.reason, found.node))
        return found if sound and all(type(a) is int for a in axes) else None
