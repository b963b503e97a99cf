"""Folding during import: small constant expressions, and arithmetic on known dimensions.

Nodes compute shapes that decide what later nodes become, so this cannot wait for a pass. The
memory budget of all tensors of a model limits what is folded.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from monograph.errors import ModelError, MonographError
from monograph.frontend.onnx.size_search import known_sizes
from monograph.ir import (
    Array,
    Constant,
    Graph,
    TensorType,
    TupleType,
    Type,
    Value,
    constant,
    evaluate,
    known,
    subgraphs,
)
from monograph.ir.dtype import i64
from monograph.ir.memory import lend, machine_memory, text_lengths
from monograph.ir.sizes import any_open
from monograph.ops.quant import Dequantize

FOLD_BYTES = 1 << 16
"""The largest constant expression folded during import, in bytes."""
FOLD_VALUES = 256
"""The most values of such an expression."""
FOLD_WORK = 1 << 28
"""The limit of all folding in one import: the bytes of all computed values."""
VALUE_WORK = 256
"""The overhead counted for each computed value."""
_budget: ContextVar[list[int] | None] = ContextVar("fold_budget", default=None)
_kept: WeakSet[Value] = WeakSet()
"""Constant expressions that are too large or fail; expressions that contain them do too."""


def fold(value: Value) -> Value:
    """Fold a small constant expression; return any other value as it is."""
    if isinstance(value.op, Constant):
        return value
    if not value.closed:
        return _fold_sizes(value)
    if not isinstance(value.type, TensorType):
        return value
    work = _work(value)
    if work is None or _is_quantised_weight(value):
        _kept.add(value)
        return value
    if not _afford(work):
        return value
    try:
        with lend(FOLD_BYTES):
            (data,) = evaluate(Graph((), (("", value),)), {})
    except MonographError:
        # The expression fails on its data. It may never run, so it stays.
        _kept.add(value)
        return value
    if data.dtype == object and text_lengths(data).sum() > FOLD_BYTES:
        _kept.add(value)
        return value
    return constant(data)


def weight_data(value: Value | None) -> Array | None:
    """Return the data of a weight that is constant or computed from constants; None otherwise.

    Converters that repack a weight need its data, whatever its size. Each intermediate value may be
    no larger than the constants it comes from, and loops are not run.
    """
    data = known(value)
    if data is not None or value is None or not value.closed:
        return data
    graph = Graph((), (("", value),))
    if any(v.op.costly or subgraphs(v.op) for v in graph.values):
        return None
    given = sum(_type_bytes(v.type) for v in graph.values if isinstance(v.op, Constant))
    try:
        with lend(max(given, FOLD_BYTES)):
            (computed,) = evaluate(graph, {})
    except MonographError:
        return None
    return np.asarray(computed)


def _is_quantised_weight(value: Value) -> bool:
    """Return True for a quantised matrix or kernel: passes decide whether to dequantise it."""
    return isinstance(value.op, Dequantize) and value.type.rank > 1  # type: ignore[union-attr]


@contextmanager
def fold_budget(work: int = FOLD_WORK) -> Iterator[None]:
    """Limit the work of all folding inside the context; beyond it expressions are not folded."""
    token = _budget.set([work])
    try:
        yield
    finally:
        _budget.reset(token)


def _afford(work: int) -> bool:
    """Spend this much of the budget; return False if too little is left."""
    budget = _budget.get()
    if budget is None:
        return True
    if work > budget[0]:
        return False
    budget[0] -= work
    return True


def _fold_sizes(value: Value) -> Value:
    """Fold a computation on shapes that uses known dimensions only."""
    sizes = known_sizes(value)
    if sizes is None or not all(isinstance(d, int) for d in sizes):
        return value
    if any_open(sizes) and value.dtype != i64:
        return value
    return constant(np.array(sizes).reshape(value.tensor.static), value.dtype)


def _work(value: Value) -> int | None:
    """Return the work to compute a value; None unless it is few small values without loops."""
    seen: set[Value] = set()
    stack = [value]
    total = 0
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        total += _least_bytes(v)
        if total > FOLD_BYTES or len(seen) > FOLD_VALUES:
            return None
        if v in _kept or v.op.costly or subgraphs(v.op):
            return None
        stack.extend(v.inputs)
    return total + VALUE_WORK * len(seen)


def _least_bytes(value: Value) -> int:
    """Return the least bytes of a value, from its known sizes."""
    nbytes = _type_bytes(value.type)
    if isinstance(value.op, Constant) and value.dtype.is_string and nbytes <= FOLD_BYTES:
        return nbytes + int(text_lengths(value.op.value.array).sum())
    return nbytes


def _type_bytes(type_: Type) -> int:
    if isinstance(type_, TupleType):
        return sum(map(_type_bytes, type_.items))
    return type_.nbytes if isinstance(type_, TensorType) and type_.is_static else 64


SPARSE_FREE = 1 << 24
"""The size that a sparse tensor may always have, in bytes."""
SPARSE_FACTOR = 1000
"""The largest ratio of a sparse tensor's size, beyond that, to its stored elements."""
FILE_FACTOR = 4
"""The most times that a file of external data may be read; tensors that share bytes count once."""

Region = tuple[int, int, int, int]
"""Device and inode of a file, offset and length in it."""


@dataclass
class Account:
    """The memory read so far."""

    limit: int = field(default_factory=lambda: machine_memory())
    taken: int = 0
    _read: Counter[tuple[int, int]] = field(default_factory=Counter)
    _regions: WeakValueDictionary[Region, Array] = field(default_factory=WeakValueDictionary)

    def branch(self) -> Account:
        """Return a copy of the account, for one of several imports."""
        return Account(self.limit, self.taken, self._read.copy(), self._regions)

    def take(self, nbytes: int, label: str) -> None:
        """Count bytes before they are allocated."""
        self.taken += nbytes
        if self.taken > self.limit:
            raise ModelError(
                f"the tensors of the model are too large together, up to {label}",
                expected=f"at most {self.limit:,} bytes",
                given=f"{self.taken:,} bytes",
            )

    def take_sparse(self, nbytes: int, stored: int, label: str) -> None:
        """Count a sparse tensor of `nbytes`, of which `stored` are in the file."""
        most = SPARSE_FREE + SPARSE_FACTOR * stored
        if nbytes > most:
            raise ModelError(
                f"{label} is too large for the few elements that it stores",
                expected=f"at most {most:,} bytes",
                given=f"{nbytes:,} bytes",
            )
        self.take(nbytes, label)

    def known(self, handle: int, offset: int, nbytes: int) -> Array | None:
        """Return bytes of a file if they were read before and are still in use."""
        return self._regions.get(_region(handle, offset, nbytes))

    def take_file(self, handle: int, nbytes: int, label: str) -> None:
        """Count bytes before they are read from a file."""
        status = os.fstat(handle)
        key = (status.st_dev, status.st_ino)
        self._read[key] += nbytes
        if self._read[key] > FILE_FACTOR * status.st_size:
            raise ModelError(
                f"the tensors of the model read the same external data too often, up to {label}",
                expected=f"at most {FILE_FACTOR} times its {status.st_size:,} bytes",
                given=f"{self._read[key]:,} bytes",
            )
        self.take(nbytes, label)

    def keep(self, handle: int, offset: int, nbytes: int, data: Array) -> None:
        """Remember the data for as long as something uses it."""
        self._regions[_region(handle, offset, nbytes)] = data


def _region(handle: int, offset: int, nbytes: int) -> Region:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino, offset, nbytes
