"""Negative steps behind views: Triton's kernels use the same index maps as the CPU's."""

from __future__ import annotations

import os

import numpy as np
import pytest

import monograph
from tests.reversed_models import MODELS, Backwards

ON_DEVICE = os.environ.get("MONOGRAPH_TEST_DEVICE", "") == "cuda"
TARGET = "gpu" if ON_DEVICE else "gpu:interpreter"


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_reversed_view_stays_in_bounds(model: Backwards) -> None:
    session = monograph.load(model.model(), target=TARGET, cache_dir="")
    (y,) = session.run(model.feeds())
    np.testing.assert_allclose(y, model.expected(model.feeds()["x"]), rtol=1e-6, strict=True)
