"""Code for any shape that is looked at: the same bits, and steps with the sizes of the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import monograph
from monograph.cli.main import app
from monograph.runtime.cpu.instrumented import (
    OpenGraph,
    SteppedRun,
    TimedRun,
    compile_stepped,
    compile_timed,
)
from monograph.runtime.numerics.stepwise import StepChecker
from tests.cpu.test_any_shape import image, network
from tests.test_session import model_of


def data_decide() -> onnx.ModelProto:
    """A model whose later part has sizes that data decide."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"]),
        helper.make_node("NonZero", ["a"], ["i"]),
        helper.make_node("Transpose", ["i"], ["t"]),
        helper.make_node("TopK", ["t", "k"], ["y", "z"], axis=0),
    ]
    inputs = [("x", TensorProto.FLOAT, ["N"]), ("k", TensorProto.INT64, [1])]
    return model_of(nodes, inputs, [("y", TensorProto.INT64, None)])


def test_a_timed_run_has_the_bits_of_a_plain_one() -> None:
    session = monograph.load(network(), specialise="off", threads=2)
    heard: list[TimedRun] = []
    feeds = image(2, 17, 40)
    graph = OpenGraph(*session.opened_graph(feeds))
    run = compile_timed(graph, session.compiler(), heard.append)
    (given,), (expected,) = run(feeds), session.run(feeds)
    np.testing.assert_array_equal(given, expected)
    (seen,) = heard
    assert seen.stamps.shape[1] == len(seen.program.steps)
    assert (seen.stamps > 0).all()
    made = [v.tensor.static for s in seen.program.steps for v in s.region.outputs]
    assert all(type(d) is int for shape in made for d in shape)


def test_each_step_agrees_with_the_reference() -> None:
    session = monograph.load(network(), specialise="off", threads=2)
    feeds = image(3, 12, 23)
    checker = StepChecker()
    graph = OpenGraph(*session.opened_graph(feeds))
    (given,) = compile_stepped(graph, session.compiler(), checker.observe)(feeds)
    np.testing.assert_array_equal(given, session.run(feeds)[0])
    assert len(checker.checks) > 5
    assert all(c.ok and c.own for c in checker.checks)


def test_parts_whose_sizes_data_decide_are_looked_at_too() -> None:
    session = monograph.load(data_decide(), specialise="off")
    heard: list[SteppedRun] = []
    x = np.array([0, 1, 0, 2, 3], np.float32)
    feeds = {"x": x, "k": np.array([2])}
    run = compile_stepped(OpenGraph(*session.opened_graph(feeds)), session.compiler(), heard.append)
    for _ in range(2):
        assert run(feeds)[0].tolist() == [[4], [3]]
    assert len({id(s.program) for s in heard}) == 2


@pytest.mark.parametrize("command", ["profile", "verify --per-step"])
def test_commands_look_at_code_for_any_shape(command: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(network(), path)
    given = ["--specialise", "off", "--dim", "N=2", "--dim", "H=16", "--dim", "W=23", "--json"]
    name, *rest = command.split()
    more = ["--runs", "2"] if name == "profile" else ["--target", "cpu"]
    found = CliRunner().invoke(app, [name, str(path), *rest, *given, *more])
    assert found.exit_code == 0, found.output
    assert "f32[2, 16, 8, 12]" in found.output or "f32[2, 8, 12, 16]" in found.output
