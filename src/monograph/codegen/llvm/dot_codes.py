"""Constant weights of few bits: how they are read from the graph, and kernels that decode them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monograph.codegen.llvm.dot import DotKernel
from monograph.ir import Array, Value, known
from monograph.ops.quant import Dequantize, spread
from monograph.program.kinds import coded


@dataclass(frozen=True)
class Codes:
    """w[k, n] = codes[k, n] * scale[k // block, n] + shift[k // block, n]; codes from 0."""

    codes: Array
    scale: Array
    shift: Array
    block: int
    pairs: bool
    """Whether codes of 4 bits lie two to a byte."""


def decoded(weights: Value) -> Array:
    """Weights as floats."""
    data = known(weights)
    if data is None:
        data = weights.op.reference(*(decoded(v) for v in weights.inputs))
    return np.asarray(data)


def read_codes(weights: Value) -> Codes | None:
    """Constant weights as codes; None where their blocks do not lie along the depth."""
    source = coded(weights)
    assert source is not None
    assert isinstance(source.op, Dequantize)
    x, scale, *zero = (known(v) for v in source.inputs)
    assert x is not None
    assert scale is not None
    op = source.op
    views: list[Value] = []
    current = weights
    while current is not source:
        views.append(current)
        current = current.inputs[0]

    def viewed(array: Array) -> Array:
        for v in reversed(views):
            array = v.op.reference(array)
        return np.asarray(array)

    bits = source.inputs[0].dtype.bits
    signed = source.inputs[0].dtype.is_signed
    bias = 1 << (bits - 1) if signed else 0
    codes = viewed(x.astype(np.int16)) + bias
    scales = viewed(_spread(scale, x.shape, op))
    zeros = viewed(_spread(zero[0], x.shape, op)) if zero and zero[0] is not None else 0.0
    depth = codes.shape[0]
    block = op.block if 0 < op.block < depth else depth
    firsts = np.arange(0, depth, block)
    shifts = np.broadcast_to(-(zeros + bias) * scales, codes.shape)
    for array in (scales, shifts):
        if not np.array_equal(np.repeat(array[firsts], block, 0)[:depth], array):
            return None
    pairs = bits <= 4 and block % 2 == 0 and depth % 2 == 0
    return Codes(codes.astype(np.uint8), scales[firsts], shifts[firsts], block, pairs)


def _spread(parameter: Array, shape: tuple[int, ...], op: Dequantize) -> Array:
    wide = spread(parameter.astype(np.float64), shape, op.axis, op.block)
    return np.broadcast_to(wide, shape)


class Decoded(DotKernel):
    """Weights as plain floats, decoded while compiling."""

    def _known(self, w: Value) -> Array | None:
        return decoded(w)

    def _read(self) -> list[Value]:
        """Codes, scales and zero points are packed, unless something else reads them too."""
        region = self.context.step.region
        inside, stack = set[Value](), [self.anchor.inputs[1]]
        while stack:
            value = stack.pop()
            if value in region.body:
                inside.add(value)
                stack.extend(value.inputs)
        read = {v for u in region.body if u not in inside for v in u.inputs}
        return [v for v in region.inputs if v in read and v is not self.anchor.inputs[1]]
