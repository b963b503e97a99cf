"""Samples of ops with dimensions of one element, which are read through views that add them.

A view leaves no trace of such a dimension in where an element lies: places become plain numbers,
blocks single values, and edges have to be minded by other means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from monograph.errors import MonographError
from monograph.ir import Array, Graph, Input, TensorType, Value, evaluate, unpack
from monograph.ir.dtype import bf16, f16, f32, f64
from monograph.ops import OPS
from monograph.ops.elementwise import Neg
from monograph.ops.shape import Reshape, Unsqueeze
from monograph.program.fusion.op_classes import is_native
from monograph.program.legalise.lower_random import random_ops
from tests.cpu.against import feeds_for
from tests.cpu.sweep_cases import Case
from tests.samples import sample_graph

Shapes = list[tuple[int, ...]]


def cases() -> Iterator[Case]:
    """Every native sample that still means something when its operands have shrunk."""
    for op in OPS.values():
        for number, sample in enumerate(op.samples):
            graph = sample_graph(op, sample)[0]
            root = next(v for v in graph.values if type(v.op) is op)
            if not all(map(is_native, graph.values)) or random_ops(graph):
                continue
            for name, shapes in _shrunk([v.tensor.static for v in root.inputs]).items():
                made = _read_through_views(root, shapes)
                feeds = None if made is None else _feeds(made)
                if made is not None and feeds is not None:
                    yield Case(f"{op.name} {number}, {name}", made, feeds)


def _shrunk(shapes: Sequence[tuple[int, ...]]) -> dict[str, Shapes]:
    """Single elements; single rows and columns; images of a single pixel."""
    found: dict[str, Shapes] = {
        "elements": [(1,) * len(s) for s in shapes],
        "columns": [(*s[:-1], 1) if s else s for s in shapes],
        "rows": [(*(1 for _ in s[:-1]), s[-1]) if s else s for s in shapes],
        "pixels": [(*s[:2], *(1 for _ in s[2:])) for s in shapes],
    }
    return {n: s for i, (n, s) in enumerate(found.items()) if s not in list(found.values())[:i]}


def _read_through_views(root: Value, shapes: Shapes) -> Graph | None:
    """The op on operands of these shapes; None where it refuses them."""
    caches = getattr(root.op, "updates", {}).values()  # they are no views: rows are written there
    operands = [
        Input(f"x{i}", TensorType(v.dtype, s))() if i in caches else _view(f"x{i}", v, s)
        for i, (v, s) in enumerate(zip(root.inputs, shapes, strict=True))
    ]
    inputs = tuple(x.inputs[0] if x.inputs else x for x in operands)
    try:
        value = root.op(*operands)
    except MonographError:
        return None
    results = unpack(value) if hasattr(value.type, "items") else (value,)
    finished = [Neg()(r) if r.dtype in (f16, bf16, f32, f64) else r for r in results]
    graph = Graph(inputs, tuple((f"y{i}", r) for i, r in enumerate(finished)))
    return graph if all(map(is_native, graph.values)) else None


def _view(name: str, like: Value, shape: tuple[int, ...]) -> Value:
    """Of a single element a reshape, else a view that adds the dimensions of one element."""
    added = tuple(i for i, d in enumerate(shape) if d == 1)
    if len(added) == len(shape):
        return Reshape(shape)(Input(name, TensorType(like.dtype, (*shape, 1)))())
    rest = Input(name, TensorType(like.dtype, tuple(d for d in shape if d != 1)))()
    return Unsqueeze(added)(rest) if added else rest


def _feeds(graph: Graph) -> dict[str, Array] | None:
    """Numbers that the reference takes: counts and indices are ones if they may be, or zeros."""
    for most in (1, 0):
        found = feeds_for(graph)
        for name, data in found.items():
            if data.dtype.kind == "i" and data.dtype.itemsize >= 4:
                found[name] = np.minimum(np.abs(data), most)
        try:
            with np.errstate(all="ignore"):
                evaluate(graph, found)
        except MonographError:
            continue
        return found
    return None
