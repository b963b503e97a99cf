"""Sizes that a model cannot take are errors that name the input, its size and the rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import monograph
from monograph.compat import onnx_backend
from monograph.errors import ConfigError, ExecutionError, FeedError
from tests.cli.calls import call
from tests.report import models

JOINED = """
<ir_version: 9, opset_import: ["" : 18]>
joined (float[1, H, W] x, float[N] z) => (float[1, H2, W2] y, float[N] w)
{
    a = MaxPool <kernel_shape = [2], strides = [2]> (x)
    s = Constant <value_floats = [1.0, 1.0, 2.0]> ()
    b = Resize <mode = "nearest"> (a, , s)
    [join] y = Concat <axis = 1> (x, b)
    w = Relu(z)
}
"""
LATE = """
<ir_version: 9, opset_import: ["" : 18]>
late (float[B, 4] x, int64[R] shape) => (float y)
{
    a = Reshape(x, shape)
    b = Concat <axis = -1> (a, a)
    [turn] c = Transpose(b)
    y = ReduceSum <keepdims = 0> (c)
}
"""
PRODUCT = """
<ir_version: 9, opset_import: ["" : 18]>
product (float[A, B] x, float[C, D] z) => (float[A, D] y)
{
    [multiply] y = MatMul(x, z)
}
"""
TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])


def feeds(width: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((1, 2, width), np.float32), "z": np.ones(3, np.float32)}


@TARGETS
@pytest.mark.parametrize(
    ("width", "node", "rule"), [(5, "join", "sizes differ"), (1, "MaxPool#0", "window is larger")]
)
def test_the_input_its_size_and_the_rule_are_named(
    target: str, width: int, node: str, rule: str
) -> None:
    session = monograph.load(onnx.parser.parse_model(JOINED), target)
    with pytest.raises(FeedError, match=rule) as e:
        session.run(feeds(width))
    assert f"x: expected f32[1, H, W], given [1, 2, {width}]" in str(e.value)
    assert "z:" not in e.value.message  # it has nothing to do with that
    assert e.value.node == node
    assert session.run(feeds(6))[0].shape == (1, 4, 6)


@TARGETS
def test_several_inputs_may_not_fit_each_other(target: str) -> None:
    session = monograph.load(onnx.parser.parse_model(PRODUCT), target)
    given = {"x": np.ones((2, 3), np.float32), "z": np.ones((4, 2), np.float32)}
    with pytest.raises(FeedError) as e:
        session.run(given)
    for line in ("x: expected f32[A, B], given [2, 3]", "z: expected f32[C, D], given [4, 2]"):
        assert line in str(e.value)


@TARGETS
def test_data_that_decide_sizes_may_not_fit_either(target: str) -> None:
    """The misfit is known during the run only."""
    session = monograph.load(onnx.parser.parse_model(LATE), target)
    given = {"x": np.ones((3, 4), np.float32), "shape": np.array([5, 2])}
    with pytest.raises(ExecutionError, match="keeps the number of elements"):
        session.run(given)
    with pytest.raises(ExecutionError, match="keeps the number of elements"):
        session.run_async(given).result()
    assert session.run({**given, "shape": np.array([6, 2])})[0] == 24


@TARGETS
def test_dims_hold_where_a_rank_is_not_known_before_the_run(target: str) -> None:
    session = monograph.load(onnx.parser.parse_model(LATE), target, dims={"B": 6})
    assert session.inputs[0].shape == (6, 4)
    given = {"x": np.ones((6, 4), np.float32), "shape": np.array([2, -1])}
    assert session.run(given)[0] == 48
    with pytest.raises(FeedError, match=r"dimension 0 is 3, not 6"):
        session.run({**given, "x": np.ones((3, 4), np.float32)})


def test_dims_of_an_input_without_a_rank_are_refused() -> None:
    model = onnx.parser.parse_model(PRODUCT)
    model.graph.input[1].type.tensor_type.ClearField("shape")
    with pytest.raises(ConfigError, match="declares no rank for z"):
        monograph.load(model, dims={"other": 6})


def test_dims_that_a_model_cannot_take_are_an_option_s_fault() -> None:
    with pytest.raises(ConfigError, match=r"\(W=5\): sizes differ off the axis") as e:
        monograph.load(onnx.parser.parse_model(JOINED), dims={"W": 5})
    assert e.value.node == "join"


def test_the_backend_of_onnx_says_the_same() -> None:
    model = onnx.parser.parse_model(JOINED)
    rep = onnx_backend.prepare(model)
    with pytest.raises(FeedError, match="sizes differ"):
        rep.run([*feeds(5).values()])


@pytest.mark.parametrize("command", ["run", "verify", "bench", "profile", "explain"])
def test_the_command_line_says_the_same(tmp_path: Path, command: str) -> None:
    path = models.save(JOINED, tmp_path)
    np.savez(tmp_path / "in.npz", **feeds(5))
    result = call(command, path, "--inputs", tmp_path / "in.npz")
    assert result.exit_code == 2
    assert "x: expected f32[1, H, W], given [1, 2, 5]" in result.stderr
    chosen = call(command, path, "--dim", "W=5")
    assert "(W=5): sizes differ off the axis" in chosen.stderr


@pytest.mark.parametrize("command", ["run", "verify", "explain"])
def test_the_command_line_chooses_sizes_that_fit(tmp_path: Path, command: str) -> None:
    drawn = call(command, models.save(JOINED, tmp_path))
    assert drawn.exit_code == 0
    assert "open dimensions were set: H=1, W=64, N=1; change them with --dim" in drawn.stderr


def test_sizes_of_late_models_are_set_on_the_command_line(tmp_path: Path) -> None:
    result = call("run", models.save(LATE, tmp_path), "--dim", "B=6", "--dim", "R=1")
    assert "B=" not in result.stderr.replace("--dim", "")
