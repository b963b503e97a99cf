"""One report lists all that a model needs and Monograph does not implement."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.errors import InferError, ModelError, UnsupportedError
from monograph.frontend.onnx import missing_ops, read_model
from monograph.frontend.onnx.support import SHOWN_REFUSALS
from tests.frontend.untrusted.hostile import info, model, refused, subgraph

STRANGE = {"": 21, "mine": 1}


def strange(x: str, y: str, name: str = "") -> onnx.NodeProto:
    return helper.make_node("Strange", [x], [y], name, domain="mine")


def odd(x: str, y: str, name: str = "") -> onnx.NodeProto:
    """A node that no one may convert: Monograph knows no such attribute."""
    return helper.make_node("QuickGelu", [x], [y], name, domain="com.microsoft", odd=1)


OPSETS = {"": 21, "com.microsoft": 1, "mine": 1}


def load_error(made: onnx.ModelProto) -> str:
    with pytest.raises(UnsupportedError) as caught:
        monograph.load(made)
    return str(caught.value)


@pytest.mark.parametrize("shape", [[2], ["N"]], ids=["static", "symbolic"])
def test_every_node_that_is_not_supported_is_listed(shape: list[int | str]) -> None:
    nodes = [
        odd("x", "a", "first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"]),  # needs the rank that nobody knows now
        odd("c", "d", "second"),
        odd("x", "e", "third"),
        helper.make_node("Sum", ["c", "d", "e"], ["y"]),
    ]
    text = load_error(model(nodes, inputs=[info("x", shape)], opsets=OPSETS))
    assert "3 node(s) ask for what Monograph does not implement" in text
    for name in ("first", "second", "third"):
        assert f"    {name} (QuickGelu): the node has attributes" in text
    assert "what to do" in text


def test_one_node_is_reported_as_it_is() -> None:
    text = load_error(model([odd("x", "y", "only")], opsets=OPSETS))
    assert text.startswith("the node has attributes that Monograph does not know")
    assert "node: only" in text


def test_missing_ops_and_nodes_come_together() -> None:
    nodes = [strange("x", "a", "s"), odd("a", "b", "o"), strange("b", "y", "t")]
    text = load_error(model(nodes, opsets=OPSETS))
    assert "mine.Strange (opset 1) x2: s, t" in text
    assert "1 node(s) ask" in text
    assert "    o (QuickGelu)" in text
    assert text.count("Strange") == 1


def test_a_long_list_is_cut() -> None:
    nodes = [odd("x", f"y{i}") for i in range(SHOWN_REFUSALS + 3)]
    nodes.append(helper.make_node("Identity", ["y0"], ["y"]))
    text = load_error(model(nodes, opsets=OPSETS))
    assert f"{SHOWN_REFUSALS + 3} node(s)" in text
    assert "and 3 more" in text


def test_nodes_of_branches_loops_and_functions_are_listed_by_their_path() -> None:
    function = helper.make_function(
        "mine", "F", ["a"], ["b"], [odd("a", "b", "inside")],
        [helper.make_opsetid("com.microsoft", 1)],
    )  # fmt: skip
    then, orelse = subgraph([odd("x", "z", "here")]), subgraph([odd("x", "z", "there")])
    nodes = [
        helper.make_node("F", ["x"], ["f"], "call", domain="mine"),
        helper.make_node("If", ["c"], ["i"], "if", then_branch=then, else_branch=orelse),
        helper.make_node("Add", ["f", "i"], ["y"]),
    ]
    inputs = [info("x"), info("c", [], TensorProto.BOOL)]
    text = load_error(model(nodes, inputs=inputs, functions=[function], opsets=OPSETS))
    assert "    call/inside (QuickGelu)" in text
    assert "    if.then_branch/here (QuickGelu)" in text
    assert "    if.else_branch/there (QuickGelu)" in text


def test_missing_ops_are_named_by_their_path() -> None:
    function = helper.make_function(
        "mine", "F", ["a"], ["b"], [strange("a", "b")], [helper.make_opsetid("mine", 1)]
    )
    then = subgraph([helper.make_node("F", ["x"], ["z"], "call", domain="mine")])
    node = helper.make_node("If", ["c"], ["y"], "if", then_branch=then, else_branch=then)
    inputs = [info("x"), info("c", [], TensorProto.BOOL)]
    made = model([node], inputs=inputs, functions=[function], opsets=STRANGE)
    (missing,) = missing_ops(read_model(made))
    assert missing.nodes in (
        ("if.then_branch/call/Strange#0",),
        ("if.else_branch/call/Strange#0",),
    )


def test_a_function_that_is_never_called_blocks_nothing() -> None:
    unused = helper.make_function(
        "mine", "F", ["a"], ["b"], [strange("a", "b")], [helper.make_opsetid("mine", 1)]
    )
    made = model([helper.make_node("Relu", ["x"], ["y"])], functions=[unused], opsets=STRANGE)
    (y,) = monograph.load(made).run({"x": np.array([-1, 1], np.float32)})
    assert y.tolist() == [0, 1]


def test_a_wrong_node_before_any_that_is_not_supported_is_the_error() -> None:
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["a"], "wrong", axis=5),
        odd("a", "y", "odd"),
    ]
    with pytest.raises(InferError, match="axis out of range"):
        monograph.load(model(nodes, opsets=OPSETS))


def test_looking_on_has_the_limits_of_an_import() -> None:
    """Functions that call each other twice, forty deep, behind a node that is not supported."""
    functions = []
    imports = [helper.make_opsetid("mine", 1), helper.make_opsetid("", 21)]
    for i in range(40):
        inner = [
            helper.make_node(f"F{i + 1}", ["a"], ["m"], domain="mine"),
            helper.make_node(f"F{i + 1}", ["m"], ["b"], domain="mine"),
        ]
        functions.append(helper.make_function("mine", f"F{i}", ["a"], ["b"], inner, imports))
    last = [helper.make_node("Relu", ["a"], ["b"])]
    functions.append(helper.make_function("mine", "F40", ["a"], ["b"], last, imports))
    nodes = [odd("x", "a"), helper.make_node("F0", ["a"], ["y"], domain="mine")]
    with refused(error=ModelError):
        monograph.load(model(nodes, functions=functions, opsets=OPSETS))
