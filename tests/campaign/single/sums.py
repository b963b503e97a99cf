"""Random single ops that add up: reductions, products, norms, softmax, recurrences."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.campaign.case import Node
from tests.campaign.draw import Draw, numpy_type
from tests.campaign.single.moves import ints

REDUCE = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
LETTERS = "abcdef"


def reduce(d: Draw) -> Node:
    op = d.some(REDUCE)
    opset = d.opset(op)
    x = d.array(d.type_of(op, opset), d.shape(0, 4, empty=0.04))
    if op == "ReduceLogSum" and not d.special:
        x = np.abs(x)
    attributes: dict[str, Any] = {"keepdims": d.number(0, 1)} if d.chance(0.7) else {}
    axes = d.axes(x.ndim) if x.ndim and d.chance(0.75) else None
    by_input = opset >= 18 or (op == "ReduceSum" and opset >= 13)
    if not by_input:
        return Node(op, [x], attributes | ({"axes": axes} if axes else {}), opset=opset)
    if d.chance(0.3):
        attributes["noop_with_empty_axes"] = d.number(0, 1)
    given = None if axes is None else ints(*axes)
    if axes is None and d.chance(0.2):
        given = ints()
    return Node(op, [x, given], attributes, opset=opset, constant={1})


def softmax(d: Draw) -> Node:
    op = d.some(("Softmax", "Softmax", "LogSoftmax", "Hardmax"))
    opset = d.opset(op)
    x = d.array(d.type_of(op, opset), d.shape(1, 4))
    return Node(op, [x], {"axis": d.axis(x.ndim)} if d.chance(0.8) else {}, opset=opset)


def matmul(d: Draw) -> Node:
    opset = d.opset("MatMul")
    kind = d.type_of("MatMul", opset)
    left, right = matmul_shapes(d)
    return Node("MatMul", [d.array(kind, left), d.array(kind, right)], opset=opset, maybe={1})


def matmul_shapes(d: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    m, k, n = (d.size() for _ in range(3))
    lead = d.shape(0, 2, empty=0.02)
    left = (*d.like(lead), m, k) if d.chance(0.9) else (k,)
    right = (*lead, k, n) if d.chance(0.5) else (k, n)
    return left, right if d.chance(0.9) else (k,)


def gemm(d: Draw) -> Node:
    opset = d.opset("Gemm")
    kind = d.type_of("Gemm", opset)
    m, k, n = (d.size(0.02) for _ in range(3))
    ta, tb = d.number(0, 1), d.number(0, 1)
    a = d.array(kind, (k, m) if ta else (m, k))
    b = d.array(kind, (n, k) if tb else (k, n))
    c = d.array(kind, d.like((m, n))) if d.chance(0.7) else None
    attributes: dict[str, Any] = {"transA": ta} if ta or d.chance(0.3) else {}
    attributes |= {"transB": tb} if tb or d.chance(0.3) else {}
    if kind.kind in "fV":
        attributes |= {n: d.some((0.5, 2.0, 0.0, -1.0)) for n in ("alpha", "beta") if d.chance(0.3)}
    return Node("Gemm", [a, b, c], attributes, opset=opset, maybe={1, 2})


def einsum(d: Draw) -> Node:
    sizes = {c: d.size(0.02) for c in LETTERS}
    count = d.number(1, 3)
    terms = []
    for _ in range(count):
        rank = d.number(1 if count > 1 else 2, 3)
        letters = [LETTERS[int(i)] for i in d.generator.permutation(4)[:rank]]
        if d.chance(0.08) and rank > 1:
            letters[0] = letters[1]  # a diagonal
        terms.append("".join(letters))
    known = sorted(set("".join(terms)))
    equation = ",".join(terms)
    if d.chance(0.85):
        kept = [c for c in known if d.chance(0.5)]
        equation += "->" + "".join(kept[int(i)] for i in d.generator.permutation(len(kept)))
    kind = numpy_type(d.some(("float32", "float32", "float64", "int32")))
    operands = [d.array(kind, [sizes[c] for c in t]) for t in terms]
    return Node("Einsum", operands, {"equation": equation}, opset=d.opset("Einsum"))


def integer_products(d: Draw) -> Node:
    left, right = matmul_shapes(d)
    kinds = [numpy_type(d.some(("uint8", "int8"))) for _ in range(2)]
    a, b = (d.array(k, s) for k, s in zip(kinds, (left, right), strict=True))
    per_column = d.chance(0.3) and b.ndim == 2
    if d.chance(0.5):
        zeros = [d.array(kinds[0], ()) if d.chance(0.6) else None,
                 d.array(kinds[1], (b.shape[-1],) if per_column else ())
                 if d.chance(0.6) else None]  # fmt: skip
        return Node("MatMulInteger", [a, b, *zeros], opset=d.opset("MatMulInteger"), maybe={1, 3})
    scales = [np.array(s, np.float32) for s in (0.02, 0.05, 0.5)]
    out = numpy_type(d.some(("uint8", "int8")))
    inputs = [a, scales[0], d.array(kinds[0], ()), b, scales[1], d.array(kinds[1], ()),
              scales[2], d.array(out, ())]  # fmt: skip
    if per_column:
        inputs[4] = d.array(np.float32, (b.shape[-1],), 0.01, 0.1)
        inputs[5] = d.array(kinds[1], (b.shape[-1],))
    return Node(
        "QLinearMatMul", inputs, opset=d.opset("QLinearMatMul"), maybe={3, 1, 2, 4, 5, 6, 7}
    )


def det(d: Draw) -> Node:
    n = d.number(1, 5)
    x = d.array(d.kind(("float32", "float64")), (*d.shape(0, 2), n, n))
    return Node("Det", [x], opset=d.opset("Det"))


def normalise(d: Draw) -> Node:
    op = d.some((
        "BatchNormalization", "InstanceNormalization", "LayerNormalization", "LayerNormalization",
        "GroupNormalization", "LpNormalization", "LRN", "MeanVarianceNormalization",
        "RMSNormalization",
    ))  # fmt: skip
    opset = d.opset(op, 21 if op == "GroupNormalization" else 0)
    attributes: dict[str, Any] = {}
    if d.chance(0.4) and op.split("N")[0] in ("Batch", "Instance", "Layer", "Group", "RMS"):
        attributes["epsilon"] = d.some((1e-3, 1e-6, 0.1))
    kind = d.type_of(op, opset)
    if op in ("LayerNormalization", "RMSNormalization"):
        return _layer_norm(d, op, opset, kind, attributes)
    if op in ("LpNormalization", "MeanVarianceNormalization"):
        return _plain_norm(d, op, opset, kind, attributes)
    x = d.array(kind, d.image(d.some((1, 2, 2, 3))))
    c = x.shape[1]
    if op == "LRN":
        attributes = {"size": d.some((1, 3, 5))}
        attributes |= {n: d.some((0.001, 0.5, 1.0)) for n in ("alpha", "bias") if d.chance(0.4)}
        return Node(op, [x], attributes, opset=opset)
    scale, bias, mean = (d.array(kind, (c,)) for _ in range(3))
    if op == "BatchNormalization":
        inputs = [x, scale, bias, mean, np.abs(d.array(kind, (c,), 0.1, 2.0))]
        return Node(op, inputs, attributes, opset=opset, maybe={1, 2, 3, 4})
    if op == "GroupNormalization":
        attributes["num_groups"] = d.some([g for g in range(1, c + 1) if c % g == 0])
    return Node(op, [x, scale, bias], attributes, opset=opset, maybe={1, 2})


def _layer_norm(d: Draw, op: str, opset: int, kind: Any, attributes: dict[str, Any]) -> Node:
    x = d.array(kind, d.shape(1, 4, empty=0.01))
    axis = d.axis(x.ndim) if d.chance(0.7) else -1
    attributes |= {"axis": axis} if axis != -1 else {}
    shape = x.shape[axis:] if d.chance(0.9) else (1,) * len(x.shape[axis:])
    bias = d.array(kind, shape) if op[0] == "L" and d.chance(0.6) else None
    inputs = [x, d.array(kind, shape), *([bias] if op[0] == "L" else [])]
    return Node(op, inputs, attributes, opset=opset, maybe={1, 2})


def _plain_norm(d: Draw, op: str, opset: int, kind: Any, attributes: dict[str, Any]) -> Node:
    if op == "LpNormalization":
        x = d.array(kind, d.shape(1, 4))
        attributes = {"axis": d.axis(x.ndim)} if d.chance(0.7) else {}
        attributes |= {"p": d.number(1, 2)} if d.chance(0.6) else {}
        return Node(op, [x], attributes, opset=opset)
    x = d.array(kind, d.shape(4, 4, empty=0))
    return Node(op, [x], {"axes": sorted(a % 4 for a in d.axes(4))} if d.chance(0.6) else {},
                opset=opset)  # fmt: skip


def quantise(d: Draw) -> Node:
    op = d.some(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))
    opset = d.opset(op)
    if op[1] == "y":
        return Node(op, [d.array(np.float32, d.shape(empty=0))], outputs=3, opset=opset)
    low = ("uint8", "int8") if opset < 21 else ("uint8", "int8", "int16", "uint16", "int4", "uint4")
    packed = numpy_type(d.some(low))
    shape = d.shape(0, 4)
    x = d.array(np.float32, shape) if op[0] == "Q" else _codes(d, packed, shape)
    attributes: dict[str, Any] = {}
    size: tuple[int, ...] = ()
    if shape and d.chance(0.6):
        axis = d.axis(len(shape))
        size = (shape[axis],)
        attributes["axis"] = axis
        block = d.some((2, 4, 3))
        if opset >= 21 and d.chance(0.35) and shape[axis] > 1:
            attributes["block_size"] = block
            size = tuple(-(-n // block) if i == axis % len(shape) else n
                         for i, n in enumerate(shape))  # fmt: skip
    scale = d.array(np.float32, size, 0.01, 0.3)
    zero = _codes(d, packed, size) if d.chance(0.6) or op[0] == "Q" else None
    return Node(op, [x, scale, zero], attributes, opset=opset, maybe={1, 2})


def _codes(d: Draw, kind: Any, shape: tuple[int, ...]) -> np.ndarray:
    if kind.name in ("int4", "uint4"):
        low = -8 if kind.name == "int4" else 0
        return d.generator.integers(low, low + 16, shape).astype(kind)
    return d.array(kind, shape)


def recurrent(d: Draw) -> Node:
    op = d.some(("RNN", "GRU", "LSTM"))
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    direction = d.some(("forward", "reverse", "bidirectional"))
    both = 2 if direction == "bidirectional" else 1
    t, b, i, h = d.number(1, 5), d.number(1, 3), d.number(1, 5), d.number(1, 5)
    f = np.float32
    scale = 0.5

    def weights(*shape: int) -> np.ndarray:
        return (d.generator.normal(size=shape) * scale).astype(f)

    x = weights(t, b, i)
    bias = weights(both, 2 * gates * h) if d.chance(0.6) else None
    lengths = d.array(np.int32, (b,), 1, t) if d.chance(0.3) else None
    states = [weights(both, b, h) if d.chance(0.4) else None for _ in range(1 + (op == "LSTM"))]
    inputs = [x, weights(both, gates * h, i), weights(both, gates * h, h), bias, lengths, *states]
    if op == "LSTM" and d.chance(0.3):
        inputs.append(weights(both, 3 * h))
    attributes: dict[str, Any] = {"hidden_size": h}
    if direction != "forward" or d.chance(0.3):
        attributes["direction"] = direction
    if op == "GRU" and d.chance(0.5):
        attributes["linear_before_reset"] = d.number(0, 1)
    if op == "LSTM" and d.chance(0.15):
        attributes["input_forget"] = 1
    if d.chance(0.2):
        attributes["clip"] = 0.5
    outputs = 3 if op == "LSTM" else 2
    skipped = {d.number(0, outputs - 1)} if d.chance(0.4) else set()
    return Node(op, inputs, attributes, outputs, d.opset(op), maybe={1, 2, 3}, skipped=skipped)


def fourier(d: Draw) -> Node:
    op = d.some(("DFT", "STFT"))
    kind = d.kind(("float32", "float64"))
    if op == "STFT":
        length, step = d.number(2, 8), d.number(1, 4)
        signal = d.array(kind, (d.number(1, 2), length + step * d.number(0, 4) + d.number(0, 2), 1))
        window = d.array(kind, (length,), 0.1, 1.0) if d.chance(0.6) else None
        size = None if window is not None and d.chance(0.5) else np.array(length, np.int64)
        inputs = [signal, np.array(step, np.int64), window, size]
        attributes = {"onesided": d.number(0, 1)} if d.chance(0.6) else {}
        return Node(op, inputs, attributes, opset=d.opset(op), constant={1, 3}, maybe={2})
    lead = d.shape(1, 3, empty=0)
    one, inverse = d.chance(0.3), d.chance(0.3)
    if one and inverse:
        one = False
    x = d.array(kind, (*lead, d.number(1, 2) if not one else 1))
    axis = d.number(0, x.ndim - 2)
    length = np.array(d.number(1, 12), np.int64) if d.chance(0.3) else None
    given = axis - x.ndim if d.chance(0.5) else axis
    attributes = {"onesided": 1} if one else {}
    attributes |= {"inverse": 1} if inverse else {}
    return Node(op, [x, length, np.array(given, np.int64)], attributes, opset=20, constant={1, 2})


MAKERS = {reduce: 8, softmax: 3, matmul: 4, gemm: 3, einsum: 2, integer_products: 3, det: 1,
          normalise: 6, quantise: 4, recurrent: 4, fourier: 2}  # fmt: skip
"""The weight of each against the others."""
