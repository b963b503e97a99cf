"""Inputs and outputs of a session: types declared and unknown, defaults of inputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.compat.onnx_backend import Backend
from monograph.errors import ConfigError, FeedError, ModelError
from tests.frontend.untrusted.hostile import info, model

X = np.array([1, 2], np.float32)


def relu(output: onnx.ValueInfoProto, shape: list[int | str]) -> onnx.ModelProto:
    node = helper.make_node("Relu", ["x"], ["y"])
    return model([node], inputs=[info("x", shape)], outputs=[output])


@pytest.mark.parametrize("shape", [[3, 2], ["N", 2]], ids=["static", "symbolic"])
@pytest.mark.parametrize("declared", [info("y", [7], TensorProto.INT64), info("y", ["N", 2], 11)])
def test_an_output_of_another_type_than_declared_is_refused(
    declared: onnx.ValueInfoProto, shape: list[int | str]
) -> None:
    with pytest.raises(ModelError, match="output 'y' is not of the type") as caught:
        monograph.load(relu(declared, shape))
    assert "expected: " in str(caught.value)
    assert f"given: f32[{shape[0]}, 2]" in str(caught.value)


def test_sizes_that_are_declared_wrongly_do_no_harm() -> None:
    session = monograph.load(relu(info("y", [9, 9]), [3, 2]))
    assert session.outputs[0].shape == (3, 2)


def late(declared: onnx.ValueInfoProto) -> onnx.ModelProto:
    """The rank of the result is what the second input says."""
    node = helper.make_node("Reshape", ["x", "shape"], ["z"])
    total = helper.make_node("Softmax", ["z"], ["y"])
    inputs = [info("x", [4]), info("shape", ["R"], TensorProto.INT64)]
    return model([node, total], inputs=inputs, outputs=[declared])


def test_an_output_of_unknown_type_loads_and_runs() -> None:
    session = monograph.load(late(onnx.ValueInfoProto(name="y")))
    (port,) = session.outputs
    assert port.type is None
    assert port.dtype is None
    assert port.shape is None
    assert str(port) == "y: not known before it is run"
    (y,) = session.run({"x": np.zeros(4, np.float32), "shape": np.array([2, 2])})
    assert y.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_a_late_import_checks_the_declared_type() -> None:
    session = monograph.load(late(info("y", ["A", "B"], TensorProto.INT64)))
    with pytest.raises(ModelError, match="output 'y' is not of the type"):
        session.run({"x": np.zeros(4, np.float32), "shape": np.array([2, 2])})


@pytest.mark.parametrize(
    ("declared", "fits"),
    [
        (info("y", ["A"]), True),
        (info("y", [9]), True),  # sizes may be declared wrongly
        (onnx.ValueInfoProto(name="y"), True),
        (info("y", ["A", "B"]), False),
        (info("y", ["A"], TensorProto.INT64), False),
    ],
)
def test_a_late_import_compares_donated_types_that_are_declared(
    declared: onnx.ValueInfoProto, fits: bool
) -> None:
    if fits:
        session = monograph.load(late(declared), donate={"y": "x"})
        (y,) = session.run({"x": np.zeros(4, np.float32), "shape": np.array([4])})
        assert y.tolist() == [0.25] * 4
        return
    with pytest.raises(ConfigError, match="cannot be written into input 'x'"):
        monograph.load(late(declared), donate={"y": "x"})


def with_default(ir_version: int = 10) -> onnx.ModelProto:
    """y = x + b, b being an input with an initialiser."""
    made = model(
        [helper.make_node("Add", ["x", "b"], ["y"])],
        inputs=[info("x"), info("b")],
        initializer=[helper.make_tensor("b", TensorProto.FLOAT, [2], [10.0, 20.0])],
    )
    made.ir_version = ir_version
    return made


@pytest.mark.parametrize("options", [{}, {"optimise": True}, {"target": "cpu"}], ids=str)
def test_an_input_with_a_default_may_be_fed(options: dict[str, object]) -> None:
    session = monograph.load(with_default(), **options)
    assert [p.name for p in session.inputs] == ["x"]
    assert [str(p) for p in session.optional_inputs] == ["b: f32[2]"]
    fed = {"x": X, "b": np.array([-1, -2], np.float32)}
    for _ in range(2):  # the second time from what the first left behind
        assert session.run({"x": X})[0].tolist() == [11, 22]
        assert session.run(fed)[0].tolist() == [0, 0]
    assert session.run({"x": X, "b": X})[0].tolist() == [2, 4]
    with pytest.raises(FeedError, match="expected f32"):
        session.run({"x": X, "b": np.zeros(2, np.int64)})
    with pytest.raises(FeedError, match="x: missing"):
        session.run({"b": X})


def test_a_default_may_decide_a_rank() -> None:
    made = model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        inputs=[info("x", [4]), info("s", [2], TensorProto.INT64)],
        outputs=[onnx.ValueInfoProto(name="y")],
        initializer=[helper.make_tensor("s", TensorProto.INT64, [2], [2, 2])],
    )
    session = monograph.load(made)
    x = np.zeros(4, np.float32)
    assert session.run({"x": x})[0].shape == (2, 2)
    assert session.run({"x": x, "s": np.array([4, 1])})[0].shape == (4, 1)


def test_weights_of_early_files_are_no_inputs() -> None:
    session = monograph.load(with_default(ir_version=3))
    assert session.optional_inputs == ()
    with pytest.raises(FeedError, match="no such input"):
        session.run({"x": X, "b": X})


def test_a_backend_is_compatible_with_what_it_prepares() -> None:
    assert Backend.is_compatible(with_default())
    assert not Backend.is_compatible(with_default(), "CUDA")
    wrong = model([helper.make_node("Clip", ["x"], ["y"], min=1.0)])
    assert not Backend.is_compatible(wrong)
    with pytest.raises(ModelError):
        Backend.prepare(wrong)


TEXTS = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]>
texts (string[N] x, string[N] z) => (int64[N] y, string[N] u, string[N] w, string[N] x2) {
    y = ai.onnx.ml.LabelEncoder<keys_strings=["a","bc"], values_int64s=[1,2], default_int64=0>(x)
    u = StringNormalizer<case_change_action="UPPER">(x)
    w = StringConcat(z, z)
    x2 = Identity(z)
}"""


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_text_of_fixed_width_runs_as_objects_do(target: str) -> None:
    session = monograph.load(onnx.parser.parse_model(TEXTS), target)
    for texts in (["a", "bc", "d"], ["bc", "", "é"], ["long text", "a", "bc"]):
        x, z = np.array(texts), np.array(texts[::-1])
        wanted = session.run({"x": x.astype(object), "z": z.astype(object)})
        for _ in range(3):
            found = session.run({"x": x, "z": z})
            assert [y.tolist() for y in found] == [y.tolist() for y in wanted]
            assert [y.dtype for y in found] == [np.int64, object, object, object]
        later = session.run_async({"x": x, "z": z}).result()
        assert [y.tolist() for y in later] == [y.tolist() for y in wanted]


def test_text_of_another_kind_is_refused() -> None:
    session = monograph.load(onnx.parser.parse_model(TEXTS), "cpu")
    good = np.array(["a"])
    for bad in (np.array([1], object), np.array([1.0])):
        with pytest.raises(FeedError, match="x: expected"):
            session.run({"x": bad, "z": good})
