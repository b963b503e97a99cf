"""Fusion of a product of one column into the product before it.

A layer with one result per row (a score, a value) is too little work for a kernel: it takes as long
as a launch. Its operand is in the registers of the kernel before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from monograph.ir import Graph, Value
from monograph.ir.dtype import bf16, f16, f32
from monograph.ops.linear import Dot
from monograph.program.fusion.op_classes import is_kernel
from monograph.program.fusion.region import Region

TYPES = (bf16, f16, f32)
MOST = 1 << 20
"""The most elements of the first product's result: an H200 writes and reads them in the time of a
launch. For more elements, separate kernels (also library calls) are tuned instead.
"""


def merge_narrow(graph: Graph, regions: Sequence[Region]) -> list[Region]:
    """Fuse each product of one column with the product whose result it reads."""
    readers: dict[Value, list[Region]] = {}
    for region in regions:
        for value in region.inputs:
            readers.setdefault(value, []).append(region)
    outputs = {v for _, v in graph.outputs}
    merged: dict[Region, Region] = {}
    for before in regions:
        users = readers.get(before.root, [])
        if len(users) == 1 and before.root not in outputs and _follows(before, users[0]):
            merged[users[0]] = before
    gone = set(merged.values()) - set(merged)
    return [
        _joined(merged[r], r) if r in merged and merged[r] in gone else r
        for r in regions
        if r not in gone
    ]


def inner_product(region: Region) -> Value | None:
    """Return the product inside a region that its anchor, a product of one column, reads."""
    anchor = region.anchor
    if anchor is None or not isinstance(anchor.op, Dot) or anchor.tensor.static[-1] != 1:
        return None
    before = region.body[: region.body.index(anchor)]
    own = anchor.inputs[0]
    if own not in before:
        return None
    return next((v for v in before if _is_product(v) and v.tensor.shape == own.tensor.shape), None)


def _follows(before: Region, after: Region) -> bool:
    """Return True if a region only multiplies the rows of another's result by one column."""
    first, second, own = before.anchor, after.anchor, before.root
    if first is None or second is None or not _is_product(first) or not _is_product(second):
        return False
    if inner_product(before) is not None or len(before.outputs) + len(after.outputs) != 2:
        return False
    if second.inputs[0] is not own or sum(own in v.inputs for v in after.body) != 1:
        return False
    # One product of plain weights, whose result is finished element by element.
    if sum(map(is_kernel, before.body)) != 1 or own.tensor.shape != first.tensor.shape:
        return False
    if first.inputs[1] not in before.inputs:
        return False
    size, rows = own.tensor.static, second.tensor.static
    if own is second.inputs[1] or not 0 < own.tensor.size <= MOST:
        return False
    return rows == (*size[:-1], 1)


def _is_product(value: Value) -> bool:
    return isinstance(value.op, Dot) and value.dtype in TYPES


def _joined(before: Region, after: Region) -> Region:
    inputs = dict.fromkeys((*before.inputs, *after.inputs))
    del inputs[before.root]
    body = dict.fromkeys((*before.body, *after.body))
    return Region(after.outputs, tuple(inputs), tuple(body), after.anchor)
