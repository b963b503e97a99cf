"""A question of performance and one of accuracy, answered from a report and `diff` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx.parser

from tests.cli.calls import call_json
from tests.report.diff.models import MODELS, save, with_quantised_layer

SLOW = """
<ir_version: 9, opset_import: ["" : 20]>
slow (float[64, 64] x, string[4] names) => (float[64, 64] y, string[4] lower)
{
    a = Relu(x)
    product = MatMul(a, a)
    cubed = MatMul(product, a)
    lower = StringNormalizer <case_change_action = "LOWER"> (names)
    y = Add(cubed, x)
}
"""


def test_why_is_a_run_more_than_one_launch(tmp_path: Path) -> None:
    """A string op runs on the host: the report names its node, and says why."""
    model = onnx.parser.parse_model(SLOW)
    for node in model.graph.node:
        node.name = f"the_{node.output[0]}"
    onnx.save(model, tmp_path / "model.onnx")
    found = call_json("view", tmp_path / "model.onnx", "--no-run")
    assert found["facts"]["host_steps"] == 1
    (step,) = [s for s in found["steps"] if "host" in s]
    assert step["origin"] == ["the_lower"]
    assert step["host"]
    assert "host" in found["facts"]["launches"]


def test_which_step_takes_the_time(tmp_path: Path) -> None:
    """The layer with the most operations is named, and shares of the time add up."""
    random = MODELS["tower"].build()
    path = save(random, tmp_path / "model.onnx")
    found = call_json("view", path, "--no-verify")
    steps: list[dict[str, Any]] = found["steps"]
    assert sum(s["share"] for s in steps) > 0.99
    assert all(s["of_peak"] >= 0 for s in steps)
    most = max(steps, key=lambda s: s["flops"])
    assert "second" in most["origin"], "the layer with the most operations is named"


def test_which_layer_loses_accuracy(tmp_path: Path) -> None:
    """One layer was quantised coarsely: `diff` with the float twin names the rounding."""
    planted = MODELS["cnn"]
    model = with_quantised_layer(planted.build(), planted.quantised)
    found = call_json("diff", save(model, tmp_path / "model.onnx"), "float")
    assert found["culprit"]["kind"] == "rounding"
    named = [n["name"] for n in found["culprit"]["nodes"]]
    assert any(n.startswith(planted.quantised) for n in named)
    wrong = [t["tensor"] for t in found["tensors"] if not t["difference"]["ok"]]
    assert wrong[0] == found["first"], "everything before the layer agrees"


def test_a_detour_in_doubles_is_seen(tmp_path: Path) -> None:
    """An activation computes in f64: the ops of the step that has its nodes say so."""
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    doubles (float[64, 64] x) => (float[64, 64] y)
    {
        wide = Cast <to = 11> (x)
        e = Erf(wide)
        m = Mul(e, wide)
        y = Cast <to = 1> (m)
    }
    """
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    found = call_json("view", tmp_path / "model.onnx", "--no-run")
    (step,) = found["steps"]
    assert step["ops"] == ["cast (f64)", "erf (f64)", "mul (f64)", "cast"]
