"""Grams among tokens that are numbers."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Literal
from monograph.ops.elementwise import Exp
from monograph.ops.text import Ngrams
from tests.cpu.indexing.moving import FEATURES, THREADS, check
from tests.rules.checks import graph_of, value
from tests.samples import sample_graph

rng = np.random.default_rng(0)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("threads", THREADS)
def test_samples(features, threads: int) -> None:
    made = [sample_graph(Ngrams, sample) for sample in Ngrams.samples]
    numbers = [(g, feeds) for g, feeds in made if not g.input_types[0].dtype.is_string]
    assert numbers
    for graph, feeds in numbers:
        check(graph, feeds, features=features, threads=threads)


@pytest.mark.parametrize("skips", [0, 1, 5])
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("lengths", [(1, 2), (2, 3), (1, 3)], ids=str)
def test_grams_of_any_length(skips: int, once: bool, lengths: tuple[int, int]) -> None:
    """Three 1-grams, four 2-grams and three 3-grams of few tokens, some of them twice."""
    pool = Literal(rng.integers(0, 4, 3 + 8 + 9))
    columns = tuple(map(int, rng.integers(0, 7, 10)))
    weights = tuple(float(w) for w in rng.normal(size=10).astype(np.float32))
    op = Ngrams(pool, (0, 3, 11), columns, *lengths, skips, once, weights)
    for text in ("i32[9]", "i64[3, 8]", "i32[2, 1]", "i64[0, 4]", "i32[2, 0]"):
        x = value(text)
        data = rng.integers(0, 4, x.tensor.static).astype(x.dtype.numpy)
        check(graph_of(op(x), Exp()(op(x))), {"x": data})
