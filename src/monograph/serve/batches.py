"""Batches: requests joined along the batch axis, and their answers as views of the outputs."""

from __future__ import annotations

import math
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from monograph.ir import Array
from monograph.serve.batch_limit import BatchLimit
from monograph.serve.tracing import RequestSpan

Arrays: TypeAlias = dict[str, Array]
Group: TypeAlias = tuple[Any, ...]
"""Requests with equal groups may share a batch."""
SHARED_BYTES = 256
"""The largest input without a batch axis that is compared between requests."""


@dataclass(frozen=True)
class BatchAxes:
    """The batch axis of each input and output; inputs without one are the same for all rows."""

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


class Answer(Protocol):
    """A place for the answer to a request, as a Future is; its event loop sets it."""

    def done(self) -> bool:
        """Return True if the answer is set, or if nobody waits for it any more."""

    def set_result(self, result: list[Array], /) -> None:
        """Set the outputs."""

    def set_exception(self, exception: Exception, /) -> None:
        """Set the reason why there are none."""


@dataclass(slots=True)
class Waiting:
    """A request in the queue of a model."""

    feeds: Arrays
    answer: Answer
    loop: AbstractEventLoop
    group: Group
    rows: int
    nbytes: int
    arrived: float
    deadline: float
    span: RequestSpan | None = None


def group_of(feeds: Arrays, axes: BatchAxes | None) -> tuple[Group, int]:
    """Return the group of a request and its rows; a request that joins no batch has no rows."""
    if axes is None:
        return tuple([x.shape for x in feeds.values()]), 0
    parts: list[Any] = []
    sizes = set()
    for name, x in feeds.items():
        axis = axes.inputs.get(name)
        if axis is not None:
            sizes.add(x.shape[axis])
            parts.append((name, x.shape[:axis], x.shape[axis + 1 :]))
        elif x.nbytes <= SHARED_BYTES and x.dtype.kind != "O":
            parts.append((name, x.shape, x.tobytes()))
        else:
            return tuple([x.shape for x in feeds.values()]), 0
    rows = sizes.pop() if len(sizes) == 1 else 0
    return tuple(parts), rows


@dataclass
class Buffers:
    """Memory for the inputs of batches, kept between runs by group and name."""

    axes: BatchAxes
    most: int
    kept: dict[tuple[Group, str], Array] = field(default_factory=dict)
    limit: int = 64
    """The most arrays that are kept."""

    def joined(self, batch: Sequence[Waiting], rows: int) -> Arrays:
        """Return the inputs of a batch; each request is copied once, to its place."""
        group = batch[0].group
        made: Arrays = {}
        for name, x in batch[0].feeds.items():
            axis = self.axes.inputs.get(name)
            if axis is None:
                made[name] = x
                continue
            room = self._room(group, name, x, axis, rows)
            at = 0
            lead = (slice(None),) * axis
            for request in batch:
                given = request.feeds[name]
                end = at + given.shape[axis]
                room[(*lead, slice(at, end))] = given
                at = end
            made[name] = room
        return made

    def _room(self, group: Group, name: str, like: Array, axis: int, rows: int) -> Array:
        """Return memory for an input of that many rows."""
        if axis or rows > self.most:
            return np.empty((*like.shape[:axis], rows, *like.shape[axis + 1 :]), like.dtype)
        room = self.kept.get((group, name))
        if room is None:
            if len(self.kept) >= self.limit:
                self.kept.pop(next(iter(self.kept)))
            room = np.empty((self.most, *like.shape[1:]), like.dtype)
            self.kept[group, name] = room
        return room[:rows]


def parted(
    batch: Sequence[Waiting], outputs: Sequence[Array], names: Sequence[str], axes: BatchAxes
) -> list[list[Array]]:
    """Return the outputs of each request as views."""
    found: list[list[Array]] = []
    at = 0
    for request in batch:
        end = at + request.rows
        found.append([
            x[(*(slice(None),) * axes.outputs[name], slice(at, end))]
            for name, x in zip(names, outputs, strict=True)
        ])  # fmt: skip
        at = end
    return found


def choose(queue: list[Waiting], limit: BatchLimit) -> list[Waiting]:
    """Take the requests of the next run from a queue: the oldest, and those that may join it."""
    first = queue[0]
    if not first.rows:
        return [queue.pop(0)]
    most = limit.rows(sum([w.rows for w in queue if w.group == first.group]))
    batch: list[Waiting] = []
    rest: list[Waiting] = []
    rows = 0
    for request in queue:
        joins = request.rows > 0 and request.group == first.group
        if joins and (not batch or rows + request.rows <= most):
            batch.append(request)
            rows += request.rows
        else:
            rest.append(request)
    queue[:] = rest
    return batch


def row_difference(
    run: Callable[[Arrays], list[Array]], feeds: Arrays, axes: BatchAxes, names: Sequence[str]
) -> float | None:
    """Return the largest relative difference of rows in a batch from the same rows alone.

    The rows are those of an example in another order, so that neighbours differ; None if it has
    a single row.
    """
    count = min((feeds[name].shape[axis] for name, axis in axes.inputs.items()), default=0)
    if count < 2:
        return None
    rolled = {
        name: np.ascontiguousarray(np.roll(x, 1, axes.inputs[name])) if name in axes.inputs else x
        for name, x in feeds.items()
    }
    whole = run(rolled)
    worst = 0.0
    for row in (0, count - 1):
        alone = run({
            name: np.ascontiguousarray(x.take([row], axes.inputs[name]))
            if name in axes.inputs else x
            for name, x in rolled.items()
        })  # fmt: skip
        for name, one, batch in zip(names, alone, whole, strict=True):
            given = batch.take([row], axes.outputs[name])
            worst = max(worst, _difference(one, given))
    return worst


def _difference(a: Array, b: Array) -> float:
    """Return the largest difference relative to the largest element; 0 for equal bits."""
    if a.dtype.kind == "O" or not a.size:
        return 0.0 if np.array_equal(a, b) else math.inf
    if a.tobytes() == np.ascontiguousarray(b).tobytes():
        return 0.0
    if a.dtype.kind in "biu":
        return math.inf
    wide = [x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (a, b)]
    finite = np.isfinite(wide[0])
    if not np.array_equal(finite, np.isfinite(wide[1])) or not finite.any():
        return math.inf
    one, other = (x[finite] for x in wide)
    return float(np.abs(one - other).max() / max(np.abs(one).max(), np.finfo(np.float32).tiny))
