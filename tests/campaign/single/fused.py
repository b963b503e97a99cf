"""Random single ops that stand for several: attention, rotations, ONNX Runtime's own ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.campaign.case import Node
from tests.campaign.draw import Draw, numpy_type
from tests.campaign.single.sums import matmul_shapes

MICROSOFT = "com.microsoft"


def _own(op: str, inputs: list[Any], attributes: dict[str, Any] | None = None, **more: Any) -> Node:
    return Node(op, inputs, attributes or {}, domain=MICROSOFT, **more)


def attention(d: Draw) -> Node:
    b, h, q, k, w = (
        d.number(1, 2),
        d.some((1, 2, 4)),
        d.number(1, 6),
        d.number(1, 8),
        d.number(1, 6),
    )
    shared = d.some([n for n in (1, 2, 4) if h % n == 0])
    kind = numpy_type(d.some(("float32", "float32", "float16", "bfloat16")))
    flat = d.chance(0.3)
    attributes: dict[str, Any] = {}
    if flat:
        shapes = [(b, q, h * w), (b, k, shared * w), (b, k, shared * w)]
        attributes = {"q_num_heads": h, "kv_num_heads": shared}
    else:
        shapes = [(b, h, q, w), (b, shared, k, w), (b, shared, k, w)]
    inputs: list[Any] = [d.array(kind, s) for s in shapes]
    past = 0
    mask = None
    cached = d.chance(0.25)
    if cached:
        past = d.number(1, 4)
    if d.chance(0.5):
        shape = d.some(((q, k + past), (1, 1, q, k + past), (b, 1, q, k + past)))
        mask = d.array(bool if d.chance(0.5) else kind, shape)
        if mask.dtype == bool:
            mask[..., 0] = True  # a row that sees nothing is another matter
    if d.chance(0.3):
        attributes["is_causal"] = 1
    if d.chance(0.3):
        attributes["scale"] = d.some((0.5, 1.0, 0.1))
    if d.chance(0.15):
        attributes["softcap"] = 2.0
    inputs.append(mask)
    outputs = 1
    if cached:
        inputs += [d.array(kind, (b, shared, past, w)) for _ in range(2)]
        outputs = 3
    return Node("Attention", inputs, attributes, outputs, opset=23)


def rotary(d: Draw) -> Node:
    b, h, t, w = d.number(1, 2), d.number(1, 3), d.number(1, 5), 2 * d.number(1, 4)
    kind = numpy_type(d.some(("float32", "float16")))
    x, longest = d.array(kind, (b, h, t, w)), d.number(t, 9)
    attributes: dict[str, Any] = {"interleaved": d.number(0, 1)} if d.chance(0.6) else {}
    if d.chance(0.7):
        caches = [d.array(kind, (longest, w // 2)) for _ in range(2)]
        where = d.array(np.int64, (b, t), 0, longest - 1)
        return Node("RotaryEmbedding", [x, *caches, where], attributes, opset=23, maybe={1, 2})
    caches = [d.array(kind, (b, t, w // 2)) for _ in range(2)]
    return Node("RotaryEmbedding", [x, *caches], attributes, opset=23)


def gelus(d: Draw) -> Node:
    op = d.some(("Gelu", "QuickGelu", "FastGelu", "BiasGelu"))
    x = d.array(np.float32, d.shape(1, 4))
    if op == "BiasGelu":
        return _own(op, [x, d.array(np.float32, x.shape[-1:])], maybe={1})
    if op == "FastGelu":
        bias = d.array(np.float32, x.shape[-1:]) if d.chance(0.5) else None
        return _own(op, [x, bias], maybe={1})
    return _own(op, [x], {"alpha": 1.5} if op == "QuickGelu" and d.chance(0.5) else {})


def products(d: Draw) -> Node:
    op = d.some(("FusedMatMul", "FusedGemm", "FusedConv", "MatMulIntegerToFloat",
                 "DynamicQuantizeMatMul"))  # fmt: skip
    f = np.float32
    m, k, n = (d.number(1, 9) for _ in range(3))
    if op == "FusedMatMul":
        ta, tb = d.number(0, 1), d.number(0, 1)
        lead = d.shape(0, 2, empty=0)
        a = d.array(f, (*lead, k, m) if ta else (*lead, m, k))
        b = d.array(f, (n, k) if tb else (k, n))
        attributes: dict[str, Any] = {"transA": ta, "transB": tb}
        attributes |= {"alpha": 0.5} if d.chance(0.4) else {}
        return _own(op, [a, b], attributes, maybe={1})
    if op == "FusedGemm":
        attributes = {"activation": d.some(("Relu", "Tanh", "Sigmoid"))}
        return _own(op, [d.array(f, (m, k)), d.array(f, (k, n)), d.array(f, (n,))], attributes,
                    maybe={1, 2})  # fmt: skip
    if op == "FusedConv":
        attributes = {"activation": d.some(("Relu", "Tanh", "Sigmoid")), "pads": [1] * 4}
        return _own(op, [d.array(f, (1, k, 5, 5)), d.array(f, (n, k, 3, 3)), d.array(f, (n,))],
                    attributes, maybe={1, 2})  # fmt: skip
    kinds = [numpy_type(d.some(("uint8", "int8"))) for _ in range(2)]
    left, right = matmul_shapes(d)
    b, scale = d.array(kinds[1], right[-2:]), np.array(0.03, f)
    if b.ndim < 2 or b.size == 0:
        b = d.array(kinds[1], (k, n))
    left = (*left[:-1], b.shape[0]) if 0 not in left and len(left) > 1 else (m, b.shape[0])
    bias = d.array(f, (b.shape[1],)) if d.chance(0.4) else None
    zero = d.array(kinds[1], ()) if d.chance(0.5) else None
    if op == "DynamicQuantizeMatMul":
        return _own(op, [d.array(f, left), b, scale, zero, bias], maybe={1, 2, 3, 4})
    a_zero = d.array(kinds[0], ()) if d.chance(0.5) else None
    inputs = [d.array(kinds[0], left), b, np.array(0.02, f), scale, a_zero, zero, bias]
    return _own(op, inputs, maybe={1, 3, 5, 6})


def norms(d: Draw) -> Node:
    op = d.some(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
                 "SimplifiedLayerNormalization"))  # fmt: skip
    f, shape = np.float32, (d.number(1, 2), d.number(1, 4), d.number(1, 9))
    x, gamma = d.array(f, shape), d.array(f, shape[-1:])
    attributes = {"epsilon": d.some((1e-3, 1e-5))}
    if op == "SimplifiedLayerNormalization":
        return Node(op, [x, gamma], {**attributes, "axis": -1}, opset=21, maybe={1})
    beta = d.array(f, shape[-1:]) if d.chance(0.5) else None
    bias = d.array(f, shape[-1:]) if d.chance(0.3) else None
    inputs = [x, d.array(f, shape), gamma, *([beta] if op[4] == "L" else []), bias]
    outputs, skipped = (4, {1, 2}) if d.chance(0.4) else (1, set())
    return _own(op, inputs, attributes, maybe={2, 3}, outputs=outputs, skipped=skipped)


def few_bits(d: Draw) -> Node:
    bits, block = d.some((4, 4, 8)), d.some((16, 32))
    n, k = d.number(1, 9), d.number(1, 70)
    groups = -(-k // block)
    packed = d.array(np.uint8, (n, groups, block * bits // 8), 0, 255)
    scales = d.array(np.float32, (n * groups,), 0.01, 0.2)
    zeros = d.array(np.uint8, (n * (-(-groups * bits // 8)),), 0, 255) if d.chance(0.5) else None
    x = d.array(np.float32, (*d.shape(1, 2, empty=0), k))
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    return _own("MatMulNBits", [x, packed, scales, zeros], attributes, constant={1, 2, 3})


def quantised(d: Draw) -> Node:
    op = d.some(("QLinearAdd", "QLinearMul", "QLinearLeakyRelu", "QLinearSigmoid",
                 "QLinearGlobalAveragePool", "QLinearConcat"))  # fmt: skip
    kind = numpy_type(d.some(("uint8", "int8")))
    shape = d.shape(1, 4, empty=0)

    def scale() -> np.ndarray:
        return np.array(d.some((0.02, 0.05, 0.1)), np.float32)

    def zero() -> np.ndarray:
        return d.array(kind, ())

    if op in ("QLinearAdd", "QLinearMul"):
        inputs = [d.array(kind, shape), scale(), zero(), d.array(kind, d.like(shape)), scale(),
                  zero(), scale(), zero()]  # fmt: skip
        return _own(op, inputs, constant={1, 2, 4, 5, 6, 7}, maybe={3})
    if op == "QLinearConcat":
        axis = d.axis(len(shape))
        inputs = [scale(), zero()]
        for _ in range(d.number(1, 3)):
            own = list(shape)
            own[axis] = d.number(1, 4)
            inputs += [d.array(kind, own), scale(), zero()]
        scalars = {i for i, x in enumerate(inputs) if x.ndim == 0}
        return _own(op, inputs, {"axis": axis}, constant=scalars)
    attributes: dict[str, Any] = {}
    if op == "QLinearLeakyRelu":
        attributes = {"alpha": 0.2}
    if op == "QLinearGlobalAveragePool":
        shape, attributes = d.image(2), {"channels_last": 0}
    inputs = [d.array(kind, shape), scale(), zero(), scale(), zero()]
    return _own(op, inputs, attributes, constant={1, 2, 3, 4})


def heads(d: Draw) -> Node:
    b, h, q, w = d.number(1, 2), d.some((1, 2, 4)), d.number(1, 5), d.some((2, 4, 8))
    k = d.number(1, 7)
    shapes = [(b, q, h * w), (b, k, h * w), (b, k, h * w)]
    inputs: list[Any] = [d.array(np.float32, s) for s in shapes]
    attributes: dict[str, Any] = {"num_heads": h}
    attributes |= {"scale": 0.3} if d.chance(0.3) else {}
    inputs.append(d.array(np.float32, (3 * h * w,)) if d.chance(0.4) else None)
    inputs.append(None)
    if d.chance(0.3):
        inputs.append(d.array(np.float32, (1, h, q, k)))
    return _own("MultiHeadAttention", inputs, attributes)


MAKERS = {attention: 4, rotary: 2, gelus: 2, products: 3, norms: 2, few_bits: 2, quantised: 3,
          heads: 2}  # fmt: skip
"""The weight of each against the others."""
