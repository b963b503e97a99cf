"""Negative steps behind views: addresses that divide what runs backwards."""

from __future__ import annotations

import numpy as np
import pytest

import monograph
from tests.reversed_models import MODELS, Backwards


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_reversed_view_stays_in_bounds(model: Backwards, threads: int) -> None:
    session = monograph.load(model.model(), threads=threads, cache_dir="")
    (y,) = session.run(model.feeds())
    np.testing.assert_allclose(y, model.expected(model.feeds()["x"]), rtol=1e-6, strict=True)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_reference_agrees_with_numpy(model: Backwards) -> None:
    (y,) = monograph.load(model.model(), target="reference").run(model.feeds())
    np.testing.assert_allclose(y, model.expected(model.feeds()["x"]), rtol=1e-6, strict=True)
