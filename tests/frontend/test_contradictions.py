"""Files that contradict themselves are read as ONNX Runtime reads them, with one warning."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.errors import FeedError, ModelError
from monograph.frontend.onnx import read_model
from monograph.runtime import feeds as feeds_module

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
Node = onnx.NodeProto


def info(
    name: str, shape: list[Any] | None, element: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def model(
    nodes: list[Node], inputs: list[Any], outputs: list[Any], *, opset: int = 17, **parts: Any
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "net", inputs, outputs, **parts)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


RELU = helper.make_node("Relu", ["x"], ["y"])
OPEN = info("x", ["a", "b"])
FIXED = info("x", [2, 3])
Y = onnx.ValueInfoProto(name="y")


def weight(value: float, name: str = "w") -> onnx.TensorProto:
    return numpy_helper.from_array(np.full((2, 3), value, np.float32), name)


def branch(op: str, shape: list[Any]) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [info(op, shape)])


def two_opsets(first: int, second: int) -> onnx.ModelProto:
    """Softmax is along all axes before opset 13, and along the last one from then on."""
    made = model([helper.make_node("Softmax", ["x"], ["y"], axis=0)], [FIXED], [Y], opset=first)
    made.opset_import.append(helper.make_opsetid("ai.onnx", second))
    return made


def without_import() -> onnx.ModelProto:
    return model([helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")], [FIXED], [Y])


def only_microsoft() -> onnx.ModelProto:
    made = model([helper.make_node("Softmax", ["x"], ["y"])], [FIXED], [Y])
    made.opset_import[0].domain, made.opset_import[0].version = "com.microsoft", 1
    return made


def loop() -> onnx.ModelProto:
    """The body declares other shapes than its state has."""
    nodes = [helper.make_node("Relu", ["s"], ["t"]), helper.make_node("Identity", ["c"], ["d"])]
    flags = [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL)]
    body = helper.make_graph(
        nodes,
        "body",
        [*flags, info("s", [9])],
        [info("d", [], TensorProto.BOOL), info("t", [4, 4])],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    count = numpy_helper.from_array(np.array(3), "n")
    return model([node], [FIXED], [info("y", [1])], initializer=[count])


ADD = helper.make_node("Add", ["x", "w"], ["y"])
CHAIN = [helper.make_node("Relu", ["x"], ["m"]), helper.make_node("Neg", ["m"], ["y"])]
FILES: dict[str, tuple[onnx.ModelProto, dict[str, Any], str]] = {
    "rank of an output": (model([RELU], [OPEN], [info("y", ["a"])]), {}, "declared f32[a]"),
    "sizes of an output": (model([RELU], [FIXED], [info("y", [5, 5])]), {}, "computed f32[2, 3]"),
    "a scalar output": (model([RELU], [FIXED], [info("y", [])]), {}, "declared f32[]"),
    "rank of a value": (
        model(CHAIN, [OPEN], [Y], value_info=[info("m", [1, 2, 3])]), {}, "value 'm'",
    ),
    "size of an initialiser": (
        model([ADD], [FIXED], [Y], initializer=[weight(1)], value_info=[info("w", [9])]), {},
        "value 'w'",
    ),
    "two initialisers": (
        model([ADD], [FIXED], [Y], initializer=[weight(10), weight(20)]), {}, "'w' is there twice",
    ),
    "an unsorted graph": (model(CHAIN[::-1], [FIXED], [Y]), {}, "not sorted"),
    "a newer opset after an older one": (two_opsets(12, 13), {}, "two opsets"),
    "an older opset after a newer one": (two_opsets(13, 12), {}, "two opsets"),
    "no import of com.microsoft": (without_import(), {}, "no opset of com.microsoft"),
    "no import of ai.onnx": (only_microsoft(), {}, "no opset of ai.onnx"),
    "a negative size": (model([RELU], [info("x", [-5, 3])], [Y]), {}, "size -5"),
    "a loop": (loop(), {}, "declared f32[1]"),
}  # fmt: skip


def runtime(made: onnx.ModelProto, feeds: dict[str, Any]) -> list[np.ndarray]:
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    raw = made.SerializeToString()
    return onnxruntime.InferenceSession(raw, quiet, providers=["CPUExecutionProvider"]).run(
        None, feeds
    )


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", FILES)
def test_as_onnx_runtime_reads_them(
    name: str, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, more, said = FILES[name]
    before = made.SerializeToString()
    feeds = {"x": X, **more}
    session = monograph.load(made, target=target)
    for _ in range(2):
        for ours, theirs in zip(session.run(feeds), runtime(made, feeds), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    (text,) = warnings_of(caplog)
    assert said in text
    assert made.SerializeToString() == before


def test_sizes_that_a_run_tells(caplog: pytest.LogCaptureFixture) -> None:
    session = monograph.load(model([RELU], [OPEN], [info("y", [5, 5])]), target="cpu")
    assert not warnings_of(caplog)
    np.testing.assert_array_equal(session.run({"x": X})[0], X.clip(0))
    assert "declared f32[5, 5] and computed f32[2, 3]" in warnings_of(caplog)[0]
    np.testing.assert_array_equal(
        session.run({"x": np.ones((5, 5), np.float32)})[0], np.ones((5, 5))
    )
    assert session.stats["guards"] == [[]], "a warning decides no size"


def test_many_contradictions_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    outputs = [info(f"y{i}", [7]) for i in range(6)]
    nodes = [helper.make_node("Relu", ["x"], [f"y{i}"]) for i in range(6)]
    monograph.load(model(nodes, [FIXED], outputs))
    (text,) = warnings_of(caplog)
    assert "and 3 more" in text


def test_a_file_that_agrees_with_itself_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    session = monograph.load(model([RELU], [OPEN], [info("y", ["a", "b"])]))
    session.run({"x": X})
    assert not warnings_of(caplog)


def test_an_opset_that_is_named_twice_is_one(caplog: pytest.LogCaptureFixture) -> None:
    made = model([RELU], [FIXED], [Y])
    made.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    assert monograph.load(made).inputs
    assert not warnings_of(caplog)


@pytest.mark.parametrize("element", [TensorProto.INT64, TensorProto.DOUBLE])
def test_another_element_type_is_refused_as_in_onnx_runtime(element: int) -> None:
    made = model([RELU], [FIXED], [info("y", [2, 3], element)])
    with pytest.raises(ModelError, match="output 'y' is not of the type"):
        monograph.load(made)


def unsorted() -> onnx.ModelProto:
    """Three nodes in the wrong order, one of which reads another only inside a branch."""
    inner = helper.make_graph(
        [helper.make_node("Neg", ["t"], ["n"])], "then", [], [info("n", None)]
    )
    other = helper.make_graph([], "else", [], [info("t", None)])
    nodes = [
        helper.make_node("Abs", ["s"], ["y"]),
        helper.make_node("If", ["c"], ["s"], then_branch=inner, else_branch=other),
        helper.make_node("Relu", ["x"], ["t"]),
    ]
    return model(nodes, [info("c", [], TensorProto.BOOL), FIXED], [Y])


def unsorted_inside() -> onnx.ModelProto:
    nodes = [helper.make_node("Abs", ["u"], ["v"]), helper.make_node("Neg", ["x"], ["u"])]
    inner = helper.make_graph(nodes, "then", [], [info("v", None)])
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=branch("Neg", None))
    return model([node], [info("c", [], TensorProto.BOOL), FIXED], [Y])


@pytest.mark.parametrize("made", [unsorted(), unsorted_inside()], ids=["around", "inside"])
@pytest.mark.parametrize("condition", [True, False])
def test_graphs_with_branches_are_sorted_too(made: onnx.ModelProto, condition: bool) -> None:
    """ONNX Runtime sorts the main graph only, and not where a branch reads what comes late."""
    (y,) = monograph.load(made).run({"x": X, "c": np.array(condition)})
    outer = made.graph.node[0].op_type == "Abs"
    expected = X.clip(0) if outer else (np.abs(X) if condition else -X)
    np.testing.assert_array_equal(y, expected)


def test_a_cycle_is_no_matter_of_order() -> None:
    nodes = [helper.make_node("Abs", ["b"], ["a"]), helper.make_node("Abs", ["a"], ["b"])]
    made = model(nodes, [FIXED], [info("a", None)])
    with pytest.raises(ModelError, match="the graph has a cycle"):
        monograph.load(made)


def test_a_long_unsorted_chain_is_sorted_soon() -> None:
    count = 20_000
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    made = model(nodes[::-1], [info("v0", [1])], [info(f"v{count}", [1])])
    read = read_model(made)
    assert [n.input[0] for n in read.proto.graph.node] == [f"v{i}" for i in range(count)]


def test_functions_are_sorted_too(caplog: pytest.LogCaptureFixture) -> None:
    nodes = [helper.make_node("Neg", ["t"], ["r"]), helper.make_node("Relu", ["p"], ["t"])]
    function = helper.make_function("own", "f", ["p"], ["r"], nodes, [helper.make_opsetid("", 17)])
    made = model([helper.make_node("f", ["x"], ["y"], domain="own")], [FIXED], [Y])
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("own", 1))
    (y,) = monograph.load(made).run({"x": X})
    np.testing.assert_array_equal(y, -X.clip(0))
    assert "'f' are not sorted" in warnings_of(caplog)[0]


# Sizes with one name


def pair(op: str) -> onnx.ModelProto:
    inputs = [info("x", ["n", "m"]), info("z", ["n", "m"])]
    return model([helper.make_node(op, ["x", "z"], ["y"])], inputs, [Y])


@pytest.fixture
def fresh_warnings() -> None:
    feeds_module._warn_of_clash.cache_clear()


@pytest.mark.usefixtures("fresh_warnings")
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(("op", "shape"), [("MatMul", (3, 5)), ("Add", (1, 3)), ("Mul", (2, 1))])
def test_equal_names_may_have_different_sizes(
    op: str, shape: tuple[int, ...], target: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, z = pair(op), np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    session = monograph.load(made, target=target)
    feeds = {"x": X, "z": z}
    for _ in range(2):
        np.testing.assert_allclose(session.run(feeds)[0], runtime(made, feeds)[0], rtol=1e-6)
    found = warnings_of(caplog)
    assert len(found) == len({*found}) == sum(a != b for a, b in zip(X.shape, shape, strict=True))
    assert "one name for sizes that differ" in found[0]
    # Equal sizes after unequal ones, and those again: no code for one serves the other.
    if op != "MatMul":
        np.testing.assert_allclose(
            session.run({"x": X, "z": X})[0], runtime(made, {"x": X, "z": X})[0], rtol=1e-6
        )
        np.testing.assert_allclose(session.run(feeds)[0], runtime(made, feeds)[0], rtol=1e-6)


@pytest.mark.usefixtures("fresh_warnings")
def test_one_input_may_use_a_name_twice() -> None:
    made = model([RELU], [info("x", ["n", "n"])], [info("y", ["n", "n"])])
    np.testing.assert_array_equal(monograph.load(made).run({"x": X})[0], X.clip(0))


@pytest.mark.usefixtures("fresh_warnings")
def test_sizes_that_the_model_cannot_take_name_the_clash() -> None:
    feeds = {"x": X, "z": np.ones((4, 3), np.float32)}
    with pytest.raises(FeedError, match="z: dimension 0 is 4, but 'n' is 2 in x dimension 0"):
        monograph.load(pair("Add")).run(feeds)
