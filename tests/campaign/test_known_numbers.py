"""Rules about precision and limits excuse what the other side computes, and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.campaign import known_numbers as known
from tests.campaign.differences import Seen, explain
from tests.campaign.judge import judge
from tests.campaign.sides import Outcome
from tests.campaign.test_known_operands import i64
from tests.campaign.test_known_values import judged

nan, inf = np.nan, np.inf
LOWEST = np.finfo(np.float32).min
IMAGE = np.float32([[[[2.0, -1.5, 0.5], [1.0, -2.0, 0.25], [0.0, 1.0, -1.0]]]])
PLACES = np.float32([[[[0.31, -0.77], [0.9, 0.1]]]])
Case = tuple[Callable[[Seen], bool], str, list[Any], dict[str, Any], list[float], list[float]]


CASES: list[Case] = [
    # The rule, the op, its operands and attributes; what an element is off by that the rule
    # excuses, and by what the same element is then wrong.
    (known.rough_sigmoid, "Swish", [np.float32([-12, 1, nan])], {}, [2e-6, 0, 0], [4e-6, 0, 0]),
    (known.rough_sigmoid, "Swish", [np.float32([-12, 1])], {}, [2e-6, 0], [0, 2e-6]),
    (known.rounded_samples, "GridSample", [IMAGE, PLACES], {"mode": "cubic"}, [2e-6, 0], [4e-6, 0]),
    (known.mixed_rests, "DFT", [np.float32([2**31, 1, -inf, 0]).reshape(1, 2, 2, 1), None, i64(1)],
     {}, [0, 0, 400, 0, nan, 0, 0, 0], [0, 0, 4e4, 0, nan, 0, 0, 0]),
    (known.default_limits, "Clip", [np.float32([-inf, 0.5, 2, nan]), None, np.float32(1)], {},
     [LOWEST, 0.5, 1, nan], [LOWEST, 0.5001, 1, nan]),
    (known.default_limits, "Clip", [np.float16([inf, 1]), np.float16(0)], {},
     [65504, 1], [65472, 1]),
    (known.lowest_start, "MaxPool", [np.float32([[[-inf, nan, 3]]])], {"kernel_shape": [1]},
     [LOWEST, 7, 3], [LOWEST, 7, 3.001]),
    (known.lowest_start, "MaxPool", [np.float32([[[-inf, 3]]])], {"kernel_shape": [1]},
     [LOWEST, 3], [-1e38, 3]),
]  # fmt: skip
RELATIVE = (known.rough_sigmoid, known.rounded_samples, known.mixed_rests)
"""Rules whose cases say how far elements are off; those of others say what they are."""


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0].__name__}-{c[1]}")
def test_a_rule_excuses_its_numbers_and_no_others(case: Case) -> None:
    rule, op, operands, attributes, *both = case
    found = judged(op, operands, attributes, 0.0)
    expected = found.expected
    for numbers, excused in zip(both, (True, False), strict=True):
        given = np.array(numbers, np.float64).reshape(expected.shape)
        given = (expected + given if rule in RELATIVE else given).astype(expected.dtype)
        assert rule(Seen(found.case, found.problem, given, expected)) == excused


def test_constants_of_f32_in_gelu_are_told_from_wrong_ones() -> None:
    exact = np.float64([-0.15880801421356938])
    found = judged("Gelu", [np.float64([-1])], {"approximate": "tanh"}, exact)
    assert abs(found.expected[0] - exact[0]) > 4e-9
    assert known.rounded_constants(found)
    for off in (1e-9, -5e-9):
        wrong = np.float64([exact[0] + off])
        assert not known.rounded_constants(replace(found, given=wrong))
    other = judged("Gelu", [np.float64([-1])], {}, exact)
    assert not known.rounded_constants(replace(other, given=other.expected + 1e-8))


def test_bytes_that_are_limited_between_steps_are_told_from_wrong_ones() -> None:
    x = np.int8([[[[2, 9, 3, -3, 2], [-20, 4, 0, 6, 1]]]])
    sizes = i64(1, 1, 2, 6)
    attributes = {"mode": "cubic", "antialias": 1}
    given = np.int8([[[[2, 8, 7, 0, 0, 2], [0, 0, 3, 2, 6, 1]]]])
    found = judged("Resize", [x, None, None, sizes], attributes, given)
    assert found.expected.min() < -10
    assert known.limited_bytes(found)
    for i in range(given.size):
        wrong = np.array(given)
        wrong.flat[i] += 2
        assert not known.limited_bytes(replace(found, given=wrong)), i
    plain = judged("Resize", [x, None, None, sizes], {"mode": "cubic"}, given)
    assert not known.limited_bytes(plain)


@pytest.mark.parametrize(("op", "factor"), [("Elu", 1.0), ("Selu", 1.0507 * 1.67326)])
@pytest.mark.parametrize(("dtype", "small"), [(np.float16, -1.32e-5), (ml_dtypes.bfloat16, -1e-3)])
def test_a_power_that_is_not_rounded_is_told_from_a_wrong_one(
    op: str, factor: float, dtype: Any, small: float
) -> None:
    x = np.array([small, -1.0, 2.0]).astype(dtype)
    found = judged(op, [x], {}, x)
    assert found.expected[0] == 0
    right = np.array(found.expected)
    right[0] = factor * np.expm1(x[0].astype(np.float64))
    problem = replace(found.problem, side="cpu")
    outcome = Outcome({"y": found.expected})
    assert explain(found.case, problem, Outcome({"y": right}), outcome)
    assert not judge(found.case, ["cpu"], 0).findings
    for at, wrong in ((0, 1.5 * right[0]), (0, -right[0]), (0, nan), (1, -0.8), (2, 2.5)):
        planted = np.array(right)
        planted[at] = wrong
        assert not explain(found.case, problem, Outcome({"y": planted}), outcome), (at, wrong)
