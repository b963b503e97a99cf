"""verify --per-step: a wrong step is caught and named, a right one is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from monograph.codegen.llvm.module import compile as compiler
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext
from monograph.program.fusion.region import Region
from monograph.program.memory.memory_planner import Lifetime, MemoryPlan
from monograph.program.memory.memory_planner import plan as right_plan
from monograph.report.commands.execute import RunRequest
from monograph.report.commands.per_step import PerStep, verify_steps
from tests.cli.calls import call
from tests.report import models


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong kernels are for these tests alone."""
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", "")


def check(path: Path, given: dict[str, Any] | None = None, **options: Any) -> PerStep:
    return verify_steps(RunRequest(path, "cpu", given=given), lambda _: None, **options)


def break_kernels(monkeypatch: pytest.MonkeyPatch, kind: str, change: Callable[[str], str]) -> None:
    """Has the generator of one kind of step write something else."""
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", "")  # what is right may lie there
    right = compiler.generator

    def wrong(region: Region) -> Any:
        make = right(region)
        if make is None or region.kind != kind:
            return make

        def made(context: KernelContext) -> Kernel:
            kernel = make(context)
            text = change(kernel.text)
            assert text != kernel.text
            return replace(kernel, text=text)

        return made

    monkeypatch.setattr(compiler, "generator", wrong)


def twice_as_much(text: str) -> str:
    """A softmax that divides 2, not 1, by the sum of a row."""
    return text.replace("fdiv float 0x3FF0000000000000", "fdiv float 0x4000000000000000")


def test_right_steps_agree(tmp_path: Path):
    found = check(models.save_weighted(models.LAYERS, tmp_path))
    assert found.ok
    assert [c.step.nodes for c in found.checks] == [["first"], ["between"], ["second", "last"]]
    assert found.compared == 3
    assert all(0 <= c.used < 1 and c.own and c.accumulated for c in found.checks)
    # The first step reads what the model is fed: both of its errors are the same.
    assert found.checks[0].own[0].max_abs == found.checks[0].accumulated[0].max_abs > 0
    tolerances = [c.accumulated[0].tolerance.rtol for c in found.checks]
    assert tolerances[0] < tolerances[1] < tolerances[2]


def test_a_wrong_kernel_is_named_and_those_behind_it_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = models.save_weighted(models.LAYERS, tmp_path)
    break_kernels(monkeypatch, "softmax", twice_as_much)
    found = check(path)
    assert not found.ok
    assert not found.outputs.ok
    assert [c.ok for c in found.checks] == [True, False, True]
    assert found.first_wrong is not None
    assert found.first_wrong.step.nodes == ["between"]
    # The step behind computes the right thing of what it reads, and that is not what it should be.
    assert found.checks[2].drifted
    shown = call("verify", path, "--target", "cpu", "--per-step")
    assert shown.exit_code == 1
    assert "1 of 3 steps are wrong" in shown.stdout
    assert shown.stdout.rstrip().endswith("between")
    content = json.loads(call("verify", path, "--target", "cpu", "--per-step", "--json").stdout)
    assert content["ok"] is False
    assert (content["steps_wrong"], content["first_wrong"]) == ([1], 1)
    assert content["steps"][1]["nodes"] == ["between"]


def test_a_wrong_step_fails_even_where_no_output_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    hidden (float[4, 8] x) => (int64[4] y)
    {
        [soft] a = Softmax(x)
        b = Transpose <perm = [1, 0]> (a)
        [blind] y = ArgMax <axis = 0, keepdims = 0> (b)
    }
    """
    path = models.save(text, tmp_path)
    assert check(path).ok
    # Twice as much of everything: what is largest stays the same.
    break_kernels(monkeypatch, "softmax", twice_as_much)
    found = check(path)
    assert found.outputs.ok
    assert not found.ok
    assert found.first_wrong is not None
    assert "soft" in found.first_wrong.step.nodes


def test_memory_that_is_written_over_too_early_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    skip (float[8, 8] x) => (float[8, 8] y)
    {
        [kept] a = Softmax(x)
        [over] b = Softmax <axis = 0> (a)
        [late] y = MatMul(b, a)
    }
    """
    path = models.save(text, tmp_path)
    assert check(path).ok

    def wrong(lives: list[Lifetime]) -> MemoryPlan:
        made = right_plan(lives)
        return MemoryPlan(dict.fromkeys(made.offsets, 0), made.size)

    monkeypatch.setattr(compiler, "plan", wrong)
    found = check(path)
    assert not found.ok
    assert [c.overwritten for c in found.checks] == [(), (), (0,)]
    assert found.first_wrong is found.checks[2]


def test_control_flow_is_compared_as_a_whole(tmp_path: Path):
    path = models.save(models.BRANCH, tmp_path)
    found = check(path)
    assert found.ok
    assert found.compared == len(found.checks)
    shown = call("verify", path, "--target", "cpu", "--per-step")
    assert shown.exit_code == 0, shown.output
    assert "compared as a whole, not step by step inside: 0 (if)" in shown.stdout


def test_roundings_of_what_cancels_are_no_drift(tmp_path: Path):
    """Of products that add up to nearly nothing, roundings are all that a later step gets."""
    text = models.LAYERS.replace("Softmax", "Tanh").replace("Relu", "Neg")
    path = models.save_weighted(text, tmp_path)
    model = onnx.load(path)
    first, second = model.graph.initializer
    columns = numpy_helper.to_array(first)[:, :8].astype(np.float64)
    x = np.random.default_rng(0).normal(size=(64, 32))
    x -= x @ columns @ np.linalg.pinv(columns)
    apart = np.diag(np.linspace(1, 2, 32, dtype=np.float32))
    second.CopyFrom(numpy_helper.from_array(apart, second.name))
    onnx.save(model, path)
    found = check(path, given={"x": x.astype(np.float32)})
    assert found.ok
    assert len(found.checks) > 1
    assert not any(c.drifted for c in found.checks)


def test_what_runs_on_the_host_is_said_not_to_be_compared(tmp_path: Path):
    path = models.save(models.WORDS, tmp_path)
    found = check(path)
    assert found.ok
    assert found.compared == 1
    host = next(c for c in found.checks if c.step.nodes == ["written"])
    assert (host.own, host.not_compared) == ((), "runs on the host by the reference itself")
    assert [d.ok for d in host.accumulated] == [True]
    shown = call("verify", path, "--target", "cpu", "--per-step")
    assert "not compared by itself, because it runs on the host" in shown.stdout


def test_what_is_drawn_at_random_is_taken_as_it_is(tmp_path: Path):
    found = check(models.save(models.RANDOM_PRODUCT, tmp_path))
    drawn = [c for c in found.checks if c.not_compared == "draws random numbers"]
    rest = [c for c in found.checks if c.not_compared is None]
    assert drawn
    assert rest
    assert all(c.ok and not c.drifted for c in rest)


def test_where_data_decide_shapes_every_program_is_compared(tmp_path: Path):
    found = check(models.save(models.CHOSEN, tmp_path))
    assert found.ok
    assert found.stages == 2
    assert found.compared == len(found.checks)
    assert [c.number for c in found.checks] == [*range(len(found.checks))]
    assert sorted({c.stage for c in found.checks}) == [0, 1]
    assert {n for c in found.checks for n in c.step.nodes} >= {"early", "late"}


def test_parts_of_a_join_are_compared_where_they_lie(tmp_path: Path):
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    joined (float[4, 8] x) => (float[4, 4] y)
    <float[16, 4] w>
    {
        [left] a = Softmax(x)
        [right] b = Softmax <axis = 0> (x)
        [both] c = Concat <axis = 1> (a, b)
        [product] y = MatMul(c, w)
    }
    """
    found = check(models.save_weighted(text, tmp_path))
    assert found.ok
    assert found.compared == 3
    assert found.checks[2].accumulated[0].ok


def test_sides_that_have_no_steps_are_refused(tmp_path: Path):
    path = models.save(models.LINEAR, tmp_path)
    shown = call("verify", path, "--target", "cpu", "--per-step", "--against", "onnxruntime")
    assert shown.exit_code == 2
    assert "leave out --against" in shown.stderr
    shown = call("verify", path, "--target", "reference", "--per-step")
    assert shown.exit_code == 2
    assert "add --target cpu" in shown.stderr
    shown = call("verify", path, "--bisect", "--per-step")
    assert shown.exit_code == 2


def test_a_join_of_views_of_joins_is_followed_to_what_steps_store(tmp_path: Path):
    """Detection heads: maps are joined by channel, flattened, and joined by place."""
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    heads (float[1, 2, 2, 3] x, float[1, 1, 1, 3] z) => (float[1, 5, 6] y)
    <int64[3] flat = {1, -1, 6}>
    {
        a = Softmax(x)
        b = Softmax <axis = 1> (x)
        c = Softmax(z)
        d = Softmax <axis = 1> (z)
        first = Concat <axis = 3> (a, b)
        second = Concat <axis = 3> (c, d)
        p = Reshape(first, flat)
        q = Reshape(second, flat)
        joined = Concat <axis = 1> (p, q)
        [after] y = Softmax(joined)
    }
    """
    found = check(models.save(text, tmp_path))
    assert found.ok
    assert found.compared == len(found.checks) >= 5
    read = [v for c in found.checks for v in c.step.region.inputs]
    assert any(v.op.name == "concat" for v in read)
