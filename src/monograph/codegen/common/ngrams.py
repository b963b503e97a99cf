"""The tables that kernels of n-gram counts read."""

from __future__ import annotations

import numpy as np

from monograph.ir import Array
from monograph.ops.text import Ngrams


def gram_tables(op: Ngrams) -> list[Array]:
    """Return the first gram of each column; length and first token of each gram;
    weights; tokens.
    """
    weights = op.weights or (1.0,) * len(op.columns)
    by_column: list[list[tuple[tuple[int, ...], float]]] = [[] for _ in range(max(op.columns) + 1)]
    for tokens, numbers in op.table().items():
        for number in numbers:
            by_column[op.columns[number]].append((tokens, weights[number]))
    starts = np.cumsum([0, *map(len, by_column)])
    grams = [gram for column in by_column for gram in column]
    lengths = [len(tokens) for tokens, _ in grams]
    places = np.cumsum([0, *lengths])[:-1]
    listed = [t for tokens, _ in grams for t in tokens]
    return [
        starts.astype(np.int64),
        np.array([*lengths, 0], np.int64),
        np.array([*places, 0], np.int64),
        np.array([*(w for _, w in grams), 0.0], np.float64),
        np.array([*listed, 0], np.int64),
    ]
