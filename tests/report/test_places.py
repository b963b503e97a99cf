"""verify, verify --per-step and verify --bisect report one planted fault, at one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from monograph import pipeline
from monograph.codegen.llvm.attention.attention import _Attention
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.ir import Array, Graph, Value, constant
from monograph.ops.attention import Attention
from monograph.ops.elementwise import Add, Sigmoid, Tanh
from monograph.ops.shape import Transpose
from monograph.passes import choose_layout
from monograph.passes.base import Environment, Pass, RulePass
from monograph.pipeline import Stage
from monograph.program import lowering
from monograph.program.legalise import normalise
from monograph.report.commands.bisection import bisect_model
from monograph.report.commands.execute import RunRequest, verify_model
from monograph.report.commands.per_step import verify_steps
from monograph.report.render.fault_tables import place_text
from monograph.rewrite import Rule, rewrite, variables
from monograph.rules import recognise_attention
from tests.cli.calls import call, call_json
from tests.report import models
from tests.report.test_per_step import break_kernels, twice_as_much

v_x = variables("x")[0]

MODEL = """
<ir_version: 9, opset_import: ["" : 21]>
g (float[3, 4] x, int64[5] n) => (float[3, 4] y, int64[5] m)
<float two = {2}, int64 three = {3}> {
    [act] a = Tanh(x)
    [soft] b = Softmax(a)
    [scaled] y = Mul(b, two)
    [more] m = Add(n, three)
}
"""

MASKED = """
<ir_version: 9, opset_import: ["" : 21]>
masked (float[1, 2, 4, 8] q, float[1, 2, 5, 8] k, float[1, 2, 5, 8] v, bool[1, 1, 4, 5] mask)
    => (float[1, 2, 4, 8] y)
<float zero = {0}, float scale = {0.35}> {
    low = Constant <value_float = -inf> ()
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    s = MatMul(q, kt)
    scaled = Mul(s, scale)
    hidden = Where(mask, zero, low)
    scores = Add(scaled, hidden)
    w = Softmax <axis = -1> (scores)
    [attended] y = MatMul(w, v)
}
"""

CONV = """
<ir_version: 9, opset_import: ["" : 21]>
conv (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y)
{
    w = Constant <value = float[4, 3, 3, 3] {WEIGHTS}> ()
    [mapped] c = Conv <pads = [1, 1, 1, 1]> (x, w)
    [bent] y = Tanh(c)
}
""".replace("WEIGHTS", ", ".join(str((7 * i % 11 - 5) / 10) for i in range(108)))


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong code is for these tests alone."""
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", "")


def silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Found:
    """The answers of the three tools about a model."""

    outputs: list[str]
    """The outputs that `verify` finds wrong."""
    per_step: str | None
    bisected: str | None


def look(path: Path, given: dict[str, Array] | None = None) -> Found:
    request = RunRequest(path, "cpu", given=given)
    outputs = verify_model(request, None, silent)
    stepped = verify_steps(request, silent)
    bisected = bisect_model(request, pipeline.PassOptions(), silent)
    assert stepped.ok == bisected.ok == outputs.ok
    return Found(
        [d.name for d in outputs.differences if not d.ok],
        place_text(stepped.steps, stepped.passes),
        place_text(bisected.steps, bisected.passes),
    )


def check_place(path: Path, outputs: list[str], place: str, given: Any = None) -> None:
    found = look(path, given)
    assert found.outputs == outputs
    assert found.per_step == found.bisected
    assert found.per_step is not None
    assert place in found.per_step


def add_pass(monkeypatch: pytest.MonkeyPatch, wrong: Pass) -> None:
    monkeypatch.setattr(pipeline, "STAGES", (*pipeline.STAGES, Stage("planted", (wrong,))))


def test_a_right_model_has_no_such_place(tmp_path: Path) -> None:
    for text in (MODEL, MASKED, CONV):
        assert look(models.save(text, tmp_path)) == Found([], None, None)


@rewrite(Tanh()(v_x), exact=True)
def bend_less(x: Value) -> Value:
    """tanh(x) -> sigmoid(x), which is wrong"""
    return Sigmoid()(x)


@dataclass(frozen=True)
class PlantRule(RulePass):
    """A wrong rule."""

    rules: ClassVar[tuple[Rule, ...]] = (bend_less,)


def test_a_wrong_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_pass(monkeypatch, PlantRule())
    path = models.save(MODEL, tmp_path)
    check_place(path, ["y"], "pass plant_rule of stage planted, rule bend_less")
    shown = call("verify", path, "--per-step")
    assert shown.exit_code == 1
    assert "a pass has changed the graph" in shown.stdout
    assert "rule     bend_less" in shown.stdout
    told = call_json("verify", path, "--per-step")
    bisected = call_json("verify", path, "--bisect")
    assert told["fault"] == bisected["fault"]
    assert told["place"] == bisected["place"]
    assert told["fault"]["nodes"] == ["act"]


@dataclass(frozen=True)
class PlantPass(Pass):
    """Adds 1 to the last output."""

    def run(self, graph: Graph, environment: Environment) -> Graph:
        *others, (name, last) = graph.outputs
        more = Add()(last, constant(1, last.dtype))
        return replace(graph, outputs=(*others, (name, more)))


def test_a_wrong_pass_in_the_last_output_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Integers that are off by one."""
    add_pass(monkeypatch, PlantPass())
    check_place(models.save(MODEL, tmp_path), ["m"], "pass plant_pass of stage planted")


def test_a_wrong_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_kernels(monkeypatch, "softmax", twice_as_much)
    path = models.save(MODEL, tmp_path)
    check_place(path, ["y"], "step 0 (softmax): act, soft, scaled")
    shown = call("verify", path, "--bisect")
    assert shown.exit_code == 1
    assert "a step of compiled code is wrong" in shown.stdout
    assert call_json("verify", path, "--bisect")["first_wrong"]["nodes"] == [
        "act",
        "soft",
        "scaled",
    ]


def test_an_integer_kernel_that_is_off_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = LlvmScalars.add

    def wrong(self: Any, x: Any, y: Any) -> Any:
        made = right(self, x, y)
        return right(self, made, self.constant(1, made.dtype)) if made.dtype.is_integer else made

    monkeypatch.setattr(LlvmScalars, "add", wrong)
    check_place(models.save(MODEL, tmp_path), ["m"], "(pointwise): more")


def masked_feeds() -> dict[str, Array]:
    mask = np.ones((1, 1, 4, 5), bool)
    mask[0, 0, 2] = False
    return {"mask": mask}


def test_zero_in_the_place_of_nan_by_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = recognise_attention._attention

    def wrong(found: Any, v: Value) -> Any:
        return right(replace(found, masked_nan=False), v)

    monkeypatch.setattr(recognise_attention, "_attention", wrong)
    path = models.save(MASKED, tmp_path)
    check_place(path, ["y"], "rule recognise_attention", masked_feeds())


def test_zero_in_the_place_of_nan_by_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = _Attention.__init__

    def wrong(self: Any, context: Any) -> None:
        right(self, context)
        assert isinstance(self.op, Attention)
        self.op = replace(self.op, masked_nan=False)

    monkeypatch.setattr(_Attention, "__init__", wrong)
    path = models.save(MASKED, tmp_path)
    check_place(path, ["y"], "(attention): attended", masked_feeds())


ROOTED = MASKED.replace("(float[1, 2, 4, 8] y)", "(float[1, 2, 4, 8] shifted)").replace(
    "[attended] y = MatMul(w, v)",
    """[attended] y = MatMul(w, v)
    axes = Constant <value_ints = [-1]> ()
    squares = Mul(y, y)
    total = ReduceSum <keepdims = 1> (squares, axes)
    root = Sqrt(total)
    [shift] shifted = Sub(y, root)""",
)


def test_a_difference_is_not_excused_by_disturbances_that_leave_the_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding disturbs a sum of squares of zeros below 0; the NaN of its root excused anything."""
    right = recognise_attention._attention

    def wrong(found: Any, v: Value) -> Any:
        return right(replace(found, masked_nan=False), v)

    monkeypatch.setattr(recognise_attention, "_attention", wrong)
    path = models.save(ROOTED, tmp_path)
    check_place(path, ["shifted"], "rule recognise_attention", masked_feeds())


def test_a_wrong_layout_rewrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only sessions ask for channels-last: bisection has to ask for it too."""
    right = choose_layout.ChooseLayout.run

    def wrong(self: Any, graph: Graph, environment: Environment) -> Graph:
        after = right(self, graph, environment)
        if after == graph:
            return after
        ((name, value),) = after.outputs
        turned = Transpose((0, 1, 3, 2))(value)
        return replace(after, outputs=((name, turned),))

    monkeypatch.setattr(choose_layout.ChooseLayout, "run", wrong)
    check_place(models.save(CONV, tmp_path), ["y"], "pass choose_layout of stage layout")


def test_a_wrong_lowering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes and steps are right, and what is between them is not."""
    right: Callable[..., Graph] = normalise.normalise

    def wrong(graph: Graph, *others: Any, **options: Any) -> Graph:
        made = right(graph, *others, **options)
        (first, y), *rest = made.outputs
        return replace(made, outputs=((first, Tanh()(y)), *rest))

    monkeypatch.setattr(lowering, "normalise", wrong)
    check_place(models.save(MODEL, tmp_path), ["y"], "lowering the graph to steps")
