"""Sizes for open dimensions that nobody gave a size, such that the model takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from monograph.ir import OptionalType, SequenceType, TensorType, Type
from monograph.runtime.feeds import Port

TRIED_SIZES = (64, 224, 256, 16, 8, 4, 2)
"""The sizes that are tried, in order, for dimensions that cannot have the usual size."""
MOST_SINGLE = 8
"""The most open dimensions for which each one is changed by itself."""

Takes: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""Tells if a model takes the shapes of some feeds; their values do not matter."""


def assume_sizes(
    ports: Sequence[Port],
    feeds: Mapping[str, Any],
    known: Mapping[str, int],
    usual: int,
    takes: Takes | None,
) -> dict[str, int]:
    """Return sizes for the open dimensions that `known` does not name.

    They are the usual size if the model takes that. Else other sizes are tried: for one dimension,
    for all but the leading ones (mostly batches), for all. If the model takes none of them, they
    are the usual size: the run reports the rule it breaks.
    """
    names = [d for p in ports if p.name not in feeds for d in symbols_of(p.accepted)]
    open_dims = [name for name in dict.fromkeys(names) if name not in known]
    first = dict.fromkeys(open_dims, usual)
    if takes is None or not open_dims:
        return first
    for trial in _trials(open_dims, _leading(ports), usual):
        given = stand_ins(ports, feeds, {**known, **trial})
        if given is None:
            break
        if takes(given):
            return trial
    return first


def _trials(
    open_dims: Sequence[str], leading: frozenset[str], usual: int
) -> Iterator[dict[str, int]]:
    """Yield sets of sizes, each once."""
    every = dict.fromkeys(open_dims, usual)
    tried = [every]
    yield every
    single = [[name] for name in open_dims] if len(open_dims) <= MOST_SINGLE else []
    without_leading = [name for name in open_dims if name not in leading]
    for groups in (single, [without_leading], [open_dims]):
        for size in TRIED_SIZES:
            for changed in groups:
                trial = every | dict.fromkeys(changed, size)
                if trial not in tried:
                    tried.append(trial)
                    yield trial


def _leading(ports: Sequence[Port]) -> frozenset[str]:
    """Return the open dimensions that are the first of an input and never a later one."""
    shapes = [p.shape for p in ports if p.shape]
    later = {d for shape in shapes for d in shape[1:]}
    return frozenset(s[0] for s in shapes if isinstance(s[0], str) and s[0] not in later)


def stand_ins(
    ports: Sequence[Port], feeds: Mapping[str, Any], sizes: Mapping[str, int]
) -> dict[str, Any] | None:
    """Return the feeds, and zeros of the right shape for other inputs; None if a rank is open."""
    made = dict(feeds)
    for port in ports:
        if port.name in made:
            continue
        type_ = port.accepted
        if not isinstance(type_, TensorType) or type_.shape is None:
            return None
        shape = tuple(d if isinstance(d, int) else sizes[d] for d in type_.shape)
        # It takes no memory: only the shape matters.
        made[port.name] = np.broadcast_to(np.zeros((), type_.dtype.numpy), shape)
    return made


def symbols_of(type_: Type) -> list[str]:
    """Return the symbols among the dimensions of a tensor, or of the elements of a container."""
    while isinstance(type_, (OptionalType, SequenceType)):
        type_ = type_.element
    shape = type_.shape if isinstance(type_, TensorType) else None
    return [d for d in shape or () if isinstance(d, str)]
