"""Attention of half precision is nearer to the exact answer than the data of ONNX's suite."""

from __future__ import annotations

import numpy as np
import pytest

import monograph
from tests.conformance.halves import BOUND, CLOSE, SEEDS, exact, feeds, inputs, model, off, stepwise

CAUSAL = pytest.mark.parametrize("causal", [False, True])


@CAUSAL
def test_the_suite_would_refuse_the_exact_answer_to_one_draw_in_twelve(causal: bool) -> None:
    def refused(seed: int) -> bool:
        right = exact(*inputs(seed), causal).astype(np.float16)
        return off(right, stepwise(*inputs(seed), causal)) > CLOSE

    assert sum(map(refused, range(100))) >= 8


@CAUSAL
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_targets_are_nearer_to_it(target: str, causal: bool) -> None:
    session = monograph.load(model(causal), target=target)
    for seed in SEEDS:
        given = inputs(seed)
        (y,) = session.run(feeds(given))
        right = exact(*given, causal)
        assert off(y, right) < min(BOUND, off(stepwise(*given, causal), right))
