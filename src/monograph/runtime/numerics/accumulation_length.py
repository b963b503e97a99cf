"""How many terms are summed into one element of an op's result: what a tolerance grows with.

Sizes that are symbols count as one, so ask of a graph whose dimensions are bound. So do sums whose
length is data: elements that are scattered onto each other, samples that a region of interest
chooses itself, antialiasing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import singledispatch

from monograph.ir import Dim, Op, TensorType, Value
from monograph.ops.attention import Attention
from monograph.ops.composite import LayerNorm, LogSoftmax, RmsNorm, Softmax
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.deform import DeformConv
from monograph.ops.image import GridSample
from monograph.ops.index import Col2Im
from monograph.ops.linear import Det, Dot
from monograph.ops.pool import AveragePool, LpPool
from monograph.ops.recurrent import Gru, Lstm, Rnn
from monograph.ops.reduce import CumProd, CumSum, ReduceProd, ReduceSum
from monograph.ops.resize import CUBIC, LINEAR, Resize
from monograph.ops.roi import RoiAlign
from monograph.ops.signal import Dft
from monograph.ops.trees import TreeEnsemble
from monograph.program.legalise.recurrence import Recurrence

TAPS = {LINEAR: 2, CUBIC: 4}
"""Elements along one axis that an element between them is made of."""


def contraction(value: Value) -> int:
    """How many products or terms are summed into one element of a value; at least 1."""
    types = [v.type for v in value.inputs if isinstance(v.type, TensorType)]
    if len(types) < len(value.inputs) or any(t.shape is None for t in types):
        return 1
    return max(1, terms(value.op, *types))


@singledispatch
def terms(op: Op, *types: TensorType) -> int:
    """... by the op and the types of its operands."""
    return 1


@terms.register
def _(op: Dot, x: TensorType, y: TensorType) -> int:
    return max(_product(x.dims[-1:]), _product(y.dims[-2:-1]))


@terms.register
def _(op: Conv, x: TensorType, w: TensorType) -> int:
    return _product(w.dims[1:])


@terms.register
def _(op: ConvTranspose, x: TensorType, w: TensorType) -> int:
    # Of a kernel, only every so-many-th element meets the same element of the result.
    places = [-(-k // s) for k, s in zip(w.dims[2:], op.strides, strict=True) if isinstance(k, int)]
    return _product(w.dims[:1]) // op.groups * math.prod(places)


@terms.register
def _(op: DeformConv, x: TensorType, w: TensorType, *others: TensorType) -> int:
    return _product(w.dims[1:]) * int(2 ** (x.rank - 2))


@terms.register
def _(op: Attention, q: TensorType, k: TensorType, *others: TensorType) -> int:
    """A score is a sum over the head's size, a weight and a result are sums over the keys."""
    return _product(k.dims[3:]) + 2 * _product(k.dims[2:3])


@terms.register(Rnn)
@terms.register(Gru)
@terms.register(Lstm)
def _(op: Op, x: TensorType, w: TensorType, r: TensorType, *others: TensorType) -> int:
    """A sum over the input and the state at each step, one after the other."""
    return _product(x.dims[:1]) * (_product(w.dims[1:]) + _product(r.dims[1:]))


@terms.register
def _(op: Recurrence, given: TensorType, r: TensorType, *others: TensorType) -> int:
    """What is left of such a cell when the product with the input is a dot of its own."""
    return op.time * _product(r.dims[1:])


@terms.register(ReduceSum)
@terms.register(ReduceProd)
@terms.register(LayerNorm)
@terms.register(RmsNorm)
def _(op: ReduceSum | ReduceProd | LayerNorm | RmsNorm, x: TensorType, *others: TensorType) -> int:
    return _product(x.dims[a] for a in op.axes)


@terms.register(Softmax)
@terms.register(LogSoftmax)
@terms.register(CumSum)
@terms.register(CumProd)
def _(op: Softmax | LogSoftmax | CumSum | CumProd, x: TensorType) -> int:
    return _product([x.dims[op.axis]])


@terms.register(AveragePool)
@terms.register(LpPool)
def _(op: AveragePool | LpPool, x: TensorType) -> int:
    return _product(op.kernel)


@terms.register
def _(op: Dft, x: TensorType) -> int:
    return _product([x.dims[op.axis] if op.length is None else op.length])


@terms.register
def _(op: Det, x: TensorType) -> int:
    return _product(x.dims[-1:])


@terms.register
def _(op: Col2Im, x: TensorType) -> int:
    return _product(op.block)


@terms.register
def _(op: Resize, x: TensorType, *others: TensorType) -> int:
    return int(TAPS.get(op.mode, 1) ** len(op.axes))


@terms.register
def _(op: GridSample, x: TensorType, grid: TensorType) -> int:
    return int(TAPS.get(op.mode, 1) ** (x.rank - 2))


@terms.register
def _(op: RoiAlign, x: TensorType, *others: TensorType) -> int:
    return 4 * max(1, op.ratio) ** 2


@terms.register
def _(op: TreeEnsemble, x: TensorType) -> int:
    return int(op.roots.array.size)


def _product(dims: Iterable[Dim]) -> int:
    return math.prod(d for d in dims if isinstance(d, int))
