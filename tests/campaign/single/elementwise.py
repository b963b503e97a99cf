"""Random single ops that work element by element."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.campaign.case import Node
from tests.campaign.draw import Draw, numpy_type

UNARY = (
    "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Sqrt", "Exp", "Log", "Erf", "Sin", "Cos",
    "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Reciprocal",
    "Sigmoid", "Relu", "Softplus", "Softsign", "IsNaN", "Not", "BitwiseNot", "HardSwish", "Mish",
    "Identity",
)  # fmt: skip
SHAPED = {
    "Elu": ("alpha",), "Selu": ("alpha", "gamma"), "Celu": ("alpha",), "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Shrink": ("bias", "lambd"),
    "Swish": ("alpha",),
}  # fmt: skip
BINARY = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu", "And", "Or", "Xor", "BitwiseAnd",
    "BitwiseOr", "BitwiseXor", "BitShift", "Equal", "Greater", "Less", "GreaterOrEqual",
    "LessOrEqual",
)  # fmt: skip
VARIADIC = ("Max", "Min", "Mean", "Sum")
CASTS = (
    "float32", "float16", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8",
    "uint16", "uint32", "uint64", "bool", "object",
)  # fmt: skip
NARROW = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int4", "uint4")
INSIDE = {"Asin": (-1, 1), "Acos": (-1, 1), "Atanh": (-0.9, 0.9), "Acosh": (1, 5), "Log": (0.1, 9),
          "Sqrt": (0, 9)}  # fmt: skip
"""The range in which a function has numbers for results."""


def unary(d: Draw) -> Node:
    op = d.some(UNARY)
    opset = d.opset(op)
    kind = d.type_of(op, opset)
    low, high = INSIDE.get(op, (None, None)) if not d.special and d.chance(0.8) else (None, None)
    return Node(op, [d.array(kind, d.shape(), low, high)], opset=opset)


def shaped(d: Draw) -> Node:
    op = d.some([*SHAPED, "Gelu", "IsInf"])
    opset = d.opset(op)
    attributes: dict[str, object] = {}
    if op == "Gelu":
        attributes = {"approximate": d.some(("none", "tanh"))} if d.chance(0.7) else {}
    elif op == "IsInf":
        names = ("detect_negative", "detect_positive")
        attributes = {n: d.number(0, 1) for n in names if d.chance(0.6)}
    else:
        attributes = {n: d.some((0.5, 1.0, 0.25, 2.0)) for n in SHAPED[op] if d.chance(0.6)}
    kind = d.type_of(op, opset)
    return Node(op, [d.array(kind, d.shape())], attributes, opset=opset)


def binary(d: Draw) -> Node:
    op = d.some(BINARY)
    opset = d.opset(op)
    kind = d.type_of(op, opset)
    shape = d.shape()
    other, attributes = kind, {}
    if op == "Pow" and d.chance(0.4):
        other = d.type_of(op, opset, "T1")
    if op == "Mod" and (kind.kind in "fV" or d.chance(0.3)):
        attributes = {"fmod": 1}
    if op == "BitShift":
        attributes = {"direction": d.some(("LEFT", "RIGHT"))}
    a = d.array(kind, shape)
    b = d.array(other, d.like(shape))
    if op in ("Div", "Mod") and kind.kind in "iu":
        b = np.where(b == 0, np.ones_like(b), b)  # what x / 0 is, nobody says
        b = np.where((a.min(initial=0) < -100) & (b == -1), np.ones_like(b), b)
    if op == "Pow" and not d.special:
        a = np.abs(a) if other.kind in "fV" and kind.kind in "fV" else a
        b = np.minimum(np.abs(b), b.dtype.type(3)) if b.size else b
    if op == "BitShift":
        b = np.minimum(b, b.dtype.type(b.dtype.itemsize * 8 - 1))
    operands = [b, a] if op not in ("PRelu", "Pow", "BitShift", "Div", "Mod") and d.chance(0.3) \
        else [a, b]  # fmt: skip
    return Node(op, operands, attributes, opset=opset, maybe={1} if d.chance(0.4) else set())


def variadic(d: Draw) -> Node:
    op = d.some(VARIADIC)
    opset = d.opset(op)
    kind, shape = d.type_of(op, opset), d.shape()
    count = d.some((1, 2, 2, 3, 4))
    return Node(op, [d.array(kind, d.like(shape)) for _ in range(count)], opset=opset)


def clip(d: Draw) -> Node:
    opset = d.opset("Clip")
    kind = d.type_of("Clip", opset)
    bounds = [None if d.chance(0.3) else d.array(kind, ()) for _ in range(2)]
    if bounds[0] is not None and bounds[1] is not None and d.chance(0.8):
        bounds = sorted(bounds, key=lambda x: float(x))  # type: ignore[arg-type]
    return Node("Clip", [d.array(kind, d.shape()), *bounds], opset=opset, maybe={1, 2})


def where(d: Draw) -> Node:
    opset = d.opset("Where")
    kind, shape = d.type_of("Where", opset, "T"), d.shape()
    operands = [d.array(bool, d.like(shape)), d.array(kind, shape), d.array(kind, d.like(shape))]
    return Node("Where", operands, opset=opset)


def cast(d: Draw) -> Node:
    source = numpy_type(d.some(CASTS[:-1]))
    target = numpy_type(d.some(NARROW if d.chance(0.15) else CASTS[:-1]))
    opset = 21 if target.name in ("int4", "uint4") else d.opset("Cast", 19)
    x = d.array(source, d.shape())
    if target.kind in "iu" and source.kind in "fV" and not d.special:
        lowest = 0 if target.kind == "u" or target.name == "uint4" else -7
        x = d.array(source, x.shape, lowest, 7)
    if d.chance(0.2):
        inputs = [x, d.array(target, d.shape(0, 2)) if target.name in CASTS else None]
        if inputs[1] is not None:
            return Node("CastLike", inputs, opset=opset)
    element = _element(target)
    attributes = {"to": element}
    if target.name.startswith("float8") and d.chance(0.5):
        attributes["saturate"] = d.number(0, 1)
    return Node("Cast", [x], attributes, opset=opset)


def _element(kind: np.dtype) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(kind))


def bit_cast(d: Draw) -> Node:
    widths = {1: ("int8", "uint8"), 2: ("float16", "int16", "uint16", "bfloat16"),
              4: ("float32", "int32", "uint32"), 8: ("float64", "int64", "uint64")}  # fmt: skip
    names = widths[d.some((1, 2, 4, 8))]
    kind = numpy_type(d.some(names))
    return Node("BitCast", [d.array(kind, d.shape())], {"to": _element(numpy_type(d.some(names)))},
                opset=26)  # fmt: skip


def dropout(d: Draw) -> Node:
    opset = d.opset("Dropout")
    kind = d.type_of("Dropout", opset)
    ratio = np.array(0.5, np.float32) if d.chance(0.5) else None
    training = np.array(False) if ratio is not None and d.chance(0.5) else None
    inputs = [d.array(kind, d.shape()), ratio, training]
    return Node("Dropout", inputs, outputs=d.number(1, 2), opset=opset, constant={1, 2})


def losses(d: Draw) -> Node:
    op = d.some(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"))
    classes, shape = d.number(1, 6), d.shape(0, 2, empty=0)
    batch = d.number(1, 4)
    scores = d.array(np.float32, (batch, classes, *shape))
    if op[0] == "N":
        scores = -np.abs(scores)
    labels = d.array(np.int64, (batch, *shape), 0, classes - 1)
    attributes: dict[str, object] = {}
    if d.chance(0.6):
        attributes["reduction"] = d.some(("mean", "sum", "none"))
    if d.chance(0.4):
        attributes["ignore_index"] = int(labels.reshape(-1)[0])
    if attributes.get("reduction", "mean") == "mean" and labels.size:
        labels.reshape(-1)[-1] = (int(labels.reshape(-1)[0]) + 1) % classes  # not 0 / 0
        attributes.pop("ignore_index", None) if classes == 1 else None
    weights = np.abs(d.array(np.float32, (classes,), 0.1, 2.0)) if d.chance(0.5) else None
    outputs = d.number(1, 2) if op[0] == "S" else 1
    return Node(op, [scores, labels, weights], attributes, outputs, d.opset(op))


def windows(d: Draw) -> Node:
    op = d.some(("HannWindow", "HammingWindow", "BlackmanWindow"))
    attributes: dict[str, object] = {}
    if d.chance(0.5):
        attributes["periodic"] = d.number(0, 1)
    if d.chance(0.3):
        attributes["output_datatype"] = d.some((TensorProto.FLOAT, TensorProto.DOUBLE))
    size = np.array(d.number(1, 20), d.some((np.int32, np.int64)))
    return Node(op, [size], attributes, opset=d.opset(op))


MAKERS = {unary: 10, shaped: 4, binary: 8, variadic: 2, clip: 2, where: 2, cast: 5, bit_cast: 1,
          dropout: 1, losses: 1, windows: 1}  # fmt: skip
"""The weight of each against the others."""
