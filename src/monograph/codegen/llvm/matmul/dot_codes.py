"""Constant weights of few bits: reading them from the graph, and kernels that decode them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monograph.codegen.llvm.matmul.dot import DotKernel
from monograph.ir import Array, DType, Value, known
from monograph.ops.quant import Dequantize, spread
from monograph.ops.shape import Transpose
from monograph.program.fusion.op_classes import coded


@dataclass(frozen=True)
class QuantisedWeights:
    """w[k, n] = (number - zeros[k // block, n]) * scale[k // block, n].

    The number of an integer's code is the code itself; signed ones count from the lowest. A float's
    code is its bits. Scales and zeros are f64, [blocks, columns].
    """

    codes: Array
    scale: Array
    zeros: Array
    block: int
    dtype: DType

    @property
    def middle(self) -> int | None:
        """Return the whole number that is subtracted from all codes, if there is only one."""
        first = self.zeros.flat[0] if self.zeros.size else 0.0
        whole = first == np.rint(first) and 0 <= first < 256
        return int(first) if whole and bool((self.zeros == first).all()) else None

    @property
    def shift(self) -> Array:
        """The addend of a scaled number."""
        return np.asarray(-self.zeros * self.scale)


def decoded(weights: Value) -> Array:
    """Weights as floats."""
    data = known(weights)
    if data is None:
        data = weights.op.reference(*(decoded(v) for v in weights.inputs))
    return np.asarray(data)


def read_codes(weights: Value) -> QuantisedWeights | None:
    """Return constant weights as codes; None if their blocks are not along the depth."""
    source = coded(weights)
    assert source is not None
    x, scale, *zero = (known(v) for v in source.inputs)
    assert x is not None
    assert scale is not None
    views = _views(weights, source)
    of = source.inputs[0].dtype
    bias = 1 << (of.bits - 1) if of.is_signed and not of.is_float else 0
    codes = x.view(np.uint8) if of.is_float else (x.astype(np.int16) + bias).astype(np.uint8)
    codes = _viewed(codes, views)
    zero_point = np.zeros(()) if not zero or zero[0] is None else zero[0]
    spreads = [_blocks(p, source, views) for p in (scale, zero_point)]
    if spreads[0] is None or spreads[1] is None:
        return None
    depth, columns = codes.shape
    blocks = max(len(p) for p in spreads if p is not None)
    op = source.op
    assert isinstance(op, Dequantize)
    block = op.block if blocks > 1 else max(depth, 1)
    scales, zeros = (np.broadcast_to(p, (blocks, columns)) for p in spreads if p is not None)
    return QuantisedWeights(codes, scales, zeros + bias, block, of)


def _views(weights: Value, source: Value) -> list[Value]:
    """The views between decoded weights and their use, the innermost first."""
    views: list[Value] = []
    while weights is not source:
        views.insert(0, weights)
        weights = weights.inputs[0]
    return views


def _viewed(array: Array, views: list[Value]) -> Array:
    for v in views:
        array = v.op.reference(array)
    return np.asarray(array)


def _blocks(parameter: Array, source: Value, views: list[Value]) -> Array | None:
    """Return a scale or zero point as [blocks along the depth, columns], in f64; either
    may be 1.
    """
    op, shape = source.op, source.tensor.static
    assert isinstance(op, Dequantize)
    wide = parameter.astype(np.float64)
    if op.axis is None or wide.size == 1:
        return wide.reshape(1, 1)
    if len(shape) == 2 and all(isinstance(v.op, Transpose) for v in views):
        flipped = sum(v.op == Transpose((1, 0)) for v in views) % 2 == 1
        along = op.axis == (1 if flipped else 0)
        if op.block == 0:
            return None if along else wide.reshape(1, -1)
        if along:
            return wide.T if flipped else wide
    full = _viewed(np.broadcast_to(spread(wide, shape, op.axis, op.block), shape), views)
    depth = len(full)
    block = op.block if 0 < op.block < depth else max(depth, 1)
    firsts = full[::block]
    return firsts if np.array_equal(np.repeat(firsts, block, 0)[:depth], full) else None


class Decoded(DotKernel):
    """Weights as plain floats, decoded at compile time."""

    def _known(self, w: Value) -> Array | None:
        return decoded(w)

    def _read(self) -> Sequence[Value]:
        """Return the inputs: codes, scales and zero points only if the epilogue reads them too."""
        region = self.context.step.region
        inside, stack = set[Value](), [self.anchor.inputs[1]]
        while stack:
            value = stack.pop()
            if value in region.body:
                inside.add(value)
                stack.extend(value.inputs)
        read = {v for u in region.body if u not in inside for v in u.inputs}
        return [v for v in region.inputs_besides(1) if v in read]
