"""The least bytes that a decoding step reads, for comparison with measurements."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import helper

from monograph.generate.discover.decoder import Cache

_LOOKUPS = ("Gather", "GatherBlockQuantized", "GroupQueryAttention", "RotaryEmbedding")
"""Ops that read only some rows of their tables."""
_HALVES = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.FLOAT4E2M1)
"""Types with two elements per byte."""


def weight_bytes(model: onnx.ModelProto) -> int:
    """Return the bytes of the weights that a step reads whole, without lookup tables."""
    graph = model.graph
    read = {n for node in graph.node if node.op_type not in _LOOKUPS for n in node.input}
    own = [t for t in graph.initializer if t.name in read and not t.name.startswith("~")]
    return sum(map(_bytes, own))


def cache_row_bytes(caches: Iterable[Cache]) -> int:
    """Return the bytes of one position of the caches, for one sequence."""
    rows = sum(
        c.heads * c.size * np.dtype(helper.tensor_dtype_to_np_dtype(c.dtype)).itemsize
        for c in caches
    )
    return int(rows)


def _bytes(tensor: onnx.TensorProto) -> int:
    count = int(np.prod(tensor.dims, dtype=np.int64))
    if tensor.data_type in _HALVES:
        return (count + 1) // 2
    return count * int(np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize)
