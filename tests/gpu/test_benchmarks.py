"""The parts of the GPU benchmarks that need no GPU: the torch peer, the contenders, one sweep."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import onnx
import pytest
import torch
from benchmarks import gpu_cliffs, gpu_contenders, gpu_models, gpu_start
from benchmarks.cliff_cases import CASES, Case, write_case
from benchmarks.gpu_contenders import COMPILED, EAGER, MONOGRAPH, Problem, random_feeds
from benchmarks.gpu_timing import Clock
from benchmarks.torch_model import TorchModel

import monograph
from monograph.runtime.gpu.driver import cuda
from monograph.runtime.gpu.driver.devices import Interpreter
from monograph.runtime.numerics.compare import compare_outputs
from tests.gpu.sweep import Found, run_parts

DEVICE = os.environ.get("MONOGRAPH_TEST_DEVICE", "")


@pytest.mark.parametrize("name", gpu_models.TINY)
def test_the_peer_computes_what_the_reference_does(name: str, tmp_path: Path) -> None:
    path = gpu_models.find(name, tmp_path)
    session = monograph.load(path, target="reference")
    feeds = random_feeds(session)
    inputs = [torch.from_numpy(x) for x in feeds.values()]
    model = TorchModel(onnx.load(path), inputs, torch.float32)
    with torch.no_grad():
        made = model(*(x.float() if x.is_floating_point() else x for x in inputs))
    names = [p.name for p in session.outputs]
    expected = dict(zip(names, session.run(feeds), strict=True))
    given = {n: t.numpy().astype(expected[n].dtype) for n, t in zip(names, made, strict=True)}
    tolerances = session.tolerances(feeds)
    wrong = [d for d in compare_outputs(given, expected, tolerances) if not d.ok]
    assert not wrong


def test_the_peer_is_written_as_people_write_it(tmp_path: Path) -> None:
    path = gpu_models.find("tiny_bert", tmp_path)
    model = TorchModel(onnx.load(path), [torch.zeros(1, 8, dtype=torch.int64)], torch.float32)
    for call in ("F.scaled_dot_product_attention", "F.gelu", "F.linear", "F.embedding"):
        assert call in model.source
    for call in ("softmax(", "erf(", "matmul("):
        assert call not in model.source
    assert all(f"self.{name}" in model.source for name, _ in model.named_buffers())


@pytest.mark.skipif(DEVICE == "cuda", reason="the benchmarks themselves run there")
def test_every_contender_of_a_dry_run_is_measured(tmp_path: Path) -> None:
    path = gpu_models.find("tiny_llama", tmp_path)
    problem = Problem(path, dry=True, tune="off", tuning=None, mode="default")
    right = problem.right()
    figures = {}
    for name, make in problem.contenders():
        figures[name] = Clock(problem.place, short=True).measure(make(), right)
    assert set(figures) == {MONOGRAPH, EAGER, COMPILED}
    for found in figures.values():
        assert found.error is not None
        assert found.error < 2.0**-9  # f16 has 10 bits behind the point
        assert found.device_us > 0
        assert 0 <= found.copies < 1
    assert figures[MONOGRAPH].kernels


class FakeStream:
    """A stream on which everything has been done already."""

    cuda_stream = 0
    used: ClassVar[list[str]] = []

    def __init__(self, *_: object) -> None:
        pass

    def record_event(self) -> str:
        self.used.append("record")
        return "event"

    def wait_event(self, event: str) -> None:
        assert event == "event"

    def wait_stream(self, other: object) -> None:
        pass


@pytest.mark.skipif(DEVICE == "cuda", reason="the benchmarks themselves run there")
def test_the_way_to_a_device_by_fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the device: f16, the tuner's choice, streams, captures and replays."""
    path = gpu_models.find("tiny_llama", tmp_path)
    fakes = {
        "Stream": FakeStream,
        "stream": lambda _: nullcontext(),
        "synchronize": lambda *_: None,
        "current_stream": FakeStream,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setattr(cuda, "CudaDevice", Interpreter)
    monkeypatch.setattr(gpu_contenders, "captured", lambda work, *_: SimpleNamespace(replay=work))
    problem = Problem(path, dry=False, tune="fast", tuning=tmp_path / "t.json", mode="default")
    right = problem.right()
    for name, make in problem.contenders():
        found = Clock(problem.place, short=True).measure(make(), right)
        assert found.error is not None, name
        assert found.error < 2.0**-8, name
    assert FakeStream.used


def test_a_part_of_the_sweep_shares_its_cases_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOGRAPH_TEST_DEVICE", DEVICE)
    found = Found()
    run_parts(found, ["samples", "conformance"], "sqrt", 2)
    assert found.counts["samples"]["right"] >= 2
    assert found.counts["conformance"]["right"] >= 1
    assert not found.problems


def test_a_cliff_is_a_case_that_is_slower_than_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = Case("float[9,16] x", gpu_cliffs._trees(3, 7))
    monkeypatch.setitem(CASES, "few trees", trees)
    found = gpu_cliffs.measure(
        "few trees", *write_case("few trees", tmp_path), "gpu:interpreter", "off"
    )
    assert found.differs < 1e-5
    assert found.kernels >= 1
    assert "few trees" in found.line()
    for gpu, cpu, missed in ((3e-4, 2.5e-4, True), (3e-4, 2.9e-4, False), (3e-4, 1e-4, False)):
        assert gpu_cliffs.GpuCliff("x", gpu, cpu, 1, 0.0, 0.0).missed == missed


@pytest.mark.skipif(DEVICE == "cuda", reason="the benchmarks themselves run there")
def test_starts_repeat_their_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LONGEST", 24), ("STEADY", 1), ("WARM", 1)):
        monkeypatch.setattr(gpu_start, name, value)
    gpu_start.open_bert(tmp_path / "model.onnx", 1, 32)
    asked = {
        "path": str(tmp_path / "model.onnx"),
        "cache": str(tmp_path / "cache"),
        "target": "gpu:interpreter",
        "tune": "off",
        "case": asdict(gpu_start.StartCase("open_bert", "f32", "off", 2)),
    }
    first, second = (gpu_start.child(asked) for _ in range(2))
    assert first["digest"] == second["digest"]
    assert len(first["late_ms"]) == len(first["steady_ms"]) == 2
    assert first["counts"]["compiled_kernels"] > 0
    assert set(first["seconds"]) == {"load", "to the first answer"}
