"""Work that data decide: what a graph of launches can hold only if it looks at conditions."""

from __future__ import annotations

from monograph.codegen.triton.module.kernel import Branch, RepeatWork, Work

UNROLLED = 1000
"""Pieces of work that a loop of known length may become."""


def is_unrolled(count: int | None, body: int) -> bool:
    """Whether a loop is recorded turn by turn: it is known how many there are, and not too many.

    body: the pieces of work in a turn.
    """
    return count is not None and count * body <= UNROLLED


def needs_conditions(work: Work) -> bool:
    """Whether only a graph that looks at conditions by itself can hold some work."""
    if isinstance(work, Branch):
        return True
    if not isinstance(work, RepeatWork):
        return False
    (body,) = work.bodies
    return not is_unrolled(work.count, len(body)) or any(map(needs_conditions, body))
