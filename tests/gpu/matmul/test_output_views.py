"""Products whose results are shown as outputs in another shape or order: one kernel, no copy."""

from __future__ import annotations

import pytest

from monograph.ir import Graph, Input, TensorType, Value
from monograph.ir.dtype import f32
from monograph.ops.elementwise import Add, Mul
from monograph.ops.functions import Exp, Sigmoid
from monograph.ops.linear import Dot
from monograph.ops.shape import Concat, Reshape, Slice, Squeeze, Transpose
from monograph.program.memory import buffer_assignment
from monograph.program.memory.buffer_assignment import product_ends, written_through
from tests.gpu.against import check

X = Input("x", TensorType(f32, (3, 40, 20)))()
W = Input("w", TensorType(f32, (3, 20, 1)))()
V = Input("v", TensorType(f32, (3, 20, 17)))()


def graph(*outputs: Value) -> Graph:
    named = tuple((f"y{i}", v) for i, v in enumerate(outputs))
    made = Graph((X, W, V), named)
    return Graph(tuple(i for i in made.inputs if i in made.values), named)


def silu(x: Value) -> Value:
    return Mul()(x, Sigmoid()(x))


@pytest.mark.parametrize(
    "output",
    [
        Transpose((1, 0))(Reshape((3, 40))(Exp()(Dot()(X, W)))),
        Squeeze((2,))(Dot()(X, W)),
        Reshape((120, 17))(silu(Dot()(X, V))),
        Transpose((2, 0, 1))(Dot()(X, V)),
        Reshape((17, 120))(Transpose((2, 0, 1))(silu(Dot()(X, V)))),
    ],
)
def test_a_view_of_a_product_is_no_kernel(output: Value) -> None:
    check(graph(output), steps=1)


@pytest.mark.parametrize(
    "output",
    [
        Slice((0, 0, 0), (3, 20, 17), (1, 1, 1))(Dot()(X, V)),  # leaves elements out
        Transpose((1, 0))(Reshape((8, 255))(Dot()(X, V))),  # no strides say that
        Transpose((1, 0))(Reshape((3, 40))(Exp()(Reshape((120, 1))(Dot()(X, W))))),  # a view before
    ],
)
def test_other_views_are_copied(output: Value) -> None:
    made = graph(output)
    assert not product_ends(made)
    check(made, steps=2, every=False)


def test_what_others_need_too_is_copied() -> None:
    shown = Transpose((0, 2, 1))(Dot()(X, V))
    for made in (
        graph(shown, Exp()(shown)),
        graph(shown, shown.inputs[0]),
        graph(shown, Reshape((120, 17))(shown.inputs[0])),
        graph(Concat(0)(shown, shown), shown),
    ):
        assert not product_ends(made)
        check(made, every=False)


def test_donated_outputs_keep_their_place() -> None:
    shown = Transpose((0, 2, 1))(Dot()(X, V))
    old = Input("old", TensorType(f32, (3, 17, 40)))()
    outputs = (("new", shown), ("e", Exp()(old)))
    made = Graph((X, V, old), outputs, donations=(("new", "old"),))
    assert product_ends(Graph((X, V, old), outputs)) == {shown}
    assert not product_ends(made)


def test_many_elements_are_not_stored_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_assignment, "TURNED", 100)
    turned, in_a_row = Transpose((0, 2, 1))(Dot()(X, V)), Reshape((120, 17))(Dot()(X, V))
    assert not product_ends(graph(turned))
    assert product_ends(graph(in_a_row))


def test_strides_of_what_is_shown() -> None:
    product = Dot()(X, W)
    found = written_through(Transpose((1, 0))(Reshape((3, 40))(product)))
    assert found is not None
    assert found[0] is product
    assert found[1][:2] == (1, 3)
    assert found[1][2] > 0  # so that a tile's mask sees that there is only one column
    assert written_through(product) is None


def test_a_column_in_a_join() -> None:
    """A tile is wider than the one column that lies in the join."""
    column = Reshape((3, 40))(Sigmoid()(Dot()(X, W)))
    check(graph(Add()(Concat(0)(column, column), Concat(0)(column, column))), every=False)
    check(graph(Concat(0)(column, Exp()(column))))


def test_only_what_follows_one_product_is_written_into_its_view() -> None:
    """Work of no product and of two products is copied as it ever was."""
    for source in (Exp()(X), Add()(Dot()(X, V), Dot()(Exp()(X), V))):
        assert not product_ends(graph(Transpose((0, 2, 1))(source)))


def test_operands_that_are_repeated_are_no_work_of_the_product() -> None:
    """A column beside the product may be a product, and others may need it: it is loaded."""
    column = Dot()(X, W)
    shown = Transpose((0, 2, 1))(Add()(Dot()(X, V), column))
    made = graph(shown, Exp()(column))
    assert product_ends(made) == {shown}
    check(made, every=False)
