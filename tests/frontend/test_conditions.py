"""Rules on sizes hold whether the sizes are known when a model is loaded or only when it is run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import monograph
from monograph.errors import ExecutionError, FeedError, ModelError
from monograph.ir import Input, parse_type
from monograph.ops.deferred import Require
from tests.frontend.nodes import Given, node_model, run_node


def f(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) + 1


def refused(op: str, *inputs: Given, match: str, **options: Any) -> None:
    """Static sizes refuse the model, symbolic ones the feeds."""
    with pytest.raises(ModelError, match=match):
        run_node(op, *inputs, **options)
    with pytest.raises(FeedError, match=match):
        run_node(op, *inputs, symbolic=True, **options)


@pytest.mark.parametrize("sizes", [[2, 2], [2, 4], [0, 4]])
def test_sizes_of_a_split_add_up(sizes: list[int]) -> None:
    given = np.array(sizes)
    refused("Split", f(5), given, outputs=2, constant=(1,), match="the sizes of a split add up")
    for symbolic in (False, True):
        with pytest.raises(ExecutionError, match="the sizes of a split add up"):
            run_node("Split", f(5), given, outputs=2, symbolic=symbolic)


def test_a_split_whose_sizes_add_up_runs() -> None:
    for options in ({}, {"constant": (1,)}, {"constant": (1,), "symbolic": True}):
        first, second = run_node("Split", f(5), np.array([2, 3]), outputs=2, **options)
        assert (first.tolist(), second.tolist()) == ([1, 2], [3, 4, 5])


def test_the_size_of_a_part_is_not_negative() -> None:
    sizes = np.array([6, -1])
    for symbolic in (False, True):
        with pytest.raises(ModelError, match="negative"):
            run_node("Split", f(5), sizes, outputs=2, constant=(1,), symbolic=symbolic)


def test_equal_parts_divide_the_size() -> None:
    refused("Split", f(5), outputs=2, opset=13, match="divides the size")
    for symbolic in (False, True):
        parts = run_node("Split", f(6), outputs=2, opset=13, symbolic=symbolic)
        assert [p.tolist() for p in parts] == [[1, 2, 3], [4, 5, 6]]


def test_a_diagonal_is_of_a_square() -> None:
    refused("Einsum", f(2, 3), equation="ii->i", match="of one size")
    for symbolic in (False, True):
        (y,) = run_node("Einsum", f(3, 3), equation="ii->i", symbolic=symbolic)
        assert y.tolist() == [1, 5, 9]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (1, 3)]),
        ("ij,jk->ik", [(2, 1), (3, 3)]),
        ("bij,bjk->bik", [(1, 2, 3), (4, 3, 2)]),
        ("bij,bjk->bik", [(4, 2, 3), (1, 1, 2)]),
        ("ij,ij->ij", [(2, 3), (2, 1)]),
        ("ij,ij,ij->", [(2, 3), (2, 1), (1, 3)]),
    ],
)
def test_a_dimension_of_one_broadcasts_in_a_sum(
    equation: str, shapes: list[tuple[int, ...]], symbolic: bool
) -> None:
    arrays = [f(*shape) for shape in shapes]
    (y,) = run_node("Einsum", *arrays, equation=equation, symbolic=symbolic)
    np.testing.assert_allclose(y, np.einsum(equation, *arrays), rtol=1e-6)


@pytest.mark.parametrize("symbolic", [False, True])
def test_dimensions_of_a_sum_agree(symbolic: bool) -> None:
    with pytest.raises(FeedError if symbolic else ModelError):
        run_node("Einsum", f(2, 3), f(2, 2), equation="ij,jk->ik", symbolic=symbolic)


def test_groups_divide_the_channels() -> None:
    scale = f(5)
    x = f(1, 5, 4)
    refused(
        "GroupNormalization",
        x,
        scale,
        scale,
        num_groups=2,
        match="must be a multiple of the groups",
    )


ONE = np.ones(1, np.float32)


@pytest.mark.parametrize(
    ("op", "inputs", "options"),
    [
        ("LayerNormalization", [f(2, 1), f(5)], {}),
        ("LayerNormalization", [f(2, 1), ONE, f(5)], {}),
        ("LayerNormalization", [f(2), f(3, 2)], {}),
        ("RMSNormalization", [f(2, 1), f(5)], {"opset": 23}),
        ("BatchNormalization", [f(2, 1, 3), f(5), f(5), f(5), f(5)], {}),
        ("InstanceNormalization", [f(2, 1, 3), f(5), f(5)], {}),
        ("GroupNormalization", [f(2, 1, 3), f(5), f(5)], {"num_groups": 1}),
        ("PRelu", [f(1, 1), f(4, 5)], {}),
        ("PRelu", [f(2), f(3, 2)], {}),
        ("Gemm", [f(1, 2), f(2, 1), f(4, 5)], {}),
        ("Gemm", [f(3, 2), f(2, 1), f(5)], {"beta": 2.0}),
    ],
)
def test_operands_broadcast_one_way(
    op: str, inputs: list[np.ndarray], options: dict[str, Any]
) -> None:
    rule = "broadcasts to the shape of the other"
    ranks = len(inputs[-1].shape) > len(inputs[0].shape)
    if not ranks:
        refused(op, *inputs, match=rule, **options)
        return
    for symbolic in (False, True):  # the rank alone refuses it
        with pytest.raises(ModelError, match=rule):
            run_node(op, *inputs, symbolic=symbolic, **options)


@pytest.mark.parametrize("symbolic", [False, True])
def test_operands_that_fit_still_broadcast(symbolic: bool) -> None:
    (y,) = run_node("PRelu", -f(2, 3), f(2, 1), symbolic=symbolic)
    assert y.tolist() == [[-1, -2, -3], [-8, -10, -12]]
    (y,) = run_node("Gemm", f(2, 1), f(1, 2), f(2, 1), symbolic=symbolic)
    assert y.tolist() == [[2, 3], [4, 6]]
    (y,) = run_node("LayerNormalization", f(2, 2), f(1), f(2), symbolic=symbolic)
    np.testing.assert_allclose(y, [[0, 3], [0, 3]], atol=1e-4)


def test_a_model_without_ranks_is_checked_too() -> None:
    made = node_model("PRelu", [f(1, 1), f(4, 5)])
    for port in made.graph.input:
        port.type.tensor_type.ClearField("shape")
    session = monograph.load(made)
    (y,) = session.run({"x0": -f(1, 2), "x1": f(2)})
    assert y.tolist() == [[-1, -4]]
    with pytest.raises(FeedError):
        session.run({"x0": f(1, 1), "x1": f(4, 5)})


def test_known_sizes_leave_no_condition_behind() -> None:
    made = node_model("Split", [f(4)], outputs=2, opset=13)
    assert "require" not in str(monograph.load(made).graph)
    made = node_model("Split", [f(4)], outputs=2, opset=13, symbolic=True)
    assert "require" in str(monograph.load(made).graph)
    assert "require" not in str(monograph.load(made, dims={"d0_0": 4}).graph)


def test_a_condition_takes_sizes() -> None:
    x, sizes = Input("x", parse_type("f32[2]"))(), Input("s", parse_type("i64[2]"))()
    assert Require("rule")(x, sizes, sizes).type == x.type
    with pytest.raises(ModelError, match="sizes are integers"):
        Require("rule")(x, x, x)
    with pytest.raises(ModelError, match="agree in number"):
        Require("rule")(x, sizes, Input("t", parse_type("i64[]"))())


def test_a_condition_on_data_holds_on_the_cpu_target() -> None:
    made = node_model("Split", [f(5), np.array([2, 3])], outputs=2)
    session = monograph.load(made, target="cpu")
    first, second = session.run({"x0": f(5), "x1": np.array([1, 4])})
    assert (first.tolist(), second.tolist()) == ([1], [2, 3, 4, 5])
    with pytest.raises(ExecutionError, match="the sizes of a split add up"):
        session.run({"x0": f(5), "x1": np.array([1, 3])})
