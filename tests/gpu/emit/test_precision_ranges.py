"""Graphs in which some values leave the range of f16: kernels of both types beside each other."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Graph, evaluate
from monograph.ops import elementwise as ew
from monograph.passes.base import Environment, run_pass
from monograph.passes.precision.convert_precision import ConvertPrecision
from tests.gpu.against import check
from tests.passes.test_convert_precision_ranges import layer, narrowing, pooled, tall, x
from tests.rules.checks import graph_of, random_feeds


@pytest.mark.parametrize(
    "before",
    [pooled(100.0), narrowing(2e-3), graph_of(ew.Sigmoid()(tall(x))), graph_of(layer(tall(x), 3))],
    ids=["sum", "vanishing", "saturating", "growing"],
)
def test_numbers_beyond_f16(before: Graph) -> None:
    after = run_pass(ConvertPrecision("f16"), before, Environment())
    feeds = random_feeds(before)
    (given,) = evaluate(after, feeds)
    assert np.isfinite(given).all()
    check(after, feeds)
