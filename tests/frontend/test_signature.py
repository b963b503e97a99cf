"""Nodes against the signatures of their ops: nothing that stands in a file is dropped silently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import monograph
from monograph.errors import ModelError, UnsupportedError
from tests.frontend.nodes import run_node
from tests.frontend.untrusted.hostile import info, model

X = np.ones((2, 2), np.float32)
IMAGE = np.ones((1, 1, 3, 3), np.float32)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("op", "inputs", "options", "message"),
    [
        ("Clip", [X], {"opset": 13, "min": 2.0}, "does not have"),
        ("Sub", [X, X, X], {}, "more inputs"),
        ("Relu", [X, X, X], {}, "more inputs"),
        ("Sub", [X], {}, "fewer inputs"),
        ("Relu", [X], {"outputs": 2}, "more outputs"),
        ("Softmax", [X], {"axs": 0}, "did you mean axis"),
        ("Conv", [IMAGE, IMAGE], {"kernel_shpe": [3, 3]}, "did you mean kernel_shape"),
        ("Add", [X, X], {"opset": 7, "axis": 0, "broadcast": 1}, "does not have"),
        ("ReduceSum", [X], {"opset": 18, "axes": [0]}, "does not have"),
        ("Softmax", [X], {"axis": 1.0}, "attribute 'axis' has the wrong kind"),
        ("Concat", [X, X], {}, "requires: axis"),
        ("HardSwish", [X], {"alpha": 0.5}, "does not have"),
    ],
)
def test_a_node_that_its_op_does_not_allow_is_refused(
    op: str, inputs: list[Any], options: dict[str, Any], message: str, symbolic: bool
) -> None:
    with pytest.raises(ModelError, match=message):
        run_node(op, *inputs, symbolic=symbolic, **options)


def test_the_refusal_shows_both_sides() -> None:
    with pytest.raises(ModelError) as caught:
        run_node("Clip", X, opset=13, min=2.0)
    text = str(caught.value)
    assert "expected: none (ai.onnx.Clip since opset 13)" in text
    assert "given: min" in text


def test_an_attribute_of_an_earlier_opset_still_counts_there() -> None:
    (y,) = run_node("Clip", X, opset=6, min=2.0)
    assert (y == 2).all()
    (total,) = run_node("ReduceSum", X, opset=11, axes=[0], keepdims=0)
    assert total.tolist() == [2.0, 2.0]


def test_inputs_left_out_at_the_end_do_not_count() -> None:
    node = helper.make_node("Relu", ["x", ""], ["y"])
    (y,) = monograph.load(model([node])).run({"x": np.array([-1, 2], np.float32)})
    assert y.tolist() == [0.0, 2.0]


@pytest.mark.parametrize("symbolic", [False, True])
def test_an_attribute_that_no_converter_reads_is_refused(symbolic: bool) -> None:
    options: dict[str, Any] = {"domain": "com.microsoft", "opset": 1, "symbolic": symbolic}
    (y,) = run_node("QuickGelu", X, alpha=0.0, **options)
    assert (y == 0.5).all()
    with pytest.raises(UnsupportedError, match="does not know") as caught:
        run_node("QuickGelu", X, alhpa=0.0, **options)
    assert "expected: alpha" in str(caught.value)
    assert "given: alhpa" in str(caught.value)
    assert "did you mean alpha" in str(caught.value)
    with pytest.raises(UnsupportedError, match="inputs that Monograph does not know") as caught:
        run_node("QuickGelu", X, X, **options)
    assert "expected: at most 1" in str(caught.value)
    (y,) = run_node("QuickGelu", X, None, alpha=0.0, **options)
    assert (y == 0.5).all()


def test_a_call_gives_a_function_no_attribute_that_it_does_not_have() -> None:
    body = [helper.make_node("LeakyRelu", ["a"], ["b"])]
    imports = [helper.make_opsetid("", 21)]
    function = helper.make_function("mine", "F", ["a"], ["b"], body, imports, ["alpha"])
    opsets = {"": 21, "mine": 1}

    def load(**attributes: float) -> monograph.Session:
        call = helper.make_node("F", ["x"], ["y"], domain="mine", **attributes)
        return monograph.load(model([call], functions=[function], opsets=opsets))

    load(alpha=0.5)
    with pytest.raises(ModelError, match="a function is called with attributes"):
        load(slope=0.5)


def test_nodes_of_subgraphs_and_functions_are_checked() -> None:
    wrong = helper.make_node("Softmax", ["a"], ["b"], axs=0)
    function = helper.make_function(
        "mine", "F", ["a"], ["b"], [wrong], [helper.make_opsetid("", 21)]
    )
    call = helper.make_node("F", ["x"], ["y"], domain="mine")
    made = model([call], functions=[function], opsets={"": 21, "mine": 1})
    with pytest.raises(ModelError, match="axs"):
        monograph.load(made)
    inner = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["z"], axs=0)], "inner", [], [info("z")]
    )
    branch = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    made = model([branch], inputs=[info("x"), info("c", [], 9)])
    with pytest.raises(ModelError, match="axs"):
        monograph.load(made)
