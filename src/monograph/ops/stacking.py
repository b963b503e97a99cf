"""Collects what each iteration of a loop gives into one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from monograph.errors import ExecutionError
from monograph.ir import Array, Type
from monograph.ops.base import as_tensor, check_allocation
from monograph.ops.subgraph import bind_symbols


class Stack:
    """Elements of one shape, collected in one array that doubles when it is full."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.count = 0
        self.empty_shape = shape
        self.dtype = dtype
        self.buffer: Array | None = None

    def push(self, x: Array) -> None:
        if self.buffer is None:
            self.buffer = np.empty((1, *x.shape), self.dtype)
        if x.shape != self.buffer.shape[1:]:
            raise ExecutionError(
                "the elements of a collected result differ in shape",
                expected=[*self.buffer.shape[1:]],
                given=[*x.shape],
            )
        if self.count == len(self.buffer):
            check_allocation((2 * self.count, *x.shape), self.dtype)
            grown = np.empty((2 * self.count, *x.shape), self.dtype)
            grown[: self.count] = self.buffer
            self.buffer = grown
        self.buffer[self.count] = x
        self.count += 1

    def result(self) -> Array:
        if self.buffer is None:
            return np.empty((0, *self.empty_shape), self.dtype)
        return self.buffer[: self.count]


def stacks_for(
    elements: Sequence[Type], formals: Sequence[Type], shapes: Sequence[tuple[int, ...] | None]
) -> list[Stack]:
    """Return a collector for each result of a loop whose body takes data of these shapes."""
    sizes = bind_symbols(formals, shapes)
    made = []
    for t in map(as_tensor, elements):
        dims = (d if isinstance(d, int) else sizes.get(d, 0) for d in t.shape or ())
        made.append(Stack(t.dtype.numpy, tuple(dims)))
    return made
