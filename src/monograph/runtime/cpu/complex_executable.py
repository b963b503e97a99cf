"""A program on the parts of complex numbers, run on complex arrays: the same memory seen anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from monograph.ir import Array, DType, Graph, TensorType
from monograph.ir.dtype import COMPLEX
from monograph.program.legalise.lower_complex import real_of
from monograph.runtime.outputs import NOTHING, deliver


class PartedExecutable:
    """What was compiled for the parts, for all that is asked of it but its runs."""

    def __init__(self, graph: Graph, inner: Any) -> None:
        self.inner = inner
        self._names = [name for name, _ in graph.outputs]
        self._given = {
            n: v.dtype
            for n, v in zip(graph.input_names, graph.inputs, strict=True)
            if _complex(v.type)
        }
        self._made = {n: v.dtype for n, v in graph.outputs if _complex(v.type)}

    def __repr__(self) -> str:
        return f"PartedExecutable({self.inner!r})"

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def run(self, feeds: Mapping[str, Any], out: Mapping[str, Array] = NOTHING) -> list[Any]:
        """The outputs for some inputs, as fresh arrays or in those given by name in `out`."""
        parts = {n: _parts(x, self._given[n]) if n in self._given else x for n, x in feeds.items()}
        results = zip(self._names, self.inner.run(parts), strict=True)
        whole = [_whole(x, self._made[n]) if n in self._made else x for n, x in results]
        return deliver(self._names, whole, out)

    def artefact(self) -> None:
        """Nothing that can be kept on disk: its inputs are not those of the model."""


def _complex(type_: Any) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.kind == COMPLEX


def _parts(data: Array, dtype: DType) -> Array:
    plain = np.ascontiguousarray(data, dtype.numpy)
    return plain.reshape(-1).view(real_of(dtype).numpy).reshape(*data.shape, 2)


def _whole(data: Array, dtype: DType) -> Array:
    return np.ascontiguousarray(data).reshape(-1).view(dtype.numpy).reshape(data.shape[:-1])
