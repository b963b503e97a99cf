"""Graphs: order, uses, rebuilding, size, and the verifier."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError, VerifyError
from monograph.ir import (
    Graph,
    Input,
    Item,
    TupleType,
    Value,
    constant,
    evaluate,
    parse_graph,
    parse_type,
    print_graph,
    subgraphs,
    topological,
    verify,
)
from monograph.ops.control import If
from monograph.ops.deferred import Deferred
from monograph.ops.elementwise import Add, Mul, Neg
from monograph.ops.shape import Reshape
from tests.effort import check_linear


def make(text: str = "f32[4]", name: str = "x") -> Value:
    return Input(name, parse_type(text))()


def chain(length: int) -> Graph:
    x = make()
    value = x
    step = constant(np.ones(4, np.float32))
    for _ in range(length):
        value = Add()(value, step)
    return Graph((x,), (("y", value),))


def test_order_puts_inputs_before_users() -> None:
    x = make()
    a, b = Neg()(x), Mul()(x, x)
    y = Add()(a, b)
    order = topological([y])
    assert order == [x, a, b, y]


def test_uses_count_every_edge_and_output() -> None:
    x = make()
    square = Mul()(x, x)
    graph = Graph((x,), (("a", square), ("b", Neg()(square))))
    assert graph.uses[x] == 2
    assert graph.uses[square] == 2


def test_equality_is_by_structure_not_by_name() -> None:
    x = make()
    assert Graph((x,), (("y", Neg()(x)),), "a") == Graph((x,), (("y", Neg()(x)),), "b")
    assert Graph((x,), (("y", Neg()(x)),)) != Graph((x,), (("z", Neg()(x)),))
    assert len({Graph((x,), (("y", x),)), Graph((x,), (("y", x),))}) == 1


def test_rebuild_replaces_values_and_keeps_origins() -> None:
    x = make("f32[N]")
    y = Neg()(x)
    graph = Graph((x,), (("y", y),), origins={y: "Neg_0"})
    bound = make("f32[7]")
    again = graph.rebuild(lambda v, inputs: bound if v is x else v.op(*inputs))
    assert str(again.output_types[0]) == "f32[7]"
    assert again.origin(again.outputs[0][1]) == "Neg_0"


@pytest.mark.parametrize("length", [10_000, 100_000])
def test_long_chains_build_print_parse_verify_and_evaluate(length: int) -> None:
    graph = chain(length)
    text = print_graph(graph)
    assert parse_graph(text) == graph
    verify(graph)
    (result,) = evaluate(graph, {"x": np.zeros(4, np.float32)})
    assert result[0] == length


def test_the_work_on_a_long_chain_is_linear() -> None:
    def build_and_use(length: int) -> None:
        graph = chain(length)
        assert parse_graph(print_graph(graph)) == graph
        evaluate(verify(graph), {"x": np.zeros(4, np.float32)})

    check_linear(build_and_use, 1000)


def test_a_wide_and_shared_graph_is_linear() -> None:
    # Each level uses the one below twice: a walk that is not by identity would be exponential.
    value = x = make()
    for _ in range(200):
        value = Add()(value, value)
    graph = Graph((x,), (("y", value),))
    assert len(graph.values) == 201
    verify(graph)
    (result,) = evaluate(graph, {"x": np.zeros(4, np.float32)})
    assert result.tolist() == [0] * 4


def test_values_are_freed_after_their_last_use() -> None:
    alive: list[int] = []
    peak = 0

    graph = chain(50)

    def observe(value: Value, result: object) -> None:
        nonlocal peak
        if isinstance(result, np.ndarray) and value.op.name == "add":
            alive.append(1)
            weakref.finalize(result, alive.pop)
            peak = max(peak, len(alive))

    evaluate(graph, {"x": np.zeros(4, np.float32)}, observe)
    assert 0 < peak <= 3


def test_a_failing_op_names_its_node() -> None:
    x = make("f32[N]")
    y = Reshape((3,))(x)
    graph = Graph((x,), (("y", y),), origins={y: "Reshape_7"})
    with pytest.raises(InferError, match="Reshape_7"):
        evaluate(graph, {"x": np.zeros(4, np.float32)})


def test_feeding_the_wrong_data_to_an_op_is_an_execution_error() -> None:
    x, y = make("f32[N]"), make("f32[M]", "y")
    total = Add()(x, y)
    graph = Graph((x, y), (("z", total),), origins={total: "Add_1"})
    with pytest.raises(ExecutionError, match="Add_1"):
        evaluate(graph, [np.zeros(3, np.float32), np.zeros(2, np.float32)])


def test_the_verifier_accepts_a_good_graph() -> None:
    x = make()
    graph = Graph((x,), (("y", Neg()(x)),), donations=(("y", "x"),))
    assert verify(graph) is graph


def test_the_verifier_finds_an_undeclared_input_and_its_origin() -> None:
    x, y = make(), make(name="y")
    total = Add()(x, y)
    with pytest.raises(VerifyError, match="does not declare") as e:
        verify(Graph((x,), (("z", total),), origins={y: "Add_0"}))
    assert "Add_0" in str(e.value)
    assert "given: y" in str(e.value)


def test_the_verifier_finds_a_wrong_type() -> None:
    x = make()
    wrong = Value(Neg(), (x,), parse_type("f32[5]"), b"0" * 16, False)
    with pytest.raises(VerifyError, match="not what its op infers") as e:
        verify(Graph((x,), (("y", wrong),), origins={wrong: "Neg_3"}))
    assert "expected: f32[4]" in str(e.value)
    assert "given: f32[5]" in str(e.value)
    assert "node: %0: f32[5], from Neg_3" in str(e.value)


def test_the_verifier_finds_an_op_that_refuses_its_inputs() -> None:
    x = make("bool[4]")
    wrong = Value(Neg(), (x,), parse_type("bool[4]"), b"0" * 16, False)
    with pytest.raises(VerifyError, match="does not accept its inputs") as e:
        verify(Graph((x,), (("y", wrong),)))
    assert "node: %0: bool[4]" in str(e.value)


def test_the_verifier_names_a_value_of_a_sub_graph_by_its_path() -> None:
    x = make()
    wrong = Value(Neg(), (x,), parse_type("f32[5]"), b"0" * 16, False)
    inner = Graph((x,), (("y", wrong),))
    go = Input("go", parse_type("bool[]"))()
    branch = Value(If(inner, inner), (go, x, x), TupleType((wrong.type,)), b"1" * 16, False)
    given = Input("x", parse_type("f32[4]"))()
    with pytest.raises(VerifyError, match="not what its op infers") as e:
        verify(Graph((go, given), (("y", Item(0)(branch)),)))
    assert "%0: (f32[5]) / %0: f32[5]" in str(e.value)


def test_sub_graphs_are_found_in_tuples_too() -> None:
    x = make()
    inner, other = Graph((x,), (("y", Neg()(x)),)), Graph((x,), (("y", x),))
    assert subgraphs(If(inner, other)) == [inner, other]
    assert subgraphs(Deferred("if", (), (("then", inner), ("orelse", other)))) == [inner, other]
    assert subgraphs(Neg()) == []


def test_the_verifier_finds_names_used_twice() -> None:
    x = make()
    with pytest.raises(VerifyError, match="two outputs share"):
        verify(Graph((x,), (("y", x), ("y", Neg()(x)))))
    with pytest.raises(VerifyError, match="two inputs share"):
        verify(Graph((x, make("i32[4]")), (("y", x),)))


@pytest.mark.parametrize(
    ("donations", "message"),
    [
        ((("y", "nothing"),), "does not exist"),
        ((("y", "x"), ("z", "x")), "donated twice"),
        ((("w", "x"),), "cannot be written into"),
    ],
)
def test_the_verifier_finds_donations_that_do_not_fit(donations, message) -> None:
    x = make()
    outputs = (("y", Neg()(x)), ("z", Mul()(x, x)), ("w", Reshape((2, 2))(x)))
    with pytest.raises(VerifyError, match=message):
        verify(Graph((x,), outputs, donations=donations))


def test_an_input_must_be_an_input() -> None:
    with pytest.raises(VerifyError, match="must be Input values"):
        verify(Graph((Neg()(make()),), ()))
