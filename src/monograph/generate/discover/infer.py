"""Infers from the graph what an export does not state: roles of inputs and outputs, cache widths.

Roles follow from shapes and the ops around a value. Exporters leave sizes of caches open
(onnxruntime-genai writes `kv_cache_dim`) and state them in a configuration. The weights that
compute the rows of a cache have them too, and cannot be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


_KEEPING_WIDTH = {"Add", "Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
_KEEPING_WIDTH |= {"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
_KEEPING_WIDTH |= {"RotaryEmbedding"}
"""Ops between a product and a cache that keep the number of elements per token."""

_FAR = 32
"""The most ops that are followed back: a malformed graph may be circular."""


def attention_heads(s: Surgery, past: str) -> int | None:
    """Return the heads of keys and values from the op that reads a cache; None if unknown."""
    for node in s.readers[past]:
        for attribute in node.attribute:
            if attribute.name == "kv_num_heads":
                return int(attribute.i)
    return None


def row_width(s: Surgery, past: str) -> int | None:
    """Return the elements that a token adds to a cache, heads times size; None if unknown."""
    for node in s.readers[past]:
        names = list(node.input)
        if node.op_type == "Concat" and len(names) == 2 and names[0] == past:
            return _columns(s, names[1])
        if node.op_type == "GroupQueryAttention" and past in names[3:5]:
            own = names[names.index(past) - 2]
            return _columns(s, own) if own else _packed(s, node)
    return None


def _packed(s: Surgery, node: onnx.NodeProto) -> int | None:
    """Return the width of the keys in rows of packed queries, keys and values."""
    numbers = _numbers(node)
    queries, heads = numbers.get("num_heads", 0), numbers.get("kv_num_heads", 0)
    columns = _columns(s, node.input[0])
    return None if columns is None else _share(columns, heads, queries + 2 * heads)


def _columns(s: Surgery, name: str) -> int | None:
    """Return the elements per token of a value that a product with weights computes."""
    share, whole = 1, 1
    for _ in range(_FAR):
        node = s.producers.get(name)
        if node is None or not node.input:
            return None
        if node.op_type in ("Gemm", "MatMul", "MatMulNBits"):
            found = _product_columns(s, node)
            return None if found is None else _share(found, share, whole)
        if node.op_type == "Split":
            part, parts = _split_share(s, node, name)
            share, whole = share * part, whole * parts
        elif node.op_type not in _KEEPING_WIDTH:
            return None
        name = _only_source(s, node)
    return None


def _only_source(s: Surgery, node: onnx.NodeProto) -> str:
    """Return the one operand of an op that is not constant; "" if there is not exactly one."""
    if node.op_type != "Add":
        return str(node.input[0])
    made = [n for n in node.input if n not in s.constants and s.known(n) is None]
    return made[0] if len(made) == 1 else ""


def _product_columns(s: Surgery, node: onnx.NodeProto) -> int | None:
    numbers = _numbers(node)
    if node.op_type == "MatMulNBits":
        return numbers.get("N")
    weight = node.input[1] if len(node.input) > 1 else ""
    made = s.producers.get(weight)
    if made is not None and made.input and made.op_type in ("Cast", "DequantizeLinear"):
        weight = made.input[0]
    dims = list(s.constants[weight].dims) if weight in s.constants else []
    if len(dims) != 2:
        return None
    return int(dims[0] if numbers.get("transB") else dims[1])


def _split_share(s: Surgery, node: onnx.NodeProto, name: str) -> tuple[int, int]:
    """Return (part, whole) of one output of a Split; 0 if unknown."""
    place = list(node.output).index(name)
    sizes = next((list(a.ints) for a in node.attribute if a.name == "split"), None)
    if sizes is None and len(node.input) > 1 and node.input[1]:
        told = s.known(node.input[1])
        sizes = [0] if told is None else [int(n) for n in told.reshape(-1)]
    sizes = sizes or [1] * len(node.output)
    return (sizes[place], sum(sizes)) if len(sizes) == len(node.output) else (0, 1)


def _share(columns: int, part: int, whole: int) -> int | None:
    """Return a part of some columns, if it is a whole number."""
    if part <= 0 or whole <= 0 or columns * part % whole:
        return None
    return columns * part // whole


def _numbers(node: onnx.NodeProto) -> Mapping[str, Any]:
    return {a.name: a.i for a in node.attribute}
