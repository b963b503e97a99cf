"""`monograph explain` and `monograph verify --bisect`, as a user meets them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import monograph
from monograph import pipeline
from monograph.config import make_config
from monograph.ir import Graph, Value, print_graph
from monograph.ops.elementwise import Abs, Sigmoid, Tanh
from monograph.passes.base import RulePass
from monograph.pipeline import PassOptions, Stage, target_options
from monograph.report.commands import bisection
from monograph.report.commands.bisection import COSTS
from monograph.report.commands.explain import _nearest
from monograph.rewrite import Missed, Reject, Rule, Trace, rewrite, variables
from monograph.targets import optimise_for
from tests.cli.calls import call, call_json
from tests.report import models

MODEL = """
<ir_version: 9, opset_import: ["" : 21]>
g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z)
<float zero = {0}, float one = {1}, float two = {2}> {
    [Scaled] scaled = Mul(x, one)
    [Act] act = Tanh(scaled)
    [Gate] gate = Sigmoid(act)
    [Left] left = Mul(gate, two)
    [Right] y = Add(left, two)
    [Last] z = Abs(act)
}
"""
v_x = variables("x")[0]


@rewrite(Sigmoid()(Tanh()(v_x)), exact=True)
def sink_tanh(x: Value) -> Value:
    """sigmoid(tanh(x)) -> tanh(sigmoid(x)), which is wrong"""
    return Tanh()(Sigmoid()(x))


@rewrite(Abs()(v_x), exact=True)
def drop_abs(x: Value) -> Value | Reject:
    """|x| -> x, which would be wrong"""
    return Reject("the sign of x is not known", ">= 0", "any")


@dataclass(frozen=True)
class Muddle(RulePass):
    """A rule that is wrong and one that declines."""

    rules: ClassVar[tuple[Rule, ...]] = (sink_tanh, drop_abs)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.save(MODEL, tmp_path, "model.onnx")


@pytest.fixture
def muddled(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = (*pipeline.STAGES[:1], Stage("muddle", (Muddle(),)))
    monkeypatch.setattr(pipeline, "STAGES", stages)


def test_the_summary_names_stages_passes_places_and_reasons(model: Path, muddled: None) -> None:
    result = call("explain", model)
    assert result.exit_code == 0
    text = result.stdout
    assert "for cpu: 6 ops become 6" in text
    assert "note: open dimensions were set: N=1" in result.stderr
    for heading in ("ops behind each stage", "passes", "Fired", "Did not fire", "Never came near"):
        assert heading in text
    assert "multiply_by_one (exact; in simplify): fired once" in text
    assert "at Scaled" in text
    assert "mul(%x, f32[]) : f32[1, 4]" in text
    assert "not at Last: the sign of x is not known (expected >= 0, given any)" in text
    assert "cancel_nots" in text.split("Never came near")[1]


def test_one_rule(model: Path, muddled: None) -> None:
    text = call("explain", model, "--rule", "drop_abs").stdout
    assert "drop_abs (exact; in muddle): did not fire" in text
    assert "|x| -> x, which would be wrong" in text
    assert "not at Last" in text
    text = call("explain", model, "--rule", "sink_tanh").stdout
    assert "sink_tanh (exact; in muddle): fired once" in text
    assert "at Gate + Act" in text
    assert "comes near" in call("explain", model, "--rule", "cancel_nots").stdout
    found = call_json("explain", model, "--rule", "sink_tanh")
    assert found["exact"] is True
    assert found["fired"][0]["nodes"] == ["Gate", "Act"]
    assert found["fired"][0]["pass"] == "muddle"


def test_the_rules_of_a_pass(model: Path, muddled: None) -> None:
    text = call("explain", model, "--rule", "muddle").stdout
    assert "drop_abs (exact; in muddle): did not fire" in text
    assert "sink_tanh (exact; in muddle): fired once" in text
    assert "multiply_by_one" not in text
    found = call_json("explain", model, "--rule", "muddle")
    assert [r["name"] for r in found["rules"]] == ["sink_tanh", "drop_abs"]


def test_json_holds_everything(model: Path, muddled: None) -> None:
    found = call_json("explain", model, "--dim", "N=3", "--target", "gpu")
    assert found["target"] == "gpu"
    assert found["ops"]["import"]["mul"] == 2
    assert found["ops"]["muddle"]["mul"] == 1
    assert [p["label"] for p in found["passes"]][-1] == "muddle"
    rules = {r["name"]: r for r in found["rules"]}
    assert rules["multiply_by_one"]["fired"][0]["before"].endswith("f32[3, 4]")
    assert rules["drop_abs"]["misses"][0] == {
        "nodes": ["Last"],
        "reason": "the sign of x is not known (expected >= 0, given any)",
        "score": 101,
    }
    assert rules["cancel_nots"]["fired"] == rules["cancel_nots"]["misses"] == []


def test_the_graph_behind_a_pass_changes_only_where_the_pass_did(model: Path) -> None:
    before = call("explain", model, "--after", "import").stdout.splitlines()
    after = call("explain", model, "--after", "simplify").stdout.splitlines()
    assert any("%Scaled.mul = mul(%x, %constant_" in line for line in before)
    assert not any("Scaled.mul" in line for line in after)
    same = [line for line in before if line in after]
    # Gone are a constant and the product; changed is what read it.
    assert len(before) - len(same) == 3
    assert call_json("explain", model, "--after", "simplify")["graph"].splitlines() == after


def test_passes_can_be_left_out_and_told_otherwise(model: Path) -> None:
    found = call_json("explain", model, "--disable", "simplify")
    assert "simplify" not in {p["name"] for p in found["passes"]}
    found = call_json("explain", model, "-p", "fold_constants{budget=0}")
    assert "fold_constants" in {p["name"] for p in found["passes"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rule", "nonsense"], "no such rule or pass"),
        (["--rule", "multiply_by_won"], "did you mean multiply_by_one?"),
        (["--after", "simplyfy"], "did you mean simplify?"),
        (["-p", "fold_constants{budget=abc}"], "option budget of pass fold_constants"),
        (["--after", "nonsense"], "no such pass"),
        (["--disable", "nonsense"], "no such pass"),
        (["-p", "simplify{speed=1}"], "no such option"),
        (["--target", "abacus"], "no cost model"),
        (["--dim", "M=1"], "no such dimension"),
    ],
)
def test_mistakes_are_named_with_what_there_is(
    model: Path, arguments: list[str], message: str
) -> None:
    result = call("explain", model, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "expected" in result.stderr or "did you mean" in result.stderr.splitlines()[0]


@pytest.mark.parametrize("option", ["--rule", "--after"])
def test_unknown_names_are_refused_before_the_model_is_read(tmp_path: Path, option: str) -> None:
    result = call("explain", tmp_path / "absent.onnx", option, "nonsense")
    assert result.exit_code == 2
    assert "no such" in result.stderr
    assert "cannot be read" not in result.stderr


CONV = """
<ir_version: 9, opset_import: ["" : 21]>
g (float[1, 2, 8, 8] image) => (float[1, 3, 8, 8] y)
<float[3, 2, 1, 1] w = {1, 2, 3, 4, 5, 6}> {
    [Layer] y = Conv (image, w)
}
"""


@pytest.fixture
def conv(tmp_path: Path) -> Path:
    return models.save(CONV, tmp_path, "conv.onnx")


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_explain_and_bisect_run_the_passes_of_sessions(
    conv: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(target=target)
    image = {"image": np.zeros((1, 2, 8, 8), np.float32)}
    runs = optimise_for(config, monograph.load(conv, target="reference").bound_graph(image))
    found = call_json("explain", conv, "--target", target, "--after", "layout")
    assert found["graph"].strip() == print_graph(runs, stable=True).strip()
    seen: list[PassOptions] = []
    inner = bisection.optimise

    def spy(graph: Graph, **options: Any) -> Graph:
        seen.append(options["options"])
        return inner(graph, **options)

    monkeypatch.setattr(bisection, "optimise", spy)
    assert call("verify", "--bisect", conv, "--target", target).exit_code == 0
    assert seen == [target_options(config)]


def test_a_miss_at_a_graph_input_names_the_input(conv: Path) -> None:
    found = call_json("explain", conv, "--rule", "choose_layout")
    assert ["input image"] in [m["nodes"] for m in found["misses"]]
    assert "not at input image" in call("explain", conv, "--rule", "choose_layout").stdout


def test_misses_of_an_earlier_run_of_a_pass_are_kept() -> None:
    earlier = [Missed(102, "r", "A", "costs more"), Missed(102, "r", "B", "costs more")]
    trace = Trace()
    trace.note_fired("r", "B + C", "", "")
    trace.note_missed("r", "D", "not a constant", 3)
    assert [m.origin for m in _nearest("r", earlier, trace)] == ["A", "D"]


def test_bisect_verifies_every_pass(model: Path) -> None:
    result = call("verify", "--bisect", model, "--dim", "N=3")
    assert result.exit_code == 0, result.stderr
    count = len(pipeline.all_passes())
    assert f"{count} passes verified" in result.stdout
    found = call_json("verify", "--bisect", model)
    assert found["ok"] is True
    assert len(found["verified"]) == count


def test_bisect_names_the_pass_the_rule_and_the_nodes(model: Path, muddled: None) -> None:
    result = call("verify", "--bisect", model)
    assert result.exit_code == 1
    for text in ("pass muddle of stage muddle is wrong", "sink_tanh", "Gate + Act", "worst"):
        assert text in result.stdout
    found = call_json("verify", "--bisect", model)
    assert found["ok"] is False
    assert found["fault"]["rule"] == "sink_tanh"
    assert found["fault"]["nodes"] == ["Gate", "Act"]
    assert found["fault"]["output"]["name"] == "y"
    assert call("verify", "--bisect", model, "--disable", "muddle").exit_code == 0


def test_bisect_takes_no_other_side(model: Path) -> None:
    result = call("verify", "--bisect", model, "--against", "onnxruntime")
    assert result.exit_code == 2
    assert "`--bisect` always compares" in result.stderr
    assert "add --bisect" in call("verify", model, "--disable", "simplify").stderr


def test_help_teaches() -> None:
    text = call("explain", "--help").stdout
    for target in COSTS:
        assert target in text.split("--target")[1].split("--dim")[0]
    assert "--rule compose_pointwise" in text
    assert "nearest" in text
