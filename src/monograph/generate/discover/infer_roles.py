"""Roles of inputs and outputs without known names, found by shapes and by the ops around them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from monograph.generate.rewrite.surgery import Surgery

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
_PASSED = {"Cast", "Expand", "Identity", "Mul", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
"""Ops between a cache and the product that reads it."""
_PRODUCTS = {"MatMul", "Einsum", "FusedMatMul"}

Infos = Mapping[str, onnx.ValueInfoProto]


def find_tokens(inputs: Infos, others: set[str]) -> str | None:
    """Return the only integer matrix that is neither a mask nor positions."""
    found = [n for n, i in inputs.items() if n not in others and _is(i, _INTEGERS, 2)]
    return found[0] if len(found) == 1 else None


def find_logits(outputs: Infos) -> str | None:
    """Return the only float output [batch, sequence, vocabulary]."""
    found = [n for n, o in outputs.items() if _is(o, FLOATS, 3)]
    return found[0] if len(found) == 1 else None


def find_pair(s: Surgery, past: str, outputs: Infos) -> tuple[str, bool] | None:
    """Return the output of a cache and True for keys, False for values; None if it is no cache."""
    for node in s.readers[past]:
        names = list(node.input)
        if node.op_type == "GroupQueryAttention" and past in names[3:5]:
            slot = names.index(past) - 2
            made = node.output[slot] if len(node.output) > slot else ""
            return (made, slot == 1) if made in outputs else None
        if node.op_type == "Concat" and names[0] == past and node.output[0] in outputs:
            return node.output[0], not _meets_shares(s, node.output[0])
    return None


def find_pairs(s: Surgery, inputs: Infos, outputs: Infos) -> list[tuple[str, str, bool]]:
    """Return (input, output, True for keys) of float tensors with four axes that grow."""
    found = []
    for name, info in inputs.items():
        if _is(info, FLOATS, 4) and (pair := find_pair(s, name, outputs)):
            found.append((name, *pair))
    return found


def _meets_shares(s: Surgery, name: str) -> bool:
    """Return True if the first product of a value is with a Softmax result: values, not keys."""
    stack, seen = [name], {name}
    while stack:
        value = stack.pop()
        for node in s.readers[value]:
            if node.op_type in _PRODUCTS:
                return any(_is_softmax(s, n) for n in node.input if n != value)
            if node.op_type in _PASSED and node.output[0] not in seen:
                seen.add(node.output[0])
                stack.append(node.output[0])
    return False


def _is_softmax(s: Surgery, name: str) -> bool:
    node = s.producers.get(name)
    while node is not None and node.op_type in ("Cast", "Dropout", "Identity", "Where"):
        node = s.producers.get(node.input[1 if node.op_type == "Where" else 0])
    return node is not None and node.op_type == "Softmax"


def _is(info: onnx.ValueInfoProto, dtypes: tuple[int, ...], rank: int) -> bool:
    tensor = info.type.tensor_type
    return tensor.elem_type in dtypes and len(tensor.shape.dim) == rank
