"""Infinities and NaN where padding or lanes beyond the last one could meet them.

`make test-gpu` runs every sample with such numbers; these are the ones that went wrong once.
"""

from __future__ import annotations

import pytest

from tests.cpu import sweep_cases
from tests.gpu.sweep_worker import problem

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
