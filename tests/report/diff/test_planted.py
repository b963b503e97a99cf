"""monograph diff: a wrong kernel, a lossy rewrite and a quantised layer are found and named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from monograph import pipeline
from monograph.codegen.llvm.module import compile as compiler
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext
from monograph.ir import Graph, Value, constant
from monograph.ops.elementwise import Mul
from monograph.passes.base import Environment, Pass
from monograph.program.fusion.region import Region
from monograph.report.commands.execute import RunRequest
from monograph.report.diff.compare import KERNEL, MODEL, REWRITE, ROUNDING, DiffResult
from monograph.report.diff.html import diff_page
from monograph.report.diff.run import diff_model
from monograph.report.diff.tensors import source_line
from tests.report.diff.models import MODELS, save, with_quantised_layer


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wrong code is for these tests alone."""
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", "")
    return


def compared(a: str, b: str) -> DiffResult:
    return diff_model(a, b, RunRequest(Path(a.partition("@")[0])), lambda _: None)


def enlarged(text: str) -> str:
    """Return a kernel that stores a quarter more than it should."""
    number = count()

    def store(found: re.Match[str]) -> str:
        kind, value = found[1], found[2]
        lanes = int(kind[1:].split()[0]) if kind.startswith("<") else 1
        factor = ", ".join(["float 0x3FF4000000000000"] * lanes)
        factor = f"<{factor}>" if lanes > 1 else factor.removeprefix("float ")
        name = f"%enlarged.{next(number)}"
        return f"{name} = fmul {kind} {value}, {factor}\n  store {kind} {name}, ptr"

    made = re.sub(r"store (float|<\d+ x float>) ([^,<]+), ptr", store, text)
    assert made != text
    return made


def break_kernels(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    right = compiler.generator

    def wrong(region: Region) -> Any:
        make = right(region)
        if make is None or region.kind != kind:
            return make

        def made(context: KernelContext) -> Kernel:
            kernel = make(context)
            return replace(kernel, text=enlarged(kernel.text))

        return made

    monkeypatch.setattr(compiler, "generator", wrong)


@dataclass(frozen=True)
class Enlarge(Pass, abstract=True):
    """Makes the result of one node a hundredth larger: a rewrite that changes the numbers."""

    name = "enlarge"
    node: str = ""

    def run(self, graph: Graph, environment: Environment) -> Graph:
        (last,) = [v for v in graph.values if graph.origins.get(v) == self.node][-1:]
        if environment.exhausted:
            return graph
        environment.trace.note_fired("make_larger", self.node, "x", "1.01 * x")

        def take(old: Value, inputs: tuple[Value, ...]) -> Value:
            new = old if inputs == old.inputs else old.op(*inputs)
            return Mul()(new, constant(np.float32(1.01))) if old is last else new

        return graph.rebuild(take)


@pytest.mark.parametrize("name", MODELS)
def test_right_code_agrees(name: str, tmp_path: Path) -> None:
    path = save(MODELS[name].build(), tmp_path / "model.onnx")
    found = compared(path, "@reference")
    assert found.ok
    assert len(found.rows) >= 3
    assert all(row.own[0] is not None for row in found.rows)


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_kernel_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, node = MODELS[name].kernel
    path = save(MODELS[name].build(), tmp_path / "model.onnx")
    break_kernels(monkeypatch, kind)
    found = compared(path, "@reference")
    assert found.culprit is not None
    assert found.culprit.kind == KERNEL
    assert found.culprit.check is not None
    assert found.culprit.check.step.region.kind == kind
    assert node in [n.label for n in found.culprit.nodes]
    assert any(f"in forward: {node}(x)" in n.source for n in found.culprit.nodes)


@pytest.mark.parametrize("name", MODELS)
def test_a_lossy_rewrite_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = MODELS[name].rewritten
    path = save(MODELS[name].build(), tmp_path / "model.onnx")
    stage = pipeline.Stage("planted", (Enlarge(node),))
    monkeypatch.setattr(pipeline, "STAGES", (stage, *pipeline.STAGES))
    found = compared(path, "@reference")
    assert found.culprit is not None
    assert found.culprit.kind == REWRITE
    assert found.culprit.fault is not None
    assert found.culprit.fault.step == "enlarge"
    assert found.culprit.fault.rewrite is not None
    assert found.culprit.fault.rewrite.rule == "make_larger"
    assert [n.label for n in found.culprit.nodes] == [node]


@pytest.mark.parametrize("twin", [False, True], ids=["float model", "twin"])
@pytest.mark.parametrize("name", MODELS)
def test_a_quantised_layer_is_named(name: str, twin: bool, tmp_path: Path) -> None:
    layer = MODELS[name].quantised
    plain = MODELS[name].build()
    quantised = save(with_quantised_layer(plain, layer), tmp_path / "quantised.onnx")
    other = "float" if twin else save(plain, tmp_path / "plain.onnx")
    found = compared(quantised, other)
    assert found.culprit is not None
    assert found.culprit.kind == (ROUNDING if twin else MODEL)
    named = [n.label for n in found.culprit.nodes]
    assert any(n == layer or n.startswith(f"{layer}_") for n in named), named
    assert len(named) <= 4
    told = "this one changes the model most" if twin else "the two models differ here"
    assert told in diff_page(found)
    if not twin:
        told = " ".join(found.culprit.differences)
        assert f"{layer}_QuantizeLinear: only in A" in told or "is DequantizeLinear in A" in told


BLOCKS, WIDTH = 6, 24


@pytest.mark.parametrize("bad", [0, 3, 5])
@pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.UINT8], ids=["int8", "uint8"])
def test_the_badly_rounded_one_of_many_layers_is_named(kind: int, bad: int, tmp_path: Path) -> None:
    path = save(_all_rounded(kind, bad), tmp_path / "quantised.onnx")
    found = compared(path, "float")
    assert found.culprit is not None
    assert found.culprit.kind == ROUNDING
    assert [n.label for n in found.culprit.nodes] == [f"block{bad}/q", f"block{bad}/dq"]
    told = " ".join(found.culprit.differences)
    clipped = re.search(r"([\d.]+)% are clipped", told)
    assert clipped is not None, told
    assert float(clipped[1]) > 20
    assert f"block{bad}/q" in diff_page(found)


def test_names_that_few_tensors_share_are_noted(tmp_path: Path) -> None:
    quantised = save(_all_rounded(TensorProto.INT8, 2), tmp_path / "quantised.onnx")
    plain = save(_all_rounded(None, 2), tmp_path / "plain.onnx")
    notes: list[str] = []
    for sides in ((quantised, plain), (plain, quantised)):
        found = diff_model(*sides, RunRequest(Path(sides[0])), notes.append)
        assert not found.ok
        assert any("compare it with `float`" in n for n in notes), notes
        notes.clear()
    diff_model(quantised, "@reference", RunRequest(Path(quantised)), notes.append)
    assert not any("float" in n for n in notes)


def _all_rounded(kind: int | None, bad: int) -> onnx.ModelProto:
    """Layers whose operands are rounded over their range, one over a tenth of it; or none is."""
    random = np.random.default_rng(3)
    nodes, constants, x = [], [], "x"
    zero = 0 if kind != TensorProto.UINT8 else 128
    given = random.uniform(-1, 1, (8, WIDTH)).astype(np.float32)
    for i in range(BLOCKS):
        weight = random.uniform(-1, 1, (WIDTH, WIDTH)).astype(np.float32)
        scale = np.abs(given).max() / 127 / (10 if i == bad else 1)
        constants += [
            onnx.numpy_helper.from_array(weight, f"w{i}"),
            onnx.numpy_helper.from_array(np.float32(scale), f"s{i}"),
        ]
        if kind is not None:
            constants.append(helper.make_tensor(f"z{i}", kind, [], [zero]))
            ends = [f"s{i}", f"z{i}"]
            nodes += [
                helper.make_node("QuantizeLinear", [x, *ends], [f"q{i}"], f"block{i}/q"),
                helper.make_node("DequantizeLinear", [f"q{i}", *ends], [f"d{i}"], f"block{i}/dq"),
            ]
            x = f"d{i}"
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"y{i}"], f"block{i}/dot"))
        x, given = f"y{i}", given @ weight
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, WIDTH]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "layers", ports[:1], ports[1:], constants)
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_the_line_of_a_node_is_in_the_users_program() -> None:
    library = 'File "/lib/site-packages/torch/nn/modules/linear.py", line 134, in forward\n'
    own = 'File "/home/a/net.py", line 7, in forward\n    h = self.hidden(x)\n'
    key = "pkg.torch.onnx.stack_trace"
    assert source_line({key: own + library}) == "/home/a/net.py:7 in forward: h = self.hidden(x)"
    assert "linear.py:134" in source_line({key: library})
    assert source_line({}) == ""


def test_rounded_inputs_are_the_first_difference(tmp_path: Path) -> None:
    model = with_quantised_layer(MODELS["cnn"].build(), "conv1")
    found = compared(save(model, tmp_path / "model.onnx"), "float")
    assert found.culprit is not None
    assert found.first is not None
    assert found.culprit.tensor in ("codes", "rounded")
    assert found.rows[0].tensor == found.first.tensor
    named = [node.label for node in found.culprit.nodes]
    assert named == ["conv1_QuantizeLinear", "conv1_DequantizeLinear"]


def test_integers_of_onnxruntime_are_compared_in_their_place(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = with_quantised_layer(MODELS["cnn"].build(), "conv3")
    found = compared(save(model, tmp_path / "model.onnx") + "@reference", "onnxruntime")
    assert found.ok
    names = [row.tensor for row in found.rows]
    assert names.index("codes") < names.index("scores_out") == len(names) - 1
