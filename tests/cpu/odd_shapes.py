"""Graphs of shapes that loops and tiles get wrong first: 0, 1, primes, no dimension, eight."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from monograph.ir import Graph, Value, constant, unpack
from monograph.ir.dtype import i32
from monograph.ops.attention import Attention
from monograph.ops.cast import Cast
from monograph.ops.composite import LayerNorm, RmsNorm, Silu, Softmax
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Clip, Less, Max, Mul, Where
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad
from monograph.ops.pool import AveragePool, MaxPool
from monograph.ops.reduce import ArgMax, CumSum, ReduceMax, ReduceSum
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Transpose
from monograph.ops.sort import TopK
from tests.rules.checks import graph_of, value

SHAPES: tuple[tuple[int, ...], ...] = (
    (), (0,), (1,), (17,), (1031,), (0, 5), (5, 0), (1, 1), (1, 13), (13, 1), (7, 33), (2, 0, 3),
    (3, 1, 5), (11, 3, 19), (1, 3, 1, 7), (2, 3, 5, 7), (0, 2, 0, 2), (1,) * 8,
    (2, 1, 3, 1, 2, 1, 5, 1), (1, 2, 2, 1, 2, 2, 1, 3),
)  # fmt: skip
IMAGES = (
    (1, 1, 1, 1), (0, 5, 5, 3), (1, 2, 3, 1), (1, 7, 5, 17), (2, 5, 1, 31), (3, 1, 11, 2),
    (1, 13, 13, 16), (1, 4, 4, 37), (2, 9, 6, 64),
)  # fmt: skip
"""[N, H, W, C]."""
DOTS = (
    (1, 1, 1), (1, 1, 37), (1, 37, 1), (37, 1, 1), (5, 0, 3), (0, 4, 3), (4, 3, 0), (13, 17, 19),
    (1, 257, 31), (31, 127, 1), (7, 3, 101),
)  # fmt: skip
HEADS = (
    (1, 1, 1, 1, 1),
    (0, 2, 3, 4, 5),
    (2, 0, 3, 4, 5),
    (1, 2, 1, 17, 3),
    (1, 3, 7, 1, 5),
    (2, 1, 5, 13, 31),
)
"""Batch, heads, queries, keys, depth of attention."""


def odd_graphs() -> Iterator[tuple[str, Graph]]:
    """Graphs under their names; each has several outputs."""
    for shape in SHAPES:
        for make in (_elements, _moves, _rows):
            if made := make(shape):
                yield f"{make.__name__[1:]} of {list(shape)}", graph_of(*made)
    for shape in IMAGES:
        yield f"windows over {list(shape)}", graph_of(*_windows(shape))
    for sizes in DOTS:
        yield f"dot of {list(sizes)}", graph_of(*_dots(*sizes))
    for heads in HEADS:
        yield f"attention of {list(heads)}", graph_of(*_attention(*heads))


def _input(shape: tuple[int, ...], name: str = "x", kind: str = "f32") -> Value:
    return value(f"{kind}[{', '.join(map(str, shape))}]", name)


def _weights(*shape: int) -> Value:
    data = np.random.default_rng(len(shape)).normal(size=shape)
    return constant(data.astype(np.float32))


def _elements(shape: tuple[int, ...]) -> list[Value]:
    x, y = _input(shape), _input(shape[1:], "y")
    half = _input(shape, "h", "f16")
    return [
        Silu()(Add()(Mul()(x, x), y)),
        Where()(Less()(x, y), x, Broadcast(shape)(y)),
        Cast(i32)(Clip(-2.0, 2.0)(x)),
        Max()(half, Mul()(half, half)),
    ]


def _moves(shape: tuple[int, ...]) -> list[Value]:
    x = _input(shape)
    if not shape:
        return [Reshape((1, 1))(x), Broadcast((3, 1, 5))(x)]
    backwards = Transpose(tuple(reversed(range(len(shape)))))(x)
    whole = Slice((-1,) * len(shape), (-1 - max(shape) - 1,) * len(shape), (-1,) * len(shape))
    made = [
        Silu()(backwards),
        Concat(0)(x, Add()(x, x), x),
        Concat(len(shape) - 1)(x, Silu()(x)),
        Pad(*[(1,) * len(shape)] * 2)(x),
        whole(x),
        Reshape((x.tensor.size,))(backwards),
    ]
    if shape[0]:
        made.append(Gather(0)(x, constant(np.array([-1, 0, 0], np.int64))))
    return made


def _rows(shape: tuple[int, ...]) -> list[Value]:
    if not shape:
        return [ReduceSum(())(_input(shape))]
    x, last = _input(shape), len(shape) - 1
    made = [ReduceSum((0,))(x), ReduceSum((last,))(x), ReduceMax((last,), keep=True)(x)]
    made += [ReduceSum(tuple(range(len(shape))))(x), CumSum(last)(x), CumSum(0)(x)]
    if shape[last]:
        made += [Softmax(last)(x), LayerNorm((last,))(x), RmsNorm((last,))(x), ArgMax(last)(x)]
        made += unpack(TopK(min(3, shape[last]), last)(x))
    if shape[0]:
        made += [Softmax(0)(x), ArgMax(0)(x)]
    return made


def _windows(shape: tuple[int, ...]) -> list[Value]:
    """Convolutions of every kernel's kind, and pools, over what is computed and over the input."""
    x, channels = _input(shape), shape[-1]
    made = []
    for size, stride, groups in ((1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, channels), (5, 1, 1)):
        pad = ((size // 2,) * 2,) * 2
        op = Conv((stride,) * 2, *pad, (1, 1), groups=groups, layout="channels_last")
        results = channels if groups > 1 else 19
        weights = _weights(results, channels // groups, size, size)
        made.append(op(Silu()(x), weights))
        made.append(Silu()(op(x, weights)))
    for pool in (MaxPool, AveragePool):
        made.append(pool((3, 3), (2, 2), (1, 1), (1, 1), (1, 1), layout="channels_last")(x))
    return made


def _dots(m: int, k: int, n: int) -> list[Value]:
    x, y = _input((m, k)), _input((k, n), "y")
    return [Dot()(x, y), Silu()(Dot()(x, _weights(k, n))), Dot()(_input((3, m, k), "z"), y)]


def _attention(batch: int, heads: int, queries: int, keys: int, depth: int) -> list[Value]:
    q = _input((batch, heads, queries, depth), "q")
    k, v = (_input((batch, heads, keys, depth), n) for n in "kv")
    return [Attention()(q, k, v), Attention(causal=True)(q, k, v)]
