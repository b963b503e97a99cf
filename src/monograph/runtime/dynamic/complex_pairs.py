"""Programs on complex numbers: they run on pairs of real ones, views of the same memory."""

from __future__ import annotations

import numpy as np

from monograph.ir import Array, DType, Graph, TensorType, Type
from monograph.ir.dtype import COMPLEX
from monograph.program.legalise.lower_complex import real_of
from monograph.runtime.executable import Executable, Feeds, Outputs, WrappedExecutable
from monograph.runtime.outputs import NOTHING, deliver


class ComplexExecutable(WrappedExecutable):
    """An executable for the pairs, run on complex inputs and outputs."""

    def __init__(self, graph: Graph, inner: Executable) -> None:
        super().__init__(inner)
        self._names = [name for name, _ in graph.outputs]
        self._given = {
            n: v.dtype
            for n, v in zip(graph.input_names, graph.inputs, strict=True)
            if _complex(v.type)
        }
        self._made = {n: v.dtype for n, v in graph.outputs if _complex(v.type)}

    def __repr__(self) -> str:
        return f"ComplexExecutable({self.inner!r})"

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        parts = {n: _parts(x, self._given[n]) if n in self._given else x for n, x in feeds.items()}
        results = zip(self._names, self.inner.run(parts), strict=True)
        whole = [_whole(x, self._made[n]) if n in self._made else x for n, x in results]
        return deliver(self._names, whole, out)

    def artefact(self) -> None:
        """Return None: its inputs are not those of the model."""


def _complex(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.kind == COMPLEX


def _parts(data: Array, dtype: DType) -> Array:
    plain = np.ascontiguousarray(data, dtype.numpy)
    return plain.reshape(-1).view(real_of(dtype).numpy).reshape(*data.shape, 2)


def _whole(data: Array, dtype: DType) -> Array:
    return np.ascontiguousarray(data).reshape(-1).view(dtype.numpy).reshape(data.shape[:-1])
