"""Layers whose weights are codes of few bits, as `fuse_shared_input` joins them. Not a pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from monograph.ir import Constant, Value, constant, known
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Transpose


def is_coded_layer(value: Value) -> bool:
    """A dot with constants [k, n] that are decoded, with scales for each column."""
    if not isinstance(value.op, Dot) or not value.inputs[1].tensor.is_static:
        return False
    if isinstance(value.inputs[0].op, Constant) or not value.tensor.is_static:
        return False
    decoded, columns = _decoded(value)
    op = decoded.op
    if not isinstance(op, Dequantize) or decoded.tensor.rank != 2:
        return False
    if not all(isinstance(v.op, Constant) for v in decoded.inputs):
        return False
    parameters = [v.tensor.static for v in decoded.inputs[1:]]
    count = decoded.tensor.static[columns]
    if op.block:
        return op.axis == 1 - columns and all(s[columns] == count for s in parameters)
    return op.axis == columns and all(s == (count,) for s in parameters)


def coded_kind(layer: Value) -> tuple[object, ...]:
    """What layers must have in common; they may differ in how many columns they give."""
    decoded, columns = _decoded(layer)
    types = tuple(v.dtype.name for v in decoded.inputs)
    depth = decoded.tensor.static[1 - columns]
    return ("coded", layer.op.digest, decoded.op.digest, columns, depth, *types)


def joined_weights(layers: Sequence[Value]) -> Value:
    """The weights of layers of one kind side by side, still codes."""
    found = [_decoded(v) for v in layers]
    first, columns = found[0]
    operands = []
    for i, operand in enumerate(first.inputs):
        axis = columns if operand.tensor.rank == 2 else 0
        data = [d for v, _ in found if (d := known(v.inputs[i])) is not None]
        operands.append(constant(np.concatenate(data, axis)))
    whole = first.op(*operands)
    return whole if columns == 1 else Transpose((1, 0))(whole)


def _decoded(layer: Value) -> tuple[Value, int]:
    """What the weights of a layer are decoded by, and along which of its axes columns lie."""
    weights = layer.inputs[1]
    if isinstance(weights.op, Transpose) and weights.op.permutation == (1, 0):
        return weights.inputs[0], 0
    return weights, 1
