"""Rules that compute what the other side does excuse that, and no fault beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.campaign import known_values as known
from tests.campaign.case import Case, finish, tensor
from tests.campaign.differences import Seen, explain
from tests.campaign.judge import Problem, judge
from tests.campaign.known_operands import reads
from tests.campaign.minimise import values
from tests.campaign.sides import Outcome
from tests.campaign.test_known_operands import f32, i64, seen

nan = np.nan
IMAGE = np.float32([[[[0, 1, 2, 3]]]])
THETA = np.float32([[[1, 2, 3], [4, 5, 6]]])
SMALL = np.int64([[-2, -4], [-5, -5], [-5, -5]])
HUGE = np.int64([-1400871287466664699, 10])
Q, MASK = np.float32([[[[1], [2]]]]), np.float32([[0, 2], [1, 0]])


def grid(at: float) -> np.ndarray:
    """The grid of a single row of two columns, which lies at a place."""
    return np.stack([THETA[0] @ [x, at, 1] for x in (-1.0, 1.0)])[None, None].astype(np.float32)


def capped(mask_first: bool) -> np.ndarray:
    scores = Q[0, 0] @ Q[0, 0].T
    if mask_first:
        scores = 2 * np.tanh((scores + MASK) / 2)
    else:
        scores = 2 * np.tanh(scores / 2) + MASK
    power = np.exp(scores)
    return (power / power.sum(-1, keepdims=True) @ Q[0, 0])[None, None].astype(np.float32)


EXCUSED: list[tuple[Callable[[Seen], bool], str, list[Any], dict[str, Any], Any]] = [
    (known.overflow, "Mul", [np.int32([1 << 20, 3]), np.int32([1 << 20, 5])], {},
     np.int32([2**31 - 1, 15])),
    (known.overflow, "ReduceSum", [np.int32([[2**31 - 1, 1], [3, 4]]), i64(1)], {"keepdims": 0},
     np.int32([2**31 - 1, 7])),
    (known.overflow, "MatMul", [np.int32([[1 << 20], [1]]), np.int32([[1 << 20, 2]])], {},
     np.int32([[2**31 - 1, 1 << 21], [1 << 20, 2]])),
    (known.maximum_of_nan, "MaxPool", [np.float32([[[1, nan, 2, 5]]])],
     {"kernel_shape": [2], "strides": [2]}, np.float32([[[1, 5]]])),
    (known.maximum_of_nan, "ArgMax", [np.float32([[1, nan, 2], [3, 4, 5]])],
     {"axis": 1, "keepdims": 0}, i64(2, 2)),
    (known.aligned_corners, "Resize", [IMAGE, None, np.float32([1, 1, 1, 0.7])],
     {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
     np.float32([[[[0, 3]]]])),
    (known.affine_grid, "AffineGrid", [THETA, i64(1, 1, 1, 2)], {"align_corners": 1}, grid(1)),
    (known.affine_grid, "AffineGrid", [THETA, i64(1, 1, 1, 2)], {"align_corners": 1}, grid(0)),
    (known.capped_mask, "Attention", [Q, Q, Q, MASK], {"softcap": 2.0, "scale": 1.0},
     capped(mask_first=False)),
    (known.forgotten_beta, "Gemm", [f32(2, 0), f32(0, 2), np.float32([3, 4])], {"beta": 2.0},
     np.float32([[3, 4], [3, 4]])),
    (known.rounded_remainder, "Mod", [HUGE, i64(7, 7)], {"fmod": 1}, i64(-5, 3)),
    (known.whole_logarithm, "ReduceLogSumExp", [SMALL], {"keepdims": 0}, np.int64(-2)),
    (known.tied, "ArgMax", [np.float32([[1, 4, 4, 2], [5, 3, 5, 5]])], {"axis": 1, "keepdims": 0},
     i64(2, 3)),
]  # fmt: skip


def judged(op: str, operands: list[Any], attributes: dict[str, Any], given: Any) -> Seen:
    """A difference of a single node from what the reference makes of it."""
    made = seen(op, operands, **attributes)
    expected = values(made.case)["y"][0]
    return Seen(made.case, made.problem, np.asarray(given), expected)


def damaged(x: np.ndarray) -> list[np.ndarray]:
    """An array with one element changed, for each element."""
    made = []
    for i in range(x.size):
        other = np.array(x)
        with np.errstate(over="ignore"):
            other.flat[i] += other.dtype.type(1)
        made.append(other)
    return made


@pytest.mark.parametrize("case", EXCUSED, ids=lambda c: f"{c[0].__name__}-{c[1]}")
def test_a_rule_excuses_what_it_computes(case: Any) -> None:
    rule, op, operands, attributes, given = case
    found = judged(op, operands, attributes, given)
    assert found.given.shape == found.expected.shape
    assert not np.array_equal(found.given, found.expected, equal_nan=True)
    assert rule(found)


@pytest.mark.parametrize("case", EXCUSED, ids=lambda c: f"{c[0].__name__}-{c[1]}")
def test_a_planted_fault_is_not_excused(case: Any) -> None:
    rule, op, operands, attributes, given = case
    found = judged(op, operands, attributes, given)
    # Elements that the standard leaves open may hold anything: their rules name them.
    free = rule in (known.overflow, known.maximum_of_nan)
    differs = np.not_equal(found.given, found.expected)
    for i, other in enumerate(damaged(found.given)):
        excused = rule(Seen(found.case, found.problem, other, found.expected))
        assert excused == (free and bool(np.ravel(differs)[i])), f"element {i}"


@pytest.mark.parametrize(
    ("rule", "op", "operands", "attributes"),
    [
        (known.overflow, "Mul", [np.int32([1 << 10]), np.int32([1 << 10])], {}),
        (known.overflow, "ReduceMax", [np.int32([2**31 - 1, 1])], {}),
        (known.maximum_of_nan, "ArgMax", [np.float32([1, np.inf])], {}),
        (known.aligned_corners, "Resize", [IMAGE, None, np.float32([1, 1, 1, 0.5])],
         {"coordinate_transformation_mode": "align_corners"}),
        (known.affine_grid, "AffineGrid", [THETA, i64(1, 1, 2, 2)], {"align_corners": 1}),
        (known.affine_grid, "AffineGrid", [THETA, i64(1, 1, 1, 2)], {}),
        (known.capped_mask, "Attention", [Q, Q, Q], {"softcap": 2.0}),
        (known.capped_mask, "Attention", [Q, Q, Q, MASK], {}),
        (known.forgotten_beta, "Gemm", [f32(2, 1), f32(1, 2), f32(2)], {"beta": 2.0}),
        (known.rounded_remainder, "Mod", [i64(10), i64(7)], {"fmod": 1}),
        (known.whole_logarithm, "ReduceLogSumExp", [f32(3)], {}),
        (known.tied, "ArgMax", [np.float32([1, 4, 3])], {}),
    ],
    ids=lambda c: getattr(c, "__name__", ""),
)  # fmt: skip
def test_other_operands_are_not_excused(
    rule: Any, op: str, operands: list[Any], attributes: dict[str, Any]
) -> None:
    expected = values(seen(op, operands, **attributes).case)["y"][0]
    for other in damaged(expected):
        assert not rule(judged(op, operands, attributes, other))


def test_the_order_of_softcap_and_mask_is_that_of_the_installed_onnx() -> None:
    (_, *_, operands, attributes, given) = next(c for c in EXCUSED if c[0] is known.capped_mask)
    found = judged("Attention", operands, attributes, given)
    assert np.allclose(found.expected, capped(mask_first=True), rtol=1e-5)


def chain(nodes: list[onnx.NodeProto], x: np.ndarray, given: Any, side: str) -> Seen:
    """A difference in the output `y` of several nodes that read `x` and f16 constants."""
    kind = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    model = finish(nodes, [kind], ["y"], [tensor(np.float16(1), "one")], 21)
    case = Case("single", 0, 0, model, ({"x": x},))
    problem = Problem(side, "wrong", "", output="y")
    return Seen(case, problem, np.asarray(given), values(case)["y"][0])


def test_a_sum_of_halves_that_cancels_is_told_from_a_wrong_one() -> None:
    make = helper.make_node
    nodes = [make("Erf", ["x"], ["e"]), make("Add", ["one", "e"], ["s"]),
             make("Div", ["one", "s"], ["y"])]  # fmt: skip
    x = np.float16([-2.75, 0.5])
    exact = np.float16([1 / (1 + -0.99989938), 1 / 1.52049988])
    found = chain(nodes, x, exact, "onnxruntime")
    assert np.isinf(found.expected[0])
    assert known.wider_halves(found)
    problem = found.problem
    outcomes = Outcome({"y": exact}), Outcome({"y": found.expected})
    assert explain(found.case, problem, *outcomes)
    # The spread follows the roundings of our own targets: they need no excuse, and get none.
    assert not explain(found.case, replace(problem, side="cpu"), *outcomes)
    assert not judge(found.case, ["cpu"], 0).problems
    for other in (np.float16([9000, exact[1]]), np.float16([exact[0], 0.7])):
        assert not known.wider_halves(Seen(found.case, problem, other, found.expected))


def test_what_follows_a_node_has_to_follow_from_its_result() -> None:
    make = helper.make_node
    nodes = [make("ArgMax", ["x"], ["i"], axis=1, keepdims=0), make("Neg", ["i"], ["y"])]
    x = np.float32([[1, nan, 2], [3, 4, 5]])
    found = chain(nodes, x, i64(-2, -2), "onnxruntime")
    (node, _), *_ = reads(found, "ArgMax")
    assert known.behind(found, node, i64(2, 2))
    assert not known.behind(found, node, i64(1, 2))
