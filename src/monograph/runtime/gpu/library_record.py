"""Launches of libraries: functions of torch on tensors in memory of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from monograph.ir import DType
from monograph.runtime.gpu.tensors import typed

TensorView: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]] | None"
"""The shape and the strides in which a library's function sees an argument; None for flat."""


class LibraryRecord:
    """A library's function and the tensors it works on."""

    empty = False

    def __init__(
        self,
        function: Callable[..., None],
        dtypes: Sequence[DType],
        views: Sequence[TensorView],
    ) -> None:
        self._function = function
        self._dtypes = dtypes
        self._views = views
        self._tensors: list[torch.Tensor | None] = [None] * len(dtypes)

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        """Set the address of an argument: an offset in bytes into some memory."""
        flat = typed(memory, offset, self._dtypes[position])
        view = self._views[position]
        self._tensors[position] = flat if view is None else flat.as_strided(*view)

    def launch(self, stream: int) -> None:
        """Call the function on the current stream."""
        self._function(*self._tensors)
