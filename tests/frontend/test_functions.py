"""Functions of a model are inlined: attributes, overloads, scopes, opsets of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import monograph
from monograph.errors import ModelError, UnsupportedError
from monograph.ir import Graph

HEADER = '<ir_version: 10, opset_import: ["": 18, "f": 1]>\n'


def parse(text: str) -> onnx.ModelProto:
    """A model whose functions are in domain f."""
    return onnx.parser.parse_model(HEADER + text.replace("FUNCTION", FUNCTION))


FUNCTION = '<domain: "f", opset_import: ["": 18, "f": 1]>'


def f32(*data: Any) -> np.ndarray:
    return np.array(data, np.float32)


def run(model: onnx.ModelProto, **feeds: Any) -> list[Any]:
    return monograph.load(model).run({k: np.asarray(v) for k, v in feeds.items()})


def ops(graph: Graph) -> list[str]:
    return [v.op.name for v in graph.values]


def test_functions_call_functions() -> None:
    model = parse(
        """g (float[2] x) => (float[2] y) { y = f.twice (x) }
        FUNCTION twice (a) => (b) { t = f.more (a) b = f.more (t) }
        FUNCTION more (a) => (b) { one = Constant <value_float = 1.0> () b = Add (a, one) }"""
    )
    assert run(model, x=f32(1, 2))[0].tolist() == [3, 4]
    assert set(ops(monograph.load(model).graph)) == {"input", "constant", "add"}


def test_values_name_the_call_they_came_from() -> None:
    model = parse(
        """g (float[2] x) => (float[2] y) { y = f.outer (x) }
        FUNCTION outer (a) => (b) { b = f.inner (a) }
        FUNCTION inner (a) => (b) { b = Exp (a) }"""
    )
    graph = monograph.load(model).graph
    assert graph.origin(graph.outputs[0][1]) == "outer#0/inner#0/Exp#0"


ATTRIBUTES = """g (float[2] x) => (float[2] y, float[2] z) {
    y = f.leaky (x)
    z = f.leaky <slope = 0.25> (x)
}
FUNCTION leaky <slope: float = 0.5> (a) => (b) { b = f.inner <s: float = @slope> (a) }
FUNCTION inner <s> (a) => (b) { b = LeakyRelu <alpha: float = @s> (a) }"""


def test_attributes_with_defaults_and_references() -> None:
    y, z = run(parse(ATTRIBUTES), x=f32(-4, 4))
    assert y.tolist() == [-2, 4]
    assert z.tolist() == [-1, 4]


def test_an_attribute_that_nobody_gives_has_the_operators_default() -> None:
    model = parse(
        """g (float[2] x) => (float[2] y) { y = f.inner (x) }
        FUNCTION inner <s> (a) => (b) { b = LeakyRelu <alpha: float = @s> (a) }"""
    )
    np.testing.assert_allclose(run(model, x=f32(-4, 4))[0], [-0.04, 4], rtol=1e-6)


def test_references_inside_sub_graphs_and_by_other_names() -> None:
    """An attribute has another name in the body that ONNX gives for an op (Celu)."""
    model = parse(
        """g (bool c, float[2] x) => (float[2] y) { y = f.pick <s = 2.0> (c, x) }
        FUNCTION pick <s> (c, a) => (b) {
            b = If (c) <
                then_branch = t () => (float[2] p) { p = Celu <alpha: float = @s> (a) },
                else_branch = e () => (float[2] q) { q = ThresholdedRelu <alpha: float = @s> (a) }>
        }"""
    )
    y = run(model, c=True, x=f32(-2, 4))[0]
    np.testing.assert_allclose(y, [2 * np.expm1(-1), 4], rtol=1e-6)
    assert run(model, c=False, x=f32(1.5, 4))[0].tolist() == [0, 4]


def test_overloads() -> None:
    functions = [
        helper.make_function(
            "f", "g", ["a"], ["b"], [helper.make_node(op, ["a"], ["b"])],
            [helper.make_opsetid("", 18)], overload=overload,
        )
        for op, overload in (("Neg", ""), ("Abs", "other"))
    ]  # fmt: skip
    nodes = [
        helper.make_node("g", ["x"], ["y"], domain="f"),
        helper.make_node("g", ["x"], ["z"], domain="f", overload="other"),
    ]
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "xyz"]
    graph = helper.make_graph(nodes, "main", infos[:1], infos[1:])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)
    y, z = run(model, x=f32(-1, 2))
    assert y.tolist() == [1, -2]
    assert z.tolist() == [1, 2]


def test_a_function_stands_before_an_operator_of_its_name() -> None:
    model = onnx.parser.parse_model(
        HEADER
        + """g (float[2] x) => (float[2] y) { y = Relu (x) }
        <domain: "", opset_import: ["": 18]> Relu (a) => (b) { b = Neg (a) }"""
    )
    assert run(model, x=f32(1, -2))[0].tolist() == [-1, 2]


def test_opsets_of_a_function() -> None:
    """Softmax flattened what follows its axis before opset 13."""
    text = """g (float[2, 2, 2] x) => (float[2, 2, 2] y, float[2, 2, 2] z) {
        y = f.old (x)
        z = Softmax <axis = 1> (x)
    }
    <domain: "f", opset_import: ["": 11]> old (a) => (b) { b = Softmax <axis = 1> (a) }"""
    y, z = run(onnx.parser.parse_model(HEADER + text), x=np.zeros((2, 2, 2), np.float32))
    np.testing.assert_allclose(y, 0.25)
    np.testing.assert_allclose(z, 0.5)


def test_inputs_left_out() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z, float[2] w) {
        lo = Constant <value_float = -1.0> ()
        hi = Constant <value_float = 1.0> ()
        y = f.clip (x, lo)
        z = f.clip (x, "", hi)
        w = f.clip (x)
    }
    FUNCTION clip (a, low, high) => (b) { b = Clip (a, low, high) }"""
    y, z, w = run(parse(text), x=f32(-4, 4))
    assert (y.tolist(), z.tolist(), w.tolist()) == ([-1, 4], [-4, 1], [-4, 4])


def test_inputs_left_out_are_absent_in_sub_graphs_too() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) { y = f.clip (c, x) }
    FUNCTION clip (c, a, low) => (b) {
        b = If (c) <
            then_branch = t () => (float[2] p) { p = Clip (a, low) },
            else_branch = e () => (float[2] q) { q = Neg (a) }>
    }"""
    assert run(parse(text), c=True, x=f32(-4, 4))[0].tolist() == [-4, 4]


def test_too_many_inputs() -> None:
    text = """g (float[2] x) => (float[2] y) { y = f.one (x, x) }
    FUNCTION one (a) => (b) { b = Neg (a) }"""
    with pytest.raises(ModelError, match=r"too many inputs|expected: 1"):
        monograph.load(parse(text))


def test_outputs_left_out() -> None:
    text = """g (float[2] x) => (float[2] y) { "", y = f.two (x) }
    FUNCTION two (a) => (b, c) { b = Neg (a) c = Abs (a) }"""
    model = parse(text.replace('"", y', "unused, y"))
    model.graph.node[0].output[0] = ""
    assert run(model, x=f32(-1, 2))[0].tolist() == [1, 2]


def test_an_output_that_is_an_input() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z) { y, z = f.same (x) }
    FUNCTION same (a) => (a, b) { b = Neg (a) }"""
    y, z = run(parse(text), x=f32(-1, 2))
    assert (y.tolist(), z.tolist()) == ([-1, 2], [1, -2])


def test_names_of_a_body_are_its_own() -> None:
    """x in the body is not the x of the caller, and t is defined at each call."""
    text = """g (float[2] x, float[2] t) => (float[2] y, float[2] z) {
        y = f.neg (t)
        z = f.neg (x)
    }
    FUNCTION neg (x) => (y) { t = Abs (x) y = Neg (t) }"""
    y, z = run(parse(text), x=f32(-1, 2), t=f32(-3, 4))
    assert (y.tolist(), z.tolist()) == ([-3, -4], [-1, -2])


def test_a_body_does_not_see_its_caller() -> None:
    text = """g (float[2] x, float[2] hidden) => (float[2] y) { y = f.peek (x) }
    FUNCTION peek (a) => (b) { b = Add (a, hidden) }"""
    with pytest.raises(ModelError, match="nothing before it defines"):
        monograph.load(parse(text))


LOOP = """g (int64 m, bool c, float[2] x) => (float[2] y) { y = f.repeat (m, c, x) }
FUNCTION repeat (n, go, a) => (b) {
    double = f.twice (a)
    b = Loop (n, go, a) <body = body (int64 i, bool more, float[2] s)
        => (bool more_out, float[2] s_out) {
        more_out = Identity (more)
        t = f.twice (s)
        u = Add (t, double)
        all = ReduceMin <keepdims = 0> (u)
        zero = Constant <value_float = 0.0> ()
        go_on = Less (zero, all)
        s_out = If (go_on) <
            then_branch = p () => (float[2] v) { v = f.plus (u, a) },
            else_branch = q () => (float[2] w) { w = Neg (a) }>
    }>
}
FUNCTION twice (a) => (b) { b = Add (a, a) }
FUNCTION plus (a, b) => (c) { c = Add (a, b) }"""


def test_sub_graphs_of_a_function_capture_its_values() -> None:
    """Loop and If in a function read its inputs and its own values, through calls in between."""
    model = parse(LOOP)
    # s <- 2 s + 2 x + x, from x: 5 x, then 13 x.
    assert run(model, m=2, c=True, x=f32(1, 2))[0].tolist() == [13, 26]
    assert run(model, m=1, c=True, x=f32(-1, -2))[0].tolist() == [1, 2]


def test_a_function_called_in_a_sub_graph_on_captured_values() -> None:
    text = """g (bool c, float[2] x, float[2] z) => (float[2] y) {
        y = If (c) <
            then_branch = t () => (float[2] p) { p = f.pick (c, x, z) },
            else_branch = e () => (float[2] q) { q = f.pick (c, z, x) }>
    }
    FUNCTION pick (c, a, b) => (r) {
        r = If (c) <
            then_branch = t () => (float[2] p) { p = Neg (a) },
            else_branch = e () => (float[2] q) { q = Sub (a, b) }>
    }"""
    model = parse(text)
    assert run(model, c=True, x=f32(1, 2), z=f32(5, 7))[0].tolist() == [-1, -2]
    assert run(model, c=False, x=f32(1, 2), z=f32(5, 7))[0].tolist() == [4, 5]


def test_a_known_condition_in_a_function_chooses_the_branch() -> None:
    text = """g (float[2] x) => (float[2] y) { y = f.pick <flag = 1> (x) }
    FUNCTION pick <flag> (a) => (b) {
        k = Constant <value_int: int = @flag> ()
        c = Cast <to = 9> (k)
        b = If (c) <
            then_branch = t () => (float[2] p) { p = Neg (a) },
            else_branch = e () => (float[2] q) { q = Abs (a) }>
    }"""
    assert ops(monograph.load(parse(text)).graph) == ["input", "neg"]


def test_sub_graphs_as_attributes_of_functions_are_not_supported() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) { y = f.pick (c, x) }
    FUNCTION pick <then> (c, a) => (b) {
        b = If (c) <
            then_branch = t () => (float[2] p) { p = Neg (a) },
            else_branch = e () => (float[2] q) { q = Abs (a) }>
    }"""
    model = parse(text)
    branch = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["z"])],
        "t",
        [],
        [helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [2])],
    )
    model.graph.node[0].attribute.append(helper.make_attribute("then", branch))
    (attribute,) = [a for a in model.functions[0].node[0].attribute if a.name == "then_branch"]
    attribute.ClearField("g")
    attribute.ref_attr_name = "then"
    with pytest.raises(UnsupportedError, match="passes a sub-graph on as an attribute"):
        monograph.load(model)
