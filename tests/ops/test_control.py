"""If, Loop and Scan over graphs built by hand."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import (
    Graph,
    Input,
    TupleType,
    Value,
    constant,
    evaluate,
    parse_type,
    unpack,
    verify,
)
from monograph.ir.dtype import f32
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.control import Fail, If, Loop, Scan
from monograph.ops.deferred import deferred
from monograph.ops.random import RandomUniform
from monograph.ops.subgraph import inline, specialise


def arg(label: str, type_: str) -> Value:
    return Input(label, parse_type(type_))()


def body(inputs: list[Value], *outputs: Value) -> Graph:
    return Graph(tuple(inputs), tuple((f"y{i}", v) for i, v in enumerate(outputs)), "body")


def run(inputs: list[Value], value: Value, *data: object) -> list:
    graph = verify(body(inputs, *unpack(value)))
    return evaluate(graph, [np.asarray(d) for d in data])


def types(value: Value) -> list[str]:
    assert isinstance(value.type, TupleType)
    return [str(t) for t in value.type.items]


class TestIf:
    def test_runs_only_the_branch_that_the_condition_names(self) -> None:
        go, x = arg("go", "bool[]"), arg("x", "f32[2]")
        inner = arg("x@1", "f32[2]")
        bad = Fail("never", inner.type)()
        value = If(body([inner], ew.Neg()(inner)), body([], bad))(go, x)
        assert run([go, x], value, True, np.float32([1, 2]))[0].tolist() == [-1, -2]
        with pytest.raises(ExecutionError, match="a branch was taken that cannot run: never"):
            run([go, x], value, False, np.float32([1, 2]))

    def test_results_generalise_over_the_branches(self) -> None:
        go = arg("go", "bool[]")
        a, b, c = arg("a", "f32[2, N]"), arg("b", "f32[3, N]"), arg("c", "f32[4]")
        assert types(If(body([a], a), body([b], b))(go, a, b))[0].endswith(", N]")
        assert types(If(body([a], a), body([a], a))(go, a, a)) == ["f32[2, N]"]
        assert types(If(body([a], a), body([c], c))(go, a, c)) == ["f32[*]"]

    def test_branches_must_agree(self) -> None:
        go, a, i = arg("go", "bool[]"), arg("a", "f32[2]"), arg("i", "i64[2]")
        with pytest.raises(InferError, match="types do not agree"):
            If(body([a], a), body([i], i))(go, a, i)
        with pytest.raises(InferError, match="unequal number"):
            If(body([a], a), body([a], a, a))(go, a, a)
        with pytest.raises(InferError, match="captures of the second branch: the number differs"):
            If(body([a], a), body([a], a))(go, a)
        with pytest.raises(InferError, match="captures of the first branch: a type does not fit"):
            If(body([a], a), body([a], a))(go, i, a)
        with pytest.raises(InferError, match="the condition is one element"):
            If(body([a], a), body([a], a))(a, a, a)

    def test_sizes_made_inside_do_not_leak_out(self) -> None:
        """The same sub-graph on other data makes other sizes, so they may not share a symbol."""
        go, x, y = arg("go", "bool[]"), arg("x", "i64[1]"), arg("y", "i64[1]")
        size = arg("size", "i64[1]")
        grown = deferred(sh.Broadcast, (constant(np.zeros(1)),), {"shape": size})
        branch = body([size], grown)
        first, second = (If(branch, branch)(go, v, v) for v in (x, y))
        assert types(first) != types(second)

    def test_more_specific_captures_specialise_the_branches(self) -> None:
        go, x = arg("go", "bool[]"), arg("x", "f32[N, 3]")
        inner = arg("inner", "f32[N, 3]")
        flat = body([inner], sh.Reshape((-1,))(inner))
        graph = body([go, x], *unpack(If(flat, flat)(go, x, x)))

        def bind(old: Value, inputs: tuple[Value, ...]) -> Value:
            return arg("x", "f32[4, 3]") if old is x else old.op(*inputs)

        bound = verify(graph.rebuild(bind))
        assert str(bound.output_types[0]) == "f32[12]"
        (data,) = evaluate(bound, [np.array(True), np.arange(12, dtype=np.float32).reshape(4, 3)])
        assert data.tolist() == list(range(12))

    def test_a_branch_that_static_types_contradict_stays(self) -> None:
        x = arg("x", "f32[N, 3]")
        squeezed = body([x], sh.Squeeze((0,))(x))
        assert specialise(squeezed, (parse_type("f32[4, 3]"),)) is squeezed
        better = specialise(squeezed, (parse_type("f32[1, 3]"),))
        assert str(better.input_types[0]) == "f32[1, 3]"

    def test_a_random_branch_makes_the_result_no_constant(self) -> None:
        noise = RandomUniform((2,), f32)()
        quiet = constant(np.zeros(2, np.float32))
        go = constant(True)
        assert If(body([], quiet), body([], quiet))(go).closed
        assert not If(body([], noise), body([], quiet))(go).closed


def counting(state: str = "f32[]") -> Graph:
    """s <- s + 1 while s < 3, collecting s."""
    i, go, s = arg("i", "i64[]"), arg("go", "bool[]"), arg("s", state)
    more = ew.Add()(s, constant(np.float32(1)))
    return body([i, go, s], ew.Less()(more, constant(np.float32(3))), more, s)


def forever(element: str) -> Graph:
    i, go, x = arg("i", "i64[]"), arg("go", "bool[]"), arg("x", element)
    return body([i, go, x], go, x)


class TestLoop:
    def operands(self) -> list[Value]:
        return [arg("trips", "i64[]"), arg("go", "bool[]"), arg("s", "f32[]")]

    @pytest.mark.parametrize(
        ("trips", "go", "last", "collected"),
        [
            (9, True, 3, [0, 1, 2]),
            (2, True, 2, [0, 1]),
            (0, True, 0, []),
            (-1, True, 0, []),
            (9, False, 0, []),
        ],
    )
    def test_ends_by_condition_or_trip_count(
        self, trips: int, go: bool, last: float, collected: list[float]
    ) -> None:
        inputs = self.operands()
        value = Loop(counting(), 1)(*inputs)
        state, stacked = run(inputs, value, trips, go, np.float32(0))
        assert state == last
        assert stacked.tolist() == collected
        assert stacked.dtype == np.float32

    def test_collects_empty_results_of_the_right_shape(self) -> None:
        inputs = [arg("trips", "i64[]"), arg("go", "bool[]"), arg("x", "f32[N, 3]")]
        value = Loop(forever("f32[N, 3]"), 0)(*inputs)
        (stacked,) = run(inputs, value, 0, True, np.ones((5, 3), np.float32))
        assert stacked.shape == (0, 5, 3)
        (stacked,) = run(inputs, value, 2, True, np.ones((5, 3), np.float32))
        assert stacked.shape == (2, 5, 3)

    def test_a_trip_count_beyond_memory_is_an_error(self) -> None:
        inputs = [arg("trips", "i64[]"), arg("go", "bool[]"), arg("x", "f32[1000]")]
        value = Loop(forever("f32[1000]"), 0)(*inputs)
        with pytest.raises(ExecutionError, match="a result is too large"):
            run(inputs, value, 2**60, True, np.ones(1000, np.float32))

    def test_elements_that_differ_in_shape_cannot_be_collected(self) -> None:
        i, go, s = arg("i", "i64[]"), arg("go", "bool[]"), arg("s", "f32[~loop0_0_0]")
        grown = body([i, go, s], go, sh.Concat(0)(s, s), s)
        inputs = [arg("trips", "i64[]"), arg("go", "bool[]"), arg("s", "f32[1]")]
        value = Loop(grown, 1)(*inputs)
        assert types(value)[0].startswith("f32[~")
        assert run(inputs, value, 1, True, np.ones(1, np.float32))[0].shape == (2,)
        with pytest.raises(ExecutionError, match="differ in shape"):
            run(inputs, value, 3, True, np.ones(1, np.float32))

    def test_state_that_iterations_change_is_not_specialised(self) -> None:
        i, go = arg("i", "i64[]"), arg("go", "bool[]")
        kept, grown = arg("kept", "f32[N]"), arg("grown", "f32[~loop0_1_0]")
        loop = Loop(body([i, go, kept, grown], go, ew.Neg()(kept), sh.Concat(0)(grown, kept)), 2)
        value = loop(arg("t", "i64[]"), go, arg("a", "f32[3]"), arg("b", "f32[4]"))
        inner = value.op.attributes["body"]
        assert [str(t) for t in inner.input_types[2:]] == ["f32[3]", "f32[~loop0_1_0]"]
        assert types(value)[0] == "f32[3]"

    def test_the_number_of_an_iteration_may_be_a_vector_of_one(self) -> None:
        i, go = arg("i", "i64[1]"), arg("go", "bool[1]")
        value = Loop(body([i, go], go, i), 0)(arg("t", "i64[]"), arg("c", "bool[1]"))
        (seen,) = run([arg("t", "i64[]"), arg("c", "bool[1]")], value, 3, [True])
        assert seen.tolist() == [[0], [1], [2]]

    def test_the_body_is_checked(self) -> None:
        inputs = self.operands()
        i, go, s = arg("i", "i64[]"), arg("go", "bool[]"), arg("s", "f32[]")
        with pytest.raises(InferError, match="takes iteration, condition and state"):
            Loop(body([i, go, s], go), 1)(*inputs)
        with pytest.raises(InferError, match="condition that the body gives is one element"):
            Loop(body([i, go, s], s, s), 1)(*inputs)
        with pytest.raises(InferError, match="state that the body gives: a type does not fit"):
            Loop(body([i, go, s], go, i), 1)(*inputs)
        with pytest.raises(InferError, match="trip count is one element"):
            Loop(counting(), 1)(inputs[2], inputs[1], inputs[2])

    def test_errors_inside_name_the_inner_op(self) -> None:
        i, go, s = arg("i", "i64[]"), arg("go", "bool[]"), arg("s", "i64[1]")
        grown = deferred(sh.Reshape, (constant(np.arange(4)),), {"shape": s})
        inputs = [arg("trips", "i64[]"), arg("go", "bool[]"), arg("s", "i64[1]")]
        value = Loop(body([i, go, s], go, s, grown), 1)(*inputs)
        assert run(inputs, value, 1, True, [4])[1].tolist() == [[0, 1, 2, 3]]
        with pytest.raises(InferError) as caught:
            run(inputs, value, 1, True, [3])
        assert caught.value.op == "deferred"


def summing() -> Graph:
    s, x, y = arg("s", "f32[]"), arg("x", "f32[]"), arg("y", "f32[]")
    total = ew.Add()(s, x)
    return body([s, x, y], total, ew.Mul()(total, y))


class TestScan:
    def test_carries_and_collects(self) -> None:
        inputs = [arg("s", "f32[]"), arg("x", "f32[T]"), arg("y", "f32[T]")]
        value = Scan(summing(), (0, 0), (False, True), (0,), (False,))(*inputs)
        assert types(value) == ["f32[]", "f32[T]"]
        last, collected = run(
            inputs, value, np.float32(1), np.float32([1, 2, 3]), np.float32([1, 10, 100])
        )
        assert last == 7
        assert collected.tolist() == [200, 40, 7]

    def test_collects_backward(self) -> None:
        inputs = [arg("s", "f32[]"), arg("x", "f32[T]"), arg("y", "f32[T]")]
        value = Scan(summing(), (0, 0), (True, True), (0,), (True,))(*inputs)
        last, collected = run(inputs, value, np.float32(0), np.float32([1, 2]), np.ones(2, "f4"))
        assert last == 3
        assert collected.tolist() == [3, 2]

    def test_axes_of_scanned_and_collected_values(self) -> None:
        x = arg("x", "f32[2]")
        op = Scan(body([x], ew.Neg()(x)), (-1,), (False,), (-1,), (False,))
        value = op(arg("x", "f32[2, 3]"))
        assert value.op.attributes["axes"] == (1,)
        assert value.op.attributes["result_axes"] == (1,)
        assert types(value) == ["f32[2, 3]"]
        data = np.arange(6, dtype=np.float32).reshape(2, 3)
        (collected,) = run([arg("x", "f32[2, 3]")], value, data)
        assert (collected == -data).all()

    def test_nothing_to_scan(self) -> None:
        inputs = [arg("s", "f32[]"), arg("x", "f32[T]"), arg("y", "f32[T]")]
        value = Scan(summing(), (0, 0), (False, False), (0,), (False,))(*inputs)
        last, collected = run(inputs, value, np.float32(5), np.zeros(0, "f4"), np.zeros(0, "f4"))
        assert (last, collected.shape) == (5, (0,))

    def test_operands_are_checked(self) -> None:
        s, x = arg("s", "f32[]"), arg("x", "f32[3]")
        op = Scan(summing(), (0, 0), (False, False), (0,), (False,))
        with pytest.raises(InferError, match="do not fit the body"):
            op(s, x)
        with pytest.raises(InferError, match="dimensions differ"):
            op(s, x, arg("y", "f32[4]"))
        with pytest.raises(InferError, match="a scalar has no axis"):
            op(s, x, s)
        open_ended = [s, arg("x", "f32[A]"), arg("y", "f32[B]")]
        with pytest.raises(ExecutionError, match="differ in length"):
            run(open_ended, op(*open_ended), np.float32(0), np.ones(2, "f4"), np.ones(3, "f4"))


def test_inline_substitutes_arguments() -> None:
    x, y = arg("x", "f32[2]"), arg("y", "f32[2]")
    (value,) = inline(body([x], ew.Exp()(ew.Neg()(x))), (y,))
    assert value is ew.Exp()(ew.Neg()(y))


def test_nested_loops_evaluate() -> None:
    """sum over i < 3 of sum over j < i of 1: 0 + 1 + 2."""
    j, go, s = arg("j", "i64[]"), arg("go", "bool[]"), arg("s", "i64[]")
    inner = Loop(body([j, go, s], go, ew.Add()(s, constant(1))), 1)
    i = arg("i", "i64[]")
    outer = Loop(body([i, go, s], go, *unpack(inner(i, constant(True), s))), 1)
    inputs = [arg("t", "i64[]")]
    value = outer(inputs[0], constant(True), constant(0))
    assert run(inputs, value, 3) == [3]
