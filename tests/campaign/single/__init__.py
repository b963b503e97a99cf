"""Single ops: random operands and attributes of every op that ONNX Runtime also has."""

from __future__ import annotations

import numpy as np

from tests.campaign.case import Case, Node, single_model
from tests.campaign.draw import Draw
from tests.campaign.single import elementwise, fused, moves, sums, windows

FAMILIES = (elementwise, moves, sums, windows, fused)
MAKERS = [make for f in FAMILIES for make, weight in f.MAKERS.items() for _ in range(weight)]
SPECIAL = 0.12
"""The share of cases whose floats hold NaN, infinities and the like."""


def make(seed: int, number: int) -> Case:
    """The case of a seed and a number."""
    d = Draw(np.random.default_rng([seed, 1, number]))
    d.special = d.chance(SPECIAL)
    node: Node = d.some(MAKERS)(d)
    model, feeds = single_model(node, d)
    return Case("single", seed, number, model, (feeds,), d.special)
