"""The activation whose rounding to integers changes a quantised model the most.

Every rounded activation adds a difference, so the first one says nothing about where a model is
badly quantised.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monograph.ir import Array, Value, known
from monograph.ops.quant import Dequantize, Quantize, integer_limits
from monograph.report.diff.compare import MODEL, ROUNDING, Culprit, DiffResult, Row
from monograph.report.diff.tensors import NodeInfo, OnnxTensors

QUANTISED = 0
"""The side of the quantised model; the other one is its twin in floats."""


def largest_rounding(found: DiffResult, tensors: OnnxTensors) -> DiffResult:
    """Blame the activation whose rounding adds the most, with the range of its integers.

    tensors: those of the quantised model.
    """
    row = found.largest
    if row is None or found.culprit is None or found.culprit.kind != MODEL:
        return found
    rounded = next((n for n in _made_at(row, tensors) if _quantise_of(tensors, n)), None)
    if rounded is None:
        return found
    quantise = _quantise_of(tensors, rounded)
    assert quantise is not None
    names = [rounded, *(n for n, v in tensors.codes.items() if v is quantise)]
    nodes = [tensors.made_by[n] for n in names if n in tensors.made_by]
    culprit = Culprit(
        ROUNDING,
        QUANTISED,
        row.tensor,
        _in_order(nodes, tensors),
        row.check,
        differences=_range_text(quantise, found.sides[1].points[row.tensor].data),
    )
    return replace(found, culprit=culprit)


def _made_at(row: Row, tensors: OnnxTensors) -> list[str]:
    """Return a tensor and those that are made between it and the tensors before."""
    own = row.own[QUANTISED]
    labels = () if own is None else own.nodes
    return [row.tensor, *(name for node in tensors.nodes_of(labels) for name in node.outputs)]


def _quantise_of(tensors: OnnxTensors, name: str) -> Value | None:
    """Return the op that rounds what a tensor stands for."""
    value = tensors.values.get(name)
    if value is None or not isinstance(value.op, Dequantize):
        return None
    made = value.inputs[0]
    return made if isinstance(made.op, Quantize) else None


def _in_order(nodes: list[NodeInfo], tensors: OnnxTensors) -> tuple[NodeInfo, ...]:
    return tuple(node for node in tensors.nodes if node in nodes)


def _range_text(quantise: Value, floats: Array) -> tuple[str, ...]:
    """Return what the integers can hold, beside the values that they stand for."""
    op, constants = quantise.op, [known(v) for v in quantise.inputs[1:]]
    assert isinstance(op, Quantize)
    numbers = [float(c.reshape(())) for c in constants if c is not None and c.size == 1]
    if op.to.is_float or len(numbers) < len(constants) or not floats.size:
        return ()
    step, zero = numbers[0], int(numbers[1]) if len(numbers) > 1 else 0
    least, most = ((limit - zero) * step for limit in integer_limits(op.to))
    values = floats.astype(np.float64)
    clipped = float(np.mean((values < least - step / 2) | (values > most + step / 2)))
    return (
        f"scale {step:.3g}, zero point {zero}: holds {least:.3g} to {most:.3g}",
        f"values lie between {values.min():.3g} and {values.max():.3g}: {clipped:.1%} are clipped",
    )
