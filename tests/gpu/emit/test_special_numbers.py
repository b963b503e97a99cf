"""Infinities and NaN where padding or lanes beyond the last one could meet them.

`make test-gpu` runs every sample with such numbers; these are the ones that went wrong once.
"""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import constant
from monograph.ops.conv_transpose import ConvTranspose
from tests.cpu import sweep_cases
from tests.cpu.against import feeds_for
from tests.cpu.conv.test_conv_infinities import LAST, odd_weights, padded
from tests.gpu.against import check
from tests.gpu.sweep_worker import problem
from tests.rules.checks import graph_of, value

NAMES = (
    "conv_transpose-0-inf",
    "conv_transpose-3-dense",
    "couple_probabilities-1-nan",
    "gru-0-inf",
)
CASES = {c.name: c for c in sweep_cases.specials() if c.name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_special_numbers(name: str) -> None:
    assert problem(CASES[name]) is None


@pytest.mark.parametrize(
    ("x", "w", "groups"),
    [
        ("f32[1, 5, 4, 2]", (3, 2, 1, 1), 1),
        ("f32[1, 6, 5, 3]", (5, 3, 3, 3), 1),
        ("f32[1, 5, 4, 32]", (3, 32, 3, 2), 1),
        ("f32[1, 5, 4, 6]", (6, 1, 3, 3), 6),
        ("f32[1, 5, 4, 4]", (6, 2, 2, 3), 2),
    ],
    ids=["1x1", "runs", "implicit", "depthwise", "grouped"],
)
def test_padding_times_an_infinity_is_nan(x: str, w: tuple[int, ...], groups: int) -> None:
    op, given = padded(w, (1, 2), groups), value(x)
    weights = odd_weights(w)
    graph = graph_of(op(given, constant(weights)))
    check(graph, feeds_for(graph), every=False)


@pytest.mark.parametrize("kernel", [(2, 2), (3, 4)])
def test_transposed_multiplies_only_what_is_there(kernel: tuple[int, int]) -> None:
    op = ConvTranspose((2, 1), (0, 0), (0, 0), (1, 1), (1, 0), layout=LAST)
    w = np.ones((2, 3, *kernel), np.float32)
    w[0, :, 1, 1] = np.inf, -np.inf, np.nan
    graph = graph_of(op(value("f32[1, 3, 4, 2]"), constant(w)))
    check(graph, feeds_for(graph), every=False)
