"""ONNX's cases of dropout in training that `left_out.py` leaves out: all but the draw itself."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.backend.test.case.node import collect_testcases

import monograph
from tests.conformance.left_out import LEFT_OUT, NUMPY_DRAW

CASES = {c.name: c for c in collect_testcases("Dropout") if LEFT_OUT.get(c.name) == NUMPY_DRAW}


def test_these_are_all() -> None:
    assert set(CASES) == {name for name, reason in LEFT_OUT.items() if reason == NUMPY_DRAW}


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_elements_are_dropped_or_scaled(name: str, target: str) -> None:
    case = CASES[name]
    inputs, expected = case.data_sets[0]
    feeds = {info.name: x for info, x in zip(case.model.graph.input, inputs, strict=True)}
    first, second = (
        monograph.load(case.model, target=target, cache_dir="").run(feeds) for _ in range(2)
    )
    for a, b, like in zip(first, second, expected, strict=True):
        np.testing.assert_array_equal(a, b)  # by the seed
        assert (a.dtype, a.shape) == (like.dtype, like.shape)
    x, (y, *mask) = inputs[0], first
    ratio = inputs[1] if len(inputs) > 1 else 0.5
    kept = y != 0
    assert 0 < kept.sum() < kept.size
    np.testing.assert_allclose(y, np.where(kept, x / (1 - ratio), 0), 1e-6)
    for given in mask:
        np.testing.assert_array_equal(given, kept)
