"""Steps of the host between kernels read constants that no buffer holds."""

from __future__ import annotations

import numpy as np

import monograph
from tests.frontend.nodes import node_model
from tests.gpu.against import TARGET


def test_a_host_step_reads_a_constant_text() -> None:
    texts = np.array([["a", "b"], ["c", "d"]], object)
    model = node_model("Where", [np.array([True, False]), texts, texts[::-1]], constant=[2])
    session = monograph.load(model, TARGET, cache_dir="")
    (given,) = session.run({"x0": np.array([True, False]), "x1": texts})
    np.testing.assert_array_equal(given, [["a", "d"], ["c", "b"]])
