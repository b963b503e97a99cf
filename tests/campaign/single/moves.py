"""Random single ops that move elements: views, joins, gathers and scatters, sorts."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.campaign.case import Node
from tests.campaign.draw import Draw, numpy_type

FAR = 2**40


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def reshape(d: Draw) -> Node:
    opset = d.opset("Reshape")
    x = d.array(d.type_of("Reshape", opset), d.shape())
    target = list(factors(d, x.size))
    for i in range(min(len(target), x.ndim)):
        if target[i] == x.shape[i] and d.chance(0.5):
            target[i] = 0
    attributes = {}
    if x.size and d.chance(0.5) and target:
        target[d.number(0, len(target) - 1)] = -1
    if opset >= 14 and 0 not in target and d.chance(0.2):
        attributes = {"allowzero": d.number(0, 1)}
    if x.size == 0 and opset >= 14:
        attributes, target = {"allowzero": 1}, [int(i) for i in d.generator.permutation(x.shape)]
    return Node("Reshape", [x, ints(*target)], attributes, opset=opset, maybe={1})


def factors(d: Draw, size: int) -> tuple[int, ...]:
    """Sizes whose product is a given one."""
    dims: list[int] = []
    while size > 1 and len(dims) < 4:
        found = int(d.some([k for k in range(1, size + 1) if size % k == 0]))
        dims.append(found)
        size //= found
    return (*dims, size) if size != 1 or d.chance(0.3) else tuple(dims)


def ranks(d: Draw) -> Node:
    """Ops that add, remove and join dimensions."""
    op = d.some(("Flatten", "Squeeze", "Unsqueeze", "Shape", "Size"))
    opset = d.opset(op)
    x = d.array(d.type_of(op, opset), d.shape())
    if op == "Flatten":
        attributes = {"axis": d.number(-x.ndim, x.ndim)} if d.chance(0.8) else {}
        return Node(op, [x], attributes, opset=opset)
    if op == "Squeeze":
        x = x.reshape([k for n in x.shape for k in ((n, 1) if d.chance(0.4) else (n,))])
        ones = [i for i, n in enumerate(x.shape) if n == 1]
        chosen = [i - (x.ndim if d.chance(0.3) else 0) for i in ones if d.chance(0.6)]
        axes = ints(*chosen) if chosen else None
        return Node(op, [x, axes], opset=opset, maybe={1})
    if op == "Unsqueeze":
        count = d.number(1, 3)
        rank = x.ndim + count
        places = [int(i) for i in d.generator.permutation(rank)[:count]]
        chosen = [i - (rank if d.chance(0.3) else 0) for i in places]
        return Node(op, [x, ints(*chosen)], opset=opset, maybe={1})
    if op == "Shape" and opset >= 15:
        names = ("start", "end")
        attributes = {n: d.number(-x.ndim - 1, x.ndim + 1) for n in names if d.chance(0.5)}
        return Node(op, [x], attributes, opset=opset)
    return Node(op, [x], opset=opset)


def transpose(d: Draw) -> Node:
    opset = d.opset("Transpose")
    x = d.array(d.type_of("Transpose", opset), d.shape(0, 5))
    perm = [int(i) for i in d.generator.permutation(x.ndim)]
    return Node("Transpose", [x], {"perm": perm} if perm and d.chance(0.8) else {}, opset=opset)


def expand(d: Draw) -> Node:
    op = d.some(("Expand", "Tile"))
    opset = d.opset(op)
    shape = d.shape(0, 3)
    x = d.array(d.type_of(op, opset), shape)
    if op == "Tile":
        repeats = [d.some((1, 1, 2, 3, 0) if d.chance(0.3) else (1, 2, 3)) for _ in shape]
        return Node(op, [x, ints(*repeats)], opset=opset, maybe={1})
    # The ellipsis keeps a scalar an array.
    x = x[(*(slice(0, 1) if d.chance(0.5) else slice(None) for _ in shape), ...)]
    target = [n if m == 1 else d.some((1, m)) for n, m in zip(shape, x.shape, strict=True)]
    more = [d.number(1, 3) for _ in range(d.number(0, 2))]
    return Node(op, [x, ints(*more, *target)], opset=opset, maybe={1})


def concat(d: Draw) -> Node:
    opset = d.opset("Concat")
    kind, shape = d.type_of("Concat", opset), d.shape(1, 4)
    axis = d.axis(len(shape))
    parts = []
    for _ in range(d.number(1, 4)):
        own = list(shape)
        own[axis] = d.size(0.1)
        parts.append(d.array(kind, own))
    return Node("Concat", parts, {"axis": axis}, opset=opset, maybe={1})


def split(d: Draw) -> Node:
    opset = d.opset("Split")
    x = d.array(d.type_of("Split", opset), d.shape(1, 4))
    axis = d.axis(x.ndim)
    size, count = x.shape[axis], d.number(1, 4)
    attributes: dict[str, Any] = {"axis": axis} if axis % x.ndim or d.chance(0.5) else {}
    if d.chance(0.6) or (size % count and opset < 18):
        points = sorted(d.number(0, size) for _ in range(count - 1))
        sizes = np.diff([0, *points, size])
        return Node("Split", [x, ints(*sizes)], attributes, count, opset, maybe={1})
    if opset >= 18:
        attributes["num_outputs"] = count
    return Node("Split", [x], attributes, count, opset)


def slices(d: Draw) -> Node:
    opset = d.opset("Slice")
    x = d.array(d.type_of("Slice", opset), d.shape(1, 4))
    axes = d.axes(x.ndim)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = x.shape[axis]
        steps.append(d.some((1, 1, 2, 3, -1, -1, -2, -3)))
        limit = d.some((size, size + 2, FAR))
        starts.append(d.number(-limit, limit) if d.chance(0.7) else 0)
        ends.append(d.number(-limit, limit) if d.chance(0.6) else
                    d.some((FAR, 2**63 - 1)) if steps[-1] > 0 else -FAR)  # fmt: skip
    if axes == list(range(len(axes))) and d.chance(0.3):
        inputs = [x, ints(*starts), ints(*ends)]
        if d.chance(0.5):
            inputs += [None, ints(*steps)]
        return Node("Slice", inputs, opset=opset, maybe={1, 2, 4})
    index = d.some((np.int64, np.int32)) if max(map(abs, (*starts, *ends)), default=0) < 2**31 \
        else np.int64  # fmt: skip
    inputs = [x, *(np.array(v, index) for v in (starts, ends, axes, steps))]
    return Node("Slice", inputs, opset=opset, maybe={1, 2, 3, 4})


def pad(d: Draw) -> Node:
    opset = d.opset("Pad")
    x = d.array(d.type_of("Pad", opset), d.shape(1, 4))
    modes = ("constant", "constant", "reflect", "edge", *(("wrap",) if opset >= 19 else ()))
    mode = d.some(modes)
    axes = d.axes(x.ndim) if opset >= 18 and d.chance(0.4) else None
    covered = list(range(x.ndim)) if axes is None else axes
    most = [3 if mode in ("constant", "edge") else max(0, x.shape[a] - 1) for a in covered]
    least = [-(x.shape[a] // 2) if mode == "constant" and d.chance(0.2) else 0 for a in covered]
    pads = [d.number(lo, hi) for _ in range(2) for lo, hi in zip(least, most, strict=True)]
    value = d.array(x.dtype, ()) if mode == "constant" and d.chance(0.6) else None
    attributes = {"mode": mode} if mode != "constant" or d.chance(0.5) else {}
    inputs = [x, ints(*pads), value, None if axes is None else ints(*axes)]
    return Node("Pad", inputs, attributes, opset=opset, maybe={1, 2, 3})


def blocks(d: Draw) -> Node:
    op, b = d.some(("DepthToSpace", "SpaceToDepth")), d.number(1, 3)
    opset = d.opset(op)
    n, c, h, w = d.number(1, 2), d.number(1, 3), d.number(1, 4), d.number(1, 4)
    shape = (n, c * b * b, h, w) if op[0] == "D" else (n, c, h * b, w * b)
    attributes: dict[str, Any] = {"blocksize": b}
    if op[0] == "D" and d.chance(0.6):
        attributes["mode"] = d.some(("DCR", "CRD"))
    return Node(op, [d.array(d.type_of(op, opset), shape)], attributes, opset=opset)


def made(d: Draw) -> Node:
    """Ops that make a tensor of a size."""
    op = d.some(("EyeLike", "Trilu", "Trilu", "Range", "OneHot", "ConstantOfShape"))
    opset = d.opset(op)
    if op == "EyeLike":
        kinds = ("float32", "float64", "int32", "int64", "bool", "float16")
        x = d.array(d.kind(kinds), (d.size(), d.size()))
        attributes: dict[str, Any] = {"k": d.number(-4, 4)} if d.chance(0.6) else {}
        if d.chance(0.4):
            attributes["dtype"] = d.some((1, 6, 7, 11))
        return Node(op, [x], attributes, opset=opset)
    if op == "Trilu":
        x = d.array(d.type_of(op, opset), d.shape(2, 4))
        k = np.array(d.number(-5, 5), np.int64) if d.chance(0.6) else None
        attributes = {"upper": d.number(0, 1)} if d.chance(0.7) else {}
        return Node(op, [x, k], attributes, opset=opset, maybe={1})
    if op == "Range":
        kind = d.type_of(op, opset)
        start, step = d.number(-5, 5), d.some((1, 2, 3, -1, -2))
        limit = start + step * d.number(-2, 12)
        scalars = [np.array(v, kind) for v in (start, limit, step)]
        return Node(op, scalars, opset=opset, maybe={0, 1, 2})
    if op == "OneHot":
        depth = d.number(1, 6)
        index = d.array(d.some((np.int64, np.int32, np.float32)), d.shape(0, 3), -depth, depth - 1)
        index = np.round(index.astype(np.float64)).astype(index.dtype)
        values = d.array(d.kind(("float32", "int64", "int32", "float64")), (2,))
        attributes = {"axis": d.number(-index.ndim - 1, index.ndim)} if d.chance(0.6) else {}
        return Node(op, [index, np.array(depth, np.int64), values], attributes, opset=opset,
                    maybe={1, 2})  # fmt: skip
    from onnx import numpy_helper

    kind = d.kind(("float32", "float64", "int32", "int64", "bool", "uint8", "float16"))
    value = numpy_helper.from_array(d.array(kind, (1,)))
    attributes = {"value": value} if d.chance(0.8) else {}
    return Node(op, [ints(*d.shape(0, 3))], attributes, opset=opset, maybe={0})


def gathers(d: Draw) -> Node:
    op = d.some(("Gather", "GatherElements", "GatherND"))
    opset = d.opset(op)
    kind = d.type_of(op, opset)
    index = d.some((np.int64, np.int32)) if op != "GatherND" else np.int64
    if op == "GatherND":
        return _gather_nd(d, kind, opset)
    x = d.array(kind, d.shape(1, 4, empty=0.01))
    axis = d.axis(x.ndim)
    size = x.shape[axis]
    attributes = {"axis": axis} if axis % x.ndim or d.chance(0.5) else {}
    if op == "Gather":
        shape = d.shape(0, 3) if size else (0,)
    else:
        shape = tuple(d.number(1, n) if n and i != axis % x.ndim else d.size() if size else 0
                      for i, n in enumerate(x.shape))  # fmt: skip
        shape = tuple(0 if n == 0 else m for n, m in zip(x.shape, shape, strict=True))
    where = d.array(index, shape, -size, size - 1) if size else np.zeros(shape, index)
    return Node(op, [x, where], attributes, opset=opset, maybe={0, 1} if d.chance(0.4) else set())


def _gather_nd(d: Draw, kind: Any, opset: int) -> Node:
    x = d.array(kind, d.shape(1, 4, empty=0.01))
    batch = d.number(0, x.ndim - 1) if d.chance(0.5) else 0
    depth = d.number(1, x.ndim - batch)
    lead = (*x.shape[:batch], *d.shape(0 if batch else 1, 2))
    where = nd_index(d, x.shape[batch : batch + depth], lead)
    attributes = {"batch_dims": batch} if batch or d.chance(0.3) else {}
    return Node("GatherND", [x, where], attributes, opset=opset)


def nd_index(d: Draw, sizes: tuple[int, ...], lead: tuple[int, ...]) -> np.ndarray:
    """Indices into dimensions, a vector each; none where a dimension is empty."""
    if 0 in sizes:
        return np.zeros((0, *lead[1:], len(sizes)), np.int64)
    columns = [d.array(np.int64, lead, -n, n - 1) for n in sizes]
    return np.stack(columns, axis=-1)


REDUCTIONS = ("none", "add", "mul", "max", "min")


def scatters(d: Draw) -> Node:
    op = d.some(("ScatterElements", "ScatterND"))
    opset = d.opset(op)
    reduction = d.some(REDUCTIONS if opset >= 18 else REDUCTIONS[:3] if opset >= 16 else ("none",))
    kind = d.type_of(op, opset)
    if kind.kind in "Ob":
        reduction = "none"
    attributes: dict[str, Any] = {"reduction": reduction} if reduction != "none" else {}
    x = d.array(kind, d.shape(1, 3, empty=0.0))
    if op == "ScatterND":
        depth = d.number(1, x.ndim)
        where = nd_index(d, x.shape[:depth], d.shape(1, 2))
        if reduction == "none":
            flat = np.unique(where.reshape(-1, depth) % np.array(x.shape[:depth]), axis=0)
            where = flat[d.generator.permutation(len(flat))]  # which of two wins, nobody says
        updates = d.array(kind, (*where.shape[:-1], *x.shape[depth:]))
        return Node(op, [x, where, updates], attributes, opset=opset)
    axis = d.axis(x.ndim)
    attributes |= {"axis": axis} if axis % x.ndim or d.chance(0.4) else {}
    shape = tuple(d.number(1, n) for n in x.shape)
    where = np.argsort(d.generator.random(x.shape), axis=axis)
    where = where[tuple(slice(n) for n in shape)].astype(d.some((np.int64, np.int32)))
    if reduction != "none" and d.chance(0.6):
        where = d.array(where.dtype, shape, -x.shape[axis], x.shape[axis] - 1)
    elif d.chance(0.3):
        where = where - where.dtype.type(x.shape[axis])
    return Node(op, [x, where, d.array(kind, shape)], attributes, opset=opset)


def sorts(d: Draw) -> Node:
    op = d.some(("TopK", "TopK", "ArgMax", "ArgMin", "CumSum", "CumSum", "CumProd"))
    opset = d.opset(op)
    x = d.array(d.type_of(op, opset), d.shape(1, 4, empty=0.02))
    axis = d.axis(x.ndim)
    if op in ("CumSum", "CumProd"):
        names = ("exclusive", "reverse")
        attributes = {n: d.number(0, 1) for n in names if d.chance(0.6)}
        where = np.array(axis, d.some((np.int64, np.int32)))
        return Node(op, [x, where], attributes, opset=opset, maybe={1})
    if op == "TopK":
        k = ints(d.number(0 if d.chance(0.1) else min(1, x.shape[axis]), x.shape[axis]))
        attributes = {"axis": axis}
        attributes |= {"largest": d.number(0, 1)} if d.chance(0.6) else {}
        return Node(op, [x, k], attributes, 2, opset, maybe={1})
    names = ("keepdims", "select_last_index")
    attributes = {n: d.number(0, 1) for n in names if d.chance(0.6)} | {"axis": axis}
    if x.shape[axis] == 0:
        x = d.array(x.dtype, d.shape(x.ndim, x.ndim, empty=0))
    return Node(op, [x], attributes, opset=opset)


def found(d: Draw) -> Node:
    """Ops whose results have sizes that data decide."""
    op = d.some(("NonZero", "Compress", "Unique"))
    opset = d.opset(op)
    x = d.array(d.type_of(op, opset), d.shape(0 if op == "NonZero" else 1, 3))
    if op == "NonZero":
        return Node(op, [x], opset=opset)
    attributes: dict[str, Any] = {"axis": d.axis(x.ndim)} if d.chance(0.6) else {}
    if op == "Compress":
        size = x.shape[attributes["axis"]] if attributes else x.size
        keep = d.array(bool, (d.number(0, size) if d.chance(0.3) else size,))
        return Node(op, [x, keep], attributes, opset=opset)
    if x.dtype.kind == "f":
        x = np.round(x)
    attributes |= {"sorted": d.number(0, 1)} if d.chance(0.5) else {}
    return Node(op, [x], attributes, d.number(1, 4), opset)


def reverse_sequence(d: Draw) -> Node:
    opset = d.opset("ReverseSequence")
    x = d.array(d.type_of("ReverseSequence", opset), d.shape(2, 4, empty=0))
    batch = d.number(0, 1)
    lengths = d.array(np.int64, (x.shape[batch],), 1, x.shape[1 - batch])
    attributes = {"batch_axis": batch, "time_axis": 1 - batch}
    return Node("ReverseSequence", [x, lengths], attributes, opset=opset)


def crop(d: Draw) -> Node:
    x = d.array(d.type_of("CenterCropPad", 18), d.shape(1, 3, empty=0))
    axes = d.axes(x.ndim)
    target = ints(*(d.number(1, 9) for _ in axes))
    return Node("CenterCropPad", [x, target], {"axes": axes}, opset=18, maybe={1})


def tensor_scatter(d: Draw) -> Node:
    b, h, t, w = d.number(1, 3), d.number(1, 3), d.number(1, 6), d.number(1, 4)
    new = d.number(1, t)
    kind = numpy_type(d.some(("float32", "float16", "int32")))
    start = d.array(np.int64, (b,), 0, t - new) if d.chance(0.7) else None
    attributes = {"mode": d.some(("linear", "circular"))} if d.chance(0.6) else {}
    return Node("TensorScatter", [d.array(kind, (b, h, t, w)), d.array(kind, (b, h, new, w)),
                start], attributes, opset=24)  # fmt: skip


MAKERS = {reshape: 3, ranks: 2, transpose: 2, expand: 2, concat: 3, split: 2, slices: 5, pad: 4,
          blocks: 2, made: 4, gathers: 5, scatters: 5, sorts: 5, found: 4, reverse_sequence: 1,
          crop: 1, tensor_scatter: 1}  # fmt: skip
"""The weight of each against the others."""
