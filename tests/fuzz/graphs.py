"""Random small graphs: samples of ops composed by type, and the shapes that big passes look for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from monograph.ir import Graph, TensorType, dtype
from tests.fuzz import layer_moves, plain_moves
from tests.fuzz.maker import Maker

FLOATS = ("f32", "f32", "f32", "f32", "f64", "f16", "bf16")
WEIGHTS: dict[Callable[[Maker], None], int] = {
    plain_moves.unary: 1,
    plain_moves.binary: 3,
    plain_moves.chain_of_constants: 1,
    plain_moves.select: 1,
    plain_moves.cast: 1,
    plain_moves.reshape: 2,
    plain_moves.transpose: 2,
    plain_moves.ones: 1,
    plain_moves.broadcast: 1,
    plain_moves.slice_: 1,
    plain_moves.split_work_join: 2,
    plain_moves.join: 1,
    plain_moves.pad: 1,
    plain_moves.lookups: 1,
    plain_moves.quantise: 1,
    plain_moves.branches: 1,
    plain_moves.sample: 3,
    layer_moves.layer: 2,
    layer_moves.towers: 2,
    layer_moves.sliced_rows: 1,
    layer_moves.conv_block: 2,
    layer_moves.conv_siblings: 1,
    layer_moves.pool: 1,
    layer_moves.product: 1,
    layer_moves.reduce: 1,
    layer_moves.softmax: 1,
    layer_moves.norm: 1,
    layer_moves.attention: 1,
    layer_moves.rope: 1,
}
"""The weight of each move against the others."""
MOVES = [move for move, weight in WEIGHTS.items() for _ in range(weight)]


def random_graph(seed: int) -> tuple[Graph, dict[str, Any]]:
    """The graph of a seed, and arrays to feed it."""
    generator = np.random.default_rng(seed)
    maker = Maker(generator)
    maker.float_type = maker.some(FLOATS)
    for _ in range(int(generator.integers(1, 4))):
        maker.input(TensorType(dtype(maker.float_type), maker.shape()))
    maker.grow(int(generator.integers(2, 14)), MOVES)
    graph = maker.graph()
    return graph, maker.feeds
