"""Work that depends on data: a graph can hold it only with conditional nodes."""

from __future__ import annotations

from monograph.codegen.triton.module.kernel import Branch, RepeatWork, Work

UNROLLED = 1000
"""The most pieces of work that a loop of known length may become."""


def is_unrolled(count: int | None, body: int) -> bool:
    """Return True if a loop is recorded iteration by iteration: a known and small number of them.

    body: the pieces of work of an iteration.
    """
    return count is not None and count * body <= UNROLLED


def needs_conditions(work: Work) -> bool:
    """Return True if only a graph with conditional nodes can hold some work."""
    if isinstance(work, Branch):
        return True
    if not isinstance(work, RepeatWork):
        return False
    (body,) = work.bodies
    return not is_unrolled(work.count, len(body)) or any(map(needs_conditions, body))
