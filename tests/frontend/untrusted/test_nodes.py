"""Nodes whose inputs do not fit them: a judgement that says so, never one of Python's errors."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.errors import ExecutionError, InferError, MonographError
from monograph.ir import Graph, Input, evaluate, parse_tensor_type
from monograph.ops.elementwise import Add
from monograph.ops.index import Gather
from tests.frontend.untrusted.hostile import info, model

INT = TensorProto.INT64


def judged(made: Any, feeds: dict[str, Any] | None = None) -> MonographError:
    """The error that a model ends in, which must be one that somebody foresaw."""
    with pytest.raises(MonographError) as caught:
        monograph.load(made).run(feeds or {})
    assert not caught.value.internal, caught.value
    return caught.value


def of(op: str, *inputs: tuple[str, list[Any], int], **attributes: Any) -> Any:
    """A model of one node over inputs of these names, shapes and element types."""
    names = [name for name, _, _ in inputs]
    node = helper.make_node(op, names, ["y"], **attributes)
    infos = [info(name, shape, kind) for name, shape, kind in inputs]
    output = helper.make_empty_tensor_value_info("y")
    return model([node], infos, [output], opsets={"": 24})


FLOAT = TensorProto.FLOAT


@pytest.mark.parametrize(
    "made",
    [
        of("Softmax", ("x", [], FLOAT), axis=0),
        of("ReduceMax", ("x", [], FLOAT), ("axes", [1], INT)),
        of("Split", ("x", [], FLOAT), num_outputs=1),
        of("Attention", ("q", [1, 2, 3, 4], FLOAT), ("k", [1], FLOAT), ("v", [], FLOAT)),
        of("Attention", ("q", [1, 2, 4], FLOAT), ("k", [4], FLOAT), ("v", [4], FLOAT),
           q_num_heads=2, kv_num_heads=2),
        of("STFT", ("x", [1, 8, 1], FLOAT), ("step", [], INT), ("window", [], FLOAT)),
        of("LSTM", ("x", [2, 1, 3], FLOAT), ("w", [1, 8, 3], FLOAT), ("r", [], FLOAT)),
        of("DequantizeLinear", ("x", [], TensorProto.INT8), ("s", [2], FLOAT), axis=0),
        of("OneHot", ("x", [2], INT), ("depth", [1], INT), ("values", [], FLOAT)),
        of("Col2Im", ("x", [1, 4, 4], FLOAT), ("image", [2], INT), ("block", [], INT)),
        of("Col2Im", ("x", [], FLOAT), ("image", [2], INT), ("block", [2], INT)),
    ],
    ids=lambda made: made.graph.node[0].op_type,
)  # fmt: skip
def test_too_few_dimensions(made):
    feeds = {}
    for port in made.graph.input:
        kind = helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
        dims = [d.dim_value for d in port.type.tensor_type.shape.dim]
        feeds[port.name] = np.zeros(dims, kind)
    judged(made, feeds)


@pytest.mark.parametrize(
    "made",
    [
        of("Unsqueeze", ("x", [2], FLOAT), ("axes", [2**31], INT)),
        of("Reshape", ("x", [2], FLOAT), ("shape", [2**31], INT)),
        of("Col2Im", ("x", [1, 4, 4], FLOAT), ("image", [2], INT), ("block", [2**31], INT)),
    ],
    ids=lambda made: made.graph.node[0].op_type,
)
def test_a_rank_beyond_reason(made):
    """The length of a shape that the file only declares must not be built."""
    assert "too many dimensions" in str(judged(made))


def test_zeros_of_a_size_that_is_only_stated():
    """Biases and states that are left out are zeros, but not before somebody runs the model."""
    operands = [info("x", [2, 1, 3]), info("w", ["D", "R", 3]), info("r", ["D", "R", "H"])]
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2**40)
    y = helper.make_tensor_value_info("y", FLOAT, None)
    assert "too large" in str(judged(model([node], operands, [y])))
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2**28)
    tracemalloc.start()
    monograph.load(model([node], operands, [y]))
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_classes_in_pairs_are_no_matrix_of_all_pairs_and_classes():
    """200 classes have 19,900 pairs and 40,000 places: 6 GB, for a file of 300 KB."""
    classes = 200
    pairs = classes * (classes - 1) // 2
    node = helper.make_node(
        "SVMClassifier",
        ["x"],
        ["label", "y"],
        domain="ai.onnx.ml",
        classlabels_ints=range(classes),
        vectors_per_class=[1] * classes,
        support_vectors=[0.5] * classes,
        coefficients=[1.0] * (classes * (classes - 1)),
        rho=[0.0] * pairs,
        prob_a=[-1.0] * pairs,
        prob_b=[0.0] * pairs,
        kernel_params=[1.0, 0.0, 0.0],
    )
    made = model([node], [info("x", [1, 1])], [info("y", [1, classes])], opsets={"ai.onnx.ml": 3})
    tracemalloc.start()
    monograph.load(made)
    assert tracemalloc.get_traced_memory()[1] < 1 << 28
    tracemalloc.stop()


def test_sizes_that_add_up_beyond_64_bits():
    sizes = helper.make_tensor("sizes", INT, [2], [2**63 - 1, 2**63 - 1])
    node = helper.make_node("Split", ["x", "sizes"], ["y", "z"])
    judged(model([node], [info("x", ["N"])], [info("y", ["A"])], initializer=[sizes]))


def test_recurrent_cells_over_texts():
    texts = [info(n, s, TensorProto.STRING) for n, s in {"x": [2, 1, 3], "w": [1, 2, 3]}.items()]
    r = info("r", [1, 2, 2], TensorProto.STRING)
    node = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=2)
    assert "must be floats" in str(judged(model([node], [*texts, r])))


def test_positions_and_sizes_that_are_no_numbers():
    place = helper.make_tensor("place", TensorProto.COMPLEX64, [], [1 + 1j])
    nodes = [
        helper.make_node("SequenceConstruct", ["x"], ["s"]),
        helper.make_node("SequenceAt", ["s", "place"], ["y"]),
    ]
    judged(model(nodes, initializer=[place]), {"x": np.ones(2, "f4")})
    scales = info("scales", [3], TensorProto.COMPLEX64)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"])
    judged(
        model([node], [info("x", [1, 2, 2]), scales]),
        {"x": np.ones((1, 2, 2), "f4"), "scales": np.ones(3, "c8")},
    )


def test_a_sequence_whose_elements_do_not_fit_together():
    s = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    for axis, new, shapes in [
        (0, 0, [()]),
        (-8, 0, [(2,)]),
        (0, 0, [(2, 2), (2, 3)]),
        (0, 1, [(2,), (3,)]),
    ]:
        node = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=axis, new_axis=new)
        made = model([node], [s], [helper.make_empty_tensor_value_info("y")])
        judged(made, {"s": [np.ones(shape, "f4") for shape in shapes]})


@pytest.mark.parametrize(
    ("op", "x", "w", "y"),
    [
        ("Conv", (0, 4, 3), (2, 4, 2), (0, 2, 2)),
        ("Conv", (1, 4, 3), (0, 4, 2), (1, 0, 2)),
        ("Conv", (1, 0, 3), (2, 0, 2), (1, 2, 2)),
        ("ConvTranspose", (0, 4, 3), (4, 2, 2), (0, 2, 4)),
        ("ConvTranspose", (1, 4, 3), (4, 0, 2), (1, 0, 4)),
    ],
)
def test_convolutions_of_nothing(op: str, x: Any, w: Any, y: Any):
    made = of(op, ("x", [*x], FLOAT), ("w", [*w], FLOAT))
    (given,) = monograph.load(made).run({"x": np.ones(x, "f4"), "w": np.ones(w, "f4")})
    assert given.shape == y
    assert not given.any()


def test_sizes_of_nothing_are_folded():
    """A vector of one and one of none broadcast to none."""
    nodes = [
        helper.make_node("Shape", ["x"], ["one"]),
        helper.make_node("Shape", ["x"], ["none"], start=1),
        helper.make_node("Add", ["one", "none"], ["y"]),
    ]
    (y,) = monograph.load(model(nodes, outputs=[info("y", [0], INT)])).run({"x": np.ones(2, "f4")})
    assert y.shape == (0,)


# What tells a judgement from a fault


def argument(text: str, name: str) -> Any:
    return Input(name, parse_tensor_type(text))()


def test_shapes_that_do_not_fit_at_run_time_are_judged_by_the_op():
    """Symbols hid it while importing: the op's own rule says what is wrong, not numpy."""
    x, y = argument("f32[N]", "x"), argument("f32[M]", "y")
    graph = Graph((x, y), (("z", Add()(x, y)),))
    with pytest.raises(ExecutionError) as caught:
        evaluate(graph, [np.ones(2, "f4"), np.ones(3, "f4")])
    assert not caught.value.internal
    assert "add(f32[2], f32[3])" in str(caught.value)
    assert "shapes do not broadcast" in str(caught.value)


def test_what_nobody_foresaw_is_marked(monkeypatch: pytest.MonkeyPatch):
    def fail(*given: Any) -> Any:
        raise KeyError("surprise")

    x = argument("f32[2]", "x")
    value = Add()(x, x)
    monkeypatch.setattr(Add, "reference", fail)
    with pytest.raises(ExecutionError) as caught:
        evaluate(Graph((x,), (("z", value),)), [np.ones(2, "f4")])
    assert caught.value.internal
    assert "KeyError: 'surprise'" in str(caught.value)
    monkeypatch.setattr(Gather, "infer", fail)
    made = of("Gather", ("x", [2], FLOAT), ("i", [1], INT))
    with pytest.raises(InferError, match="cannot be converted") as refused:
        monograph.load(made)
    assert refused.value.internal
    assert "fault of Monograph" in str(refused.value)


def test_ops_given_a_sequence_say_that_they_take_tensors():
    nodes = [
        helper.make_node("SequenceConstruct", ["x"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    error = judged(model(nodes), {"x": np.ones(2, "f4")})
    assert "tensor" in str(error)
    assert "attribute" not in str(error)
