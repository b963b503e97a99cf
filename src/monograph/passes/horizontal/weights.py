"""Constant weights of several layers as one constant: plain numbers, or codes of few bits.

Codes stay codes: their scales and zero points are joined too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from monograph.ir import Array, Constant, Value, constant, known
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Reshape, Transpose


def decoded(weights: Value) -> tuple[Value, int]:
    """The op that decodes weights [k, n], and the axis of their columns."""
    if isinstance(weights.op, Transpose) and weights.op.permutation == (1, 0):
        return weights.inputs[0], 0
    return weights, 1


def are_codes(weights: Value) -> bool:
    """Return True for a matrix of constants that are decoded, transposed or not."""
    source, _ = decoded(weights)
    if not isinstance(source.op, Dequantize) or not source.tensor.is_static:
        return False
    constants = all(isinstance(v.op, Constant) for v in source.inputs)
    return constants and source.tensor.rank == 2


def are_constant(weights: Value) -> bool:
    """Return True for weights that are known: numbers, or codes."""
    return isinstance(weights.op, Constant) or are_codes(weights)


def weights_kind(weights: Value) -> tuple[object, ...]:
    """The properties that weights must share to be stacked."""
    if isinstance(weights.op, Constant):
        return ("constant", str(weights.type))
    source, columns = decoded(weights)
    types = (str(v.type) for v in source.inputs)
    return ("codes", source.op.digest, columns, *types)


def has_column_scales(weights: Value) -> bool:
    """Return True for codes whose columns can lie beside other columns: each has own scales."""
    if not are_codes(weights):
        return False
    source, columns = decoded(weights)
    op = source.op
    assert isinstance(op, Dequantize)
    parameters = [v.tensor.static for v in source.inputs[1:]]
    count = source.tensor.static[columns]
    if op.block:
        return op.axis == 1 - columns and all(s[columns] == count for s in parameters)
    return op.axis == columns and all(s == (count,) for s in parameters)


def columns_kind(weights: Value) -> tuple[object, ...]:
    """The properties that codes must share to lie side by side; their columns may differ."""
    source, columns = decoded(weights)
    types = tuple(v.dtype.name for v in source.inputs)
    depth = source.tensor.static[1 - columns]
    return ("codes", source.op.digest, columns, depth, *types)


def join_columns(weights: Sequence[Value]) -> Value:
    """Codes of one kind side by side."""
    found = [decoded(w) for w in weights]
    first, columns = found[0]
    operands = []
    for i, operand in enumerate(first.inputs):
        axis = columns if operand.tensor.rank == 2 else 0
        data = [d for v, _ in found if (d := known(v.inputs[i])) is not None]
        operands.append(constant(np.concatenate(data, axis)))
    whole = first.op(*operands)
    return whole if columns == 1 else Transpose((1, 0))(whole)


def stack_weights(weights: Sequence[Value], rank: int) -> Value:
    """Weights of one kind along a new first axis, for members of this rank."""
    if isinstance(weights[0].op, Constant):
        data = np.stack([d for w in weights if (d := known(w)) is not None])
        shape = (len(weights), *(1,) * (rank - data.ndim + 1), *data.shape[1:])
        return constant(data.reshape(shape))
    stacked = _stack_codes(weights)
    shape = stacked.tensor.static
    between = (1,) * (rank - stacked.tensor.rank + 1)
    return Reshape((shape[0], *between, *shape[1:]))(stacked) if between else stacked


def _stack_codes(weights: Sequence[Value]) -> Value:
    """Codes along a new first axis, with a scale for each block of every column."""
    found = [decoded(w)[0] for w in weights]
    first, columns = decoded(weights[0])
    op = first.op
    assert isinstance(op, Dequantize)
    depth = first.tensor.static[1 - columns]
    operands = [_stacked_operand(found, 0)]
    for i in range(1, len(first.inputs)):
        data = _stacked_operand(found, i)
        if not op.block:
            wide = [len(weights), 1, 1]
            wide[1 + columns] = first.tensor.static[columns]
            given = [len(weights), 1, 1]
            given[1 + columns] = -1
            data = np.broadcast_to(data.reshape(given), wide)
        operands.append(data)
    whole = Dequantize(op.to, 2 - columns, op.block or max(depth, 1))(*map(constant, operands))
    return whole if columns == 1 else Transpose((0, 2, 1))(whole)


def _stacked_operand(decoders: Sequence[Value], index: int) -> Array:
    arrays = [data for v in decoders if (data := known(v.inputs[index])) is not None]
    return np.stack(arrays)
