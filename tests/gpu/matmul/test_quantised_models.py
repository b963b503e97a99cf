"""Models with quantised weights and tensors on the GPU target, as other tools write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import monograph
from tests.frontend.microsoft.nodes import data
from tests.frontend.microsoft.test_qoperator import quantised_network
from tests.frontend.microsoft.test_quant import tied_embeddings
from tests.gpu.against import TARGET


def test_a_model_in_qoperator_form(tmp_path: Path) -> None:
    model = quantised_network(tmp_path)
    feeds = {"x": data(1, 3, 8, 8, seed=9)}
    (y,), (expected,) = (monograph.load(model, target=t).run(feeds) for t in (TARGET, "reference"))
    # The last quantiser has 256 steps of 1/256; an edge between two may lie before it.
    assert np.abs(y - expected).max() <= 2 / 256


@pytest.mark.parametrize("zeros", [False, True])
def test_embeddings_that_are_tied_to_the_last_product(zeros: bool) -> None:
    model = tied_embeddings(1100, zeros)  # 69 KiB, which import does not fold
    feeds = {"ids": np.array([[0, 1099, 17]])}
    (y,), (expected,) = (monograph.load(model, target=t).run(feeds) for t in (TARGET, "reference"))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
