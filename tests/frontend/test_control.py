"""If, Loop and Scan of model files: types that settle, captures, and ONNX Runtime's answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import monograph
from monograph.errors import ExecutionError, InferError, ModelError
from monograph.frontend.onnx import importer
from monograph.ir import (
    Graph,
    Input,
    Value,
    constants,
    evaluate,
    parse_graph,
    parse_type,
    print_graph,
    verify,
)


def parse(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}')


def f32(*data: Any) -> np.ndarray:
    return np.array(data, np.float32)


def run(model: onnx.ModelProto, **feeds: Any) -> list[Any]:
    return monograph.load(model).run({k: np.asarray(v) for k, v in feeds.items()})


def agree(model: onnx.ModelProto, **feeds: Any) -> list[Any]:
    """Our outputs, which must be ONNX Runtime's."""
    ours = run(model, **feeds)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    theirs = session.run(None, {k: np.asarray(v) for k, v in feeds.items()})
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
        assert a.shape == b.shape
        assert a.dtype == b.dtype
    return ours


def ops(graph: Graph) -> list[str]:
    return [v.op.name for v in graph.values]


IF = """g (bool c, float[N] x) => (float[M] y) {
    k = Constant <value_floats = [1.0, 2.0]> ()
    y = If (c) <
        then_branch = t () => (float[M] a) { a = Mul (x, k) },
        else_branch = e () => (float[M] b) { b = Concat <axis = 0> (x, x) }>
}"""


class TestIf:
    def test_both_branches_capture(self) -> None:
        model = parse(IF)
        assert agree(model, c=True, x=f32(3, 4))[0].tolist() == [3, 8]
        assert agree(model, c=False, x=f32(3, 4))[0].tolist() == [3, 4, 3, 4]

    def test_a_known_condition_leaves_no_if(self) -> None:
        model = parse(
            """g (float[2, 3] x) => (float[*] y) {
                s = Shape (x)
                zero = Constant <value_int = 0> ()
                two = Constant <value_int = 2> ()
                n = Gather <axis = 0> (s, zero)
                c = Equal (n, two)
                y = If (c) <
                    then_branch = t () => (float[2, 3] a) { a = Neg (x) },
                    else_branch = e () => (float[3] b) { b = Squeeze (x) }>
            }""".replace("float[*]", "float[2, 3]")
        )
        session = monograph.load(model)
        assert ops(session.graph) == ["input", "neg"]
        assert session.run({"x": np.ones((2, 3), np.float32)})[0].tolist() == [[-1] * 3] * 2

    def test_a_known_condition_inside_a_branch(self) -> None:
        model = parse(
            """g (bool c, float[2] x) => (float[2] y) {
                yes = Constant <value = bool {1}> ()
                y = If (c) <
                    then_branch = t () => (float[2] a) {
                        a = If (yes) <
                            then_branch = tt () => (float[2] aa) { aa = Neg (x) },
                            else_branch = te () => (float[2] ab) { ab = Abs (x) }>
                    },
                    else_branch = e () => (float[2] b) { b = Identity (x) }>
            }"""
        )
        assert agree(model, c=True, x=f32(1, -2))[0].tolist() == [-1, 2]
        graph = monograph.load(model).graph
        (value,) = [v for v in graph.values if v.op.name == "if"]
        assert ops(value.op.attributes["then"]) == ["input", "neg"]

    def test_branches_of_unequal_rank(self) -> None:
        model = parse(
            """g (bool c, float[1, 3] x) => (float y) {
                y = If (c) <
                    then_branch = t () => (float[1, 3] a) { a = Neg (x) },
                    else_branch = e () => (float[3] b) { b = Squeeze (x) }>
            }"""
        )
        model.graph.output[0].type.tensor_type.ClearField("shape")
        session = monograph.load(model)
        assert session.outputs[0].shape is None
        x = np.ones((1, 3), np.float32)
        assert session.run({"c": np.array(True), "x": x})[0].shape == (1, 3)
        assert session.run({"c": np.array(False), "x": x})[0].shape == (3,)

    def test_a_branch_that_cannot_run_fails_only_when_it_is_taken(self) -> None:
        model = parse(
            """g (bool c, float[2, 3] x) => (float[2, 3] y) {
                axis = Constant <value_ints = [0]> ()
                y = If (c) <
                    then_branch = t () => (float[2, 3] a) { a = Neg (x) },
                    else_branch = e () => (float[2, 3] b) { b = Squeeze (x, axis) }>
            }"""
        )
        x = np.ones((2, 3), np.float32)
        assert run(model, c=True, x=x)[0].tolist() == [[-1] * 3] * 2
        with pytest.raises(ExecutionError, match="squeezed dimension is not 1"):
            run(model, c=False, x=x)

    def test_two_branches_that_cannot_run_are_a_wrong_model(self) -> None:
        branch = "{ %s = Squeeze (x, axis) }"
        model = parse(
            f"""g (bool c, float[2, 3] x) => (float[2, 3] y) {{
                axis = Constant <value_ints = [0]> ()
                y = If (c) <
                    then_branch = t () => (float[2, 3] a) {branch % "a"},
                    else_branch = e () => (float[2, 3] b) {branch % "b"}>
            }}"""
        )
        with pytest.raises(InferError, match="squeezed dimension is not 1"):
            monograph.load(model)

    def test_a_broken_branch_is_a_wrong_model(self) -> None:
        model = parse(IF.replace("Mul (x, k)", "Mul (x, nowhere)"))
        with pytest.raises(ModelError, match="nothing before it defines"):
            monograph.load(model)

    def test_the_same_value_twice(self) -> None:
        model = parse(
            """g (bool c, float[2] x) => (float[2] y, float[2] z) {
                y, z = If (c) <
                    then_branch = t () => (float[2] a, float[2] a) { a = Neg (x) },
                    else_branch = e () => (float[2] b, float[2] d) { b = Abs (x) d = Exp (x) }>
            }"""
        )
        y, z = run(model, c=True, x=f32(1, 2))
        assert y.tolist() == z.tolist() == [-1, -2]


def loop(body: str, signature: str = "", state: str = "s", given: str = "m, c") -> str:
    return f"""g (int64 m, bool c, float[2] s) => (float[N] last, float[K, N] all) {{
        last, all = Loop ({given}, {state}) <body = b
            (int64 i, bool go, float[N] s_in{signature})
            => (bool go_out, float[N] s_out, float[N] kept) {{ {body} }}>
    }}"""


class TestLoop:
    def test_counts_and_collects(self) -> None:
        model = parse(loop("go_out = Identity (go) s_out = Add (s_in, s) kept = Identity (s_in)"))
        last, kept = agree(model, m=3, c=True, s=f32(1, 2))
        assert last.tolist() == [4, 8]
        assert kept.tolist() == [[1, 2], [2, 4], [3, 6]]
        last, kept = run(model, m=0, c=True, s=f32(1, 2))
        assert last.tolist() == [1, 2]
        assert kept.shape == (0, 2)

    def test_ends_by_its_condition(self) -> None:
        model = parse(
            loop(
                """ten = Constant <value_float = 10.0> ()
                s_out = Add (s_in, s_in)
                total = ReduceSum <keepdims = 0> (s_out)
                go_out = Less (total, ten)
                kept = Identity (s_out)"""
            )
        )
        last, kept = agree(model, m=100, c=True, s=f32(1, 2))
        assert last.tolist() == [4, 8]
        assert len(kept) == 2

    @pytest.mark.parametrize("given", ['m, ""', '"", c', '"", ""'])
    def test_limits_may_be_left_out(self, given: str) -> None:
        model = parse(
            loop(
                """three = Constant <value_int = 3> ()
                go_out = Less (i, three)
                s_out = Add (s_in, s)
                kept = Identity (s_out)""",
                given=given,
            )
        )
        assert len(agree(model, m=9, c=True, s=f32(1, 2))[1]) == 4

    def test_state_that_grows(self) -> None:
        model = parse(
            """g (int64 m, bool c, float[2] s) => (float[N] last) {
                last = Loop (m, c, s) <body = b (int64 i, bool go, float[N] s_in)
                    => (bool go_out, float[M] s_out) {
                    go_out = Identity (go)
                    s_out = Concat <axis = 0> (s_in, s)
                }>
            }"""
        )
        session = monograph.load(model)
        assert isinstance(session.outputs[0].shape[0], str)
        for trips in (0, 1, 4):
            feeds = {"m": np.array(trips), "c": np.array(True), "s": f32(1, 2)}
            assert session.run(feeds)[0].tolist() == [1, 2] * (trips + 1)

    def test_state_that_swaps_settles(self) -> None:
        """Each of two states takes the other's size: both sizes are open."""
        model = parse(
            """g (int64 m, bool c, float[2] a, float[3] b) => (float[N] p, float[M] q) {
                p, q = Loop (m, c, a, b) <body = body (int64 i, bool go, float[N] x, float[M] y)
                    => (bool go_out, float[M] y_out, float[N] x_out) {
                    go_out = Identity (go)
                    y_out = Neg (y)
                    x_out = Neg (x)
                }>
            }"""
        )
        p, q = agree(model, m=3, c=True, a=f32(1, 2), b=f32(3, 4, 5))
        assert (p.tolist(), q.tolist()) == ([-3, -4, -5], [-1, -2])

    def test_loops_in_loops_capture_through_all_scopes(self) -> None:
        model = parse(
            """g (int64 m, bool c, float[2] x) => (float[2] y) {
                zero = Constant <value_floats = [0.0, 0.0]> ()
                y = Loop (m, c, zero) <body = outer (int64 i, bool go, float[2] s)
                    => (bool go_out, float[2] s_out) {
                    go_out = Identity (go)
                    s_out = Loop (i, c, s) <body = inner (int64 j, bool go2, float[2] t)
                        => (bool go2_out, float[2] t_out) {
                        go2_out = Identity (go2)
                        n = Cast <to = 1> (i)
                        nx = Mul (n, x)
                        t_out = Add (t, nx)
                    }>
                }>
            }"""
        )
        # The sum over i < 4 of i * i * x.
        assert agree(model, m=4, c=True, x=f32(1, 2))[0].tolist() == [14, 28]

    def test_an_if_in_a_loop(self) -> None:
        model = parse(
            """g (int64 m, bool c, float[2] x) => (float[2] y) {
                two = Constant <value_int = 2> ()
                y = Loop (m, c, x) <body = outer (int64 i, bool go, float[2] s)
                    => (bool go_out, float[2] s_out) {
                    go_out = Identity (go)
                    early = Less (i, two)
                    s_out = If (early) <
                        then_branch = t () => (float[2] a) { a = Add (s, x) },
                        else_branch = e () => (float[2] b) { b = Neg (s) }>
                }>
            }"""
        )
        assert agree(model, m=3, c=True, x=f32(1, 2))[0].tolist() == [-3, -6]

    def test_a_huge_trip_count_does_not_crash(self) -> None:
        model = parse(loop("go_out = Identity (go) s_out = Identity (s_in) kept = Identity (s_in)"))
        with pytest.raises(ExecutionError, match="too large"):
            run(model, m=2**62, c=True, s=f32(1, 2))

    def test_an_endless_constant_loop_is_not_run_while_importing(self) -> None:
        model = parse(
            """g (float[1] x) => (float[1] y) {
                m = Constant <value_int = 9223372036854775807> ()
                one = Constant <value_floats = [1.0]> ()
                s = Loop (m, "", one) <body = b (int64 i, bool go, float[1] s_in)
                    => (bool go_out, float[1] s_out) {
                    go_out = Identity (go)
                    s_out = Add (s_in, one)
                }>
                y = Add (x, s)
            }"""
        )
        assert "loop" in ops(monograph.load(model).graph)

    def test_the_body_must_fit(self) -> None:
        text = loop("go_out = Identity (go) s_out = Add (s_in, s) kept = Identity (s_in)")
        with pytest.raises(ModelError, match="must take iteration, condition and state"):
            monograph.load(parse(text.replace("float[N] s_in", "float[N] s_in, float[N] more")))

    def nested(self, depth: int, inner: str) -> onnx.ModelProto:
        for level in range(depth):
            inner = f"""s_out = Loop (m, c, s) <body = b{level} (int64 i, bool go, float[N] s)
                => (bool go_out, float[N] s_out) {{ go_out = Identity (go) {inner} }}>"""
        return parse(f"g (int64 m, bool c, float[1] s) => (float[N] s_out) {{ {inner} }}")

    def test_types_of_nested_loops_settle_soon(self) -> None:
        """Every level's state changes its size, so every level is imported more than once."""
        model = self.nested(30, "s_out = Concat <axis = 0> (s, s)")
        assert run(model, m=1, c=True, s=f32(1))[0].tolist() == [1, 1]

    def test_nesting_that_multiplies_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importer, "MAX_REPEATS", 50)
        with pytest.raises(ModelError, match="do not settle within reason"):
            monograph.load(self.nested(30, "s_out = Concat <axis = 0> (s, s)"))


SCAN = """g (float[2] s, float[3, 2] x) => (float[2] last, float[A, B] all) {
    last, all = Scan <num_scan_inputs = 1, ATTRIBUTES
        body = b (float[2] s_in, float[2] x_in) => (float[2] s_out, float[2] kept) {
            s_out = Add (s_in, x_in)
            kept = Mul (s_out, s)
        }> (s, x)
}"""


class TestScan:
    @pytest.mark.parametrize(
        "attributes",
        [
            "",
            "scan_input_directions = [1],",
            "scan_output_directions = [1],",
            "scan_output_axes = [1],",
            "scan_output_axes = [-1], scan_input_directions = [1], scan_output_directions = [1],",
        ],
    )
    def test_directions_and_axes(self, attributes: str) -> None:
        model = parse(SCAN.replace("ATTRIBUTES", attributes))
        agree(model, s=f32(1, 2), x=np.arange(6, dtype=np.float32).reshape(3, 2))

    def test_the_axis_of_an_input(self) -> None:
        text = SCAN.replace("ATTRIBUTES", "scan_input_axes = [1],").replace("[3, 2] x", "[2, T] x")
        last, kept = agree(parse(text), s=f32(1, 2), x=np.arange(6, dtype=np.float32).reshape(2, 3))
        assert last.tolist() == [4, 14]
        assert kept.tolist() == [[1, 10], [2, 18], [4, 28]]

    def test_several_inputs_and_outputs(self) -> None:
        model = parse(
            """g (float s, float[T] x, float[T] y) => (float last, float[T] p, float[T] q) {
                last, p, q = Scan <num_scan_inputs = 2, scan_input_directions = [0, 1],
                    body = b (float s_in, float a, float b) => (float s_out, float c, float d) {
                        c = Add (s_in, a)
                        d = Mul (a, b)
                        s_out = Identity (c)
                    }> (s, x, y)
            }"""
        )
        last, p, q = agree(model, s=np.float32(1), x=f32(1, 2, 3), y=f32(4, 5, 6))
        assert (last, p.tolist(), q.tolist()) == (7, [2, 4, 7], [6, 10, 12])

    def test_nothing_to_scan(self) -> None:
        model = parse(SCAN.replace("ATTRIBUTES", "").replace("[3, 2] x", "[T, 2] x"))
        last, kept = run(model, s=f32(1, 2), x=np.zeros((0, 2), np.float32))
        assert last.tolist() == [1, 2]
        assert kept.shape == (0, 2)

    def test_the_number_of_inputs_is_checked(self) -> None:
        text = SCAN.replace("ATTRIBUTES", "").replace("num_scan_inputs = 1", "num_scan_inputs = 3")
        with pytest.raises(ModelError, match="num_scan_inputs is out of range"):
            monograph.load(parse(text))


SCAN_8 = """g (int64[2] n, float[2, 1] s, float[2, 3, 1] x)
    => (float[2, 1] last, float[A, B, C] all) {
    last, all = Scan <num_scan_inputs = 1, ATTRIBUTES
        body = b (float[1] s_in, float[1] x_in) => (float[1] s_out, float[1] kept) {
            s_out = Add (s_in, x_in)
            kept = Mul (s_out, x_in)
        }> (LENGTHS, s, x)
}"""


class TestScan8:
    """ONNX Runtime's Scan of opset 8 is the second opinion where it can run."""

    def feeds(self) -> dict[str, np.ndarray]:
        x = np.arange(1, 7, dtype=np.float32).reshape(2, 3, 1)
        return {"n": np.array([3, 2]), "s": np.array([[10], [20]], np.float32), "x": x}

    def test_a_batch(self) -> None:
        model = parse(SCAN_8.replace("ATTRIBUTES", "").replace("LENGTHS", '""'), opset=8)
        last, kept = run(model, **self.feeds())
        assert last.tolist() == [[16], [35]]
        assert kept[..., 0].tolist() == [[11, 26, 48], [96, 145, 210]]

    def test_backward(self) -> None:
        text = SCAN_8.replace("ATTRIBUTES", "directions = [1],").replace("LENGTHS", '""')
        _, kept = run(parse(text, opset=8), **self.feeds())
        assert kept[..., 0].tolist() == [[39, 30, 16], [156, 155, 140]]

    def test_lengths(self) -> None:
        model = parse(SCAN_8.replace("ATTRIBUTES", "").replace("LENGTHS", "n"), opset=8)
        last, kept = run(model, **self.feeds())
        assert last.tolist() == [[16], [29]]
        assert kept[..., 0].tolist() == [[11, 26, 48], [96, 145, 0]]

    def test_backward_with_lengths_is_not_supported(self) -> None:
        text = SCAN_8.replace("ATTRIBUTES", "directions = [1],").replace("LENGTHS", "n")
        with pytest.raises(ModelError, match="backward Scan of opset 8 with lengths"):
            monograph.load(parse(text, opset=8))


NESTED = """g (int64 m, bool c, float[N, 2] x) => (float[K, N, 2] y, float[M, 2] z) {
    two = Constant <value_int = 2> ()
    last, z, y = Loop (m, c, x, x) <body = b (int64 i, bool go, float[N, 2] s, float[M, 2] grown)
        => (bool go_out, float[N, 2] s_out, float[M, 2] grown_out, float[N, 2] kept) {
        go_out = Identity (go)
        early = Less (i, two)
        s_out = If (early) <
            then_branch = t () => (float[N, 2] a) { a = Add (s, x) },
            else_branch = e () => (float[N, 2] b) { b = Neg (s) }>
        grown_out = Concat <axis = 0> (grown, x)
        kept = Exp (s)
    }>
}"""


class TestImportedGraphs:
    def graph(self) -> Graph:
        return monograph.load(parse(NESTED)).graph

    def test_have_a_text_form(self) -> None:
        graph = self.graph()
        assert parse_graph(print_graph(graph), constants(graph)) == graph

    def test_rebuild_to_themselves(self) -> None:
        graph = self.graph()
        assert graph.rebuild(lambda old, inputs: old.op(*inputs)) == graph

    def test_specialise_to_static_types_through_all_levels(self) -> None:
        """State that the loop keeps becomes static; state that it changes stays open."""
        graph = self.graph()
        x = Input("x", parse_type("f32[3, 2]"))()

        def bind(old: Value, inputs: tuple[Value, ...]) -> Value:
            return x if old is graph.inputs[2] else old.op(*inputs)

        bound = verify(graph.rebuild(bind))
        (loop,) = [v for v in bound.values if v.op.name == "loop"]
        inner = loop.op.attributes["body"]
        kept, grown = inner.input_types[2:4]
        assert str(kept) == "f32[3, 2]"
        assert str(grown).startswith("f32[~loop")
        (branching,) = [v for v in inner.values if v.op.name == "if"]
        assert str(branching.op.attributes["then"].output_types[0]) == "f32[3, 2]"
        assert str(bound.output_types[0]).endswith(", 3, 2]")
        feeds = [np.array(3), np.array(True), np.ones((3, 2), np.float32)]
        for a, b in zip(evaluate(bound, feeds), evaluate(graph, feeds), strict=True):
            np.testing.assert_array_equal(a, b)


def deep(calls: int) -> onnx.ModelProto:
    """Every function holds an If that calls the next function: two levels of nesting each."""
    functions = "".join(
        f"""<domain: "f", opset_import: ["": 17, "f": 1]> f{level} (c, a) => (b) {{
            b = If (c) <
                then_branch = t () => (float[2] p) {{ p = f.f{level + 1} (c, a) }},
                else_branch = e () => (float[2] q) {{ q = Abs (a) }}>
        }}\n"""
        for level in range(calls)
    )
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "f": 1]>
        g (bool c, float[2] x) => (float[2] y) {{ y = f.f0 (c, x) }}
        {functions}
        <domain: "f", opset_import: ["": 17]> f{calls} (c, a) => (b) {{ b = Neg (a) }}"""
    )


def test_deep_nesting_is_no_danger_to_the_stack() -> None:
    session = monograph.load(deep(importer.MAX_DEPTH // 2 - 1))
    (y,) = session.run({"c": np.array(True), "x": f32(1, 2)})
    assert y.tolist() == [-1, -2]
    graph = session.graph
    assert graph.rebuild(lambda old, inputs: old.op(*inputs)) == graph
    assert parse_graph(print_graph(graph), constants(graph)) == graph


def test_deeper_nesting_is_refused() -> None:
    with pytest.raises(ModelError, match="nested too deeply"):
        monograph.load(deep(importer.MAX_DEPTH // 2 + 1))
