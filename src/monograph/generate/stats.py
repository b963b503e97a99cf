"""Statistics of generation: sums over sessions, and the least bytes that a decoding step reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from monograph.generate.discover.decoder import Cache

_LARGEST = {
    "launches_per_run", "kernels_per_run", "threads", "streams",
    "peak_bytes", "constant_bytes", "device_bytes",
}  # fmt: skip
"""Numbers of one run or moment: the largest counts, while others are added."""


@dataclass
class Timing:
    """The work so far, and its time."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    prefill_runs: int = 0
    decode_seconds: float = 0.0
    decode_runs: int = 0
    """Steps, including those of loops."""
    decode_launches: int = 0


def add_up(stats: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add the stats of sessions: counts are sums, reasons are merged."""
    total: dict[str, Any] = {}
    for one in stats:
        for name, value in one.items():
            total[name] = _both(name, total[name], value) if name in total else value
    return total


def _both(name: str, a: Any, b: Any) -> Any:
    if isinstance(a, dict):
        return {k: _sum(a[k], b[k]) if k in a and k in b else (a | b)[k] for k in a | b}
    if isinstance(a, list):
        if any(isinstance(x, dict) for x in (*a, *b)):
            return [*a, *b]
        return sorted({*a, *b})
    return max(a, b) if name in _LARGEST else _sum(a, b)


def _sum(a: Any, b: Any) -> Any:
    """Add counts; of names and reasons the later one stays."""
    return a + b if isinstance(a, int) and isinstance(b, int) else b


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
