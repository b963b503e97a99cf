"""Graphs whose sizes are parameters, on the fake driver: values, counts, and calls that fail."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.codegen.triton.module.launch import Launch
from monograph.errors import ExecutionError
from monograph.runtime.gpu import any_shape, target
from monograph.runtime.gpu.capture import sized_graphs
from monograph.runtime.gpu.driver.graphs import GraphError
from monograph.session import Session
from tests.gpu import gpu_models
from tests.gpu.fake_driver import FakeDevice, FakeDriver
from tests.gpu.fake_graphs import FakeGraphs

pytestmark = gpu_models.INTERPRETED


def network() -> onnx.ModelProto:
    """A dot, a softmax over an open axis, and every fourth row: of three rows none."""
    weights = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"], axis=1),
        helper.make_node("Slice", ["x", "three", "end", "one", "four"], ["s"]),
        helper.make_node("Exp", ["s"], ["h"]),
    ]
    graph = helper.make_graph(
        nodes,
        "sizes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "L", 8])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "yh"],
        [
            numpy_helper.from_array(weights, "w"),
            *(
                numpy_helper.from_array(np.array([number], np.int64), name)
                for name, number in (("three", 3), ("end", 1 << 40), ("one", 1), ("four", 4))
            ),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


class Rig:
    """A session on the fake driver, and the reference."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        model: onnx.ModelProto | None = None,
        **options: Any,
    ) -> None:
        self.driver = FakeDriver()
        graphs = FakeGraphs(self.driver, builds=True)
        device = FakeDevice(self.driver, graphs)
        monkeypatch.setattr(target, "open_device", lambda name: device)
        given = {"target": "gpu:interpreter", "specialise": "off", "cache_dir": ""} | options
        self.session: Session = monograph.load(model or network(), **given)
        self.reference = monograph.load(model or network(), target="reference")

    def check(self, *shape: int, seed: int = 0) -> list[torch.Tensor]:
        x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        given = self.session.run({"x": torch.from_numpy(x.copy())})
        for a, b in zip(given, self.reference.run({"x": x}), strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-6)
        return given

    @property
    def stats(self) -> dict[str, Any]:
        return self.session.stats


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


SHAPES = ((2, 9), (3, 8), (2, 17), (7, 11), (4, 33), (2, 16))


def test_other_sizes_rewrite_the_graph_of_the_first(rig: Rig) -> None:
    for shape in SHAPES:
        rig.check(*shape, 8)
    assert rig.stats["variants"] == 1
    assert rig.stats["captures"] == 1, "one graph is built"
    assert rig.stats["resizes"] == len(SHAPES) - 1
    assert rig.stats["fallbacks"] == {}
    assert rig.driver.calls["create"] == rig.driver.calls["instantiate"] == 1
    assert rig.driver.calls["graph launch"] == len(SHAPES)


def test_replay_gives_the_bits_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, eager = Rig(monkeypatch), Rig(monkeypatch, capture="off")
    for shape in (*SHAPES, *SHAPES[::-1]):
        for a, b in zip(rig.check(*shape, 8), eager.check(*shape, 8), strict=True):
            assert torch.equal(a, b)


def test_sizes_that_come_back_get_a_graph_of_their_own(rig: Rig) -> None:
    for turn in range(4):
        for shape in SHAPES[:3]:
            rig.check(*shape, 8, seed=turn)
    instantiated = rig.driver.calls["instantiate"]
    assert instantiated <= 3
    writes = rig.driver.calls["write"]
    kept = {shape: torch.randn(*shape, 8) for shape in SHAPES[:3]}
    out = {s: rig.session.run({"x": x}) for s, x in kept.items()}
    assert rig.driver.calls["instantiate"] == instantiated
    assert rig.stats["captures"] == 1
    assert len(out) == 3
    assert rig.driver.calls["write"] - writes <= 3 * 3, "only addresses of ports are written"


def test_only_so_many_graphs_are_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized_graphs, "MOST_GRAPHS", 2)
    for turn in range(3):
        for shape in SHAPES:
            rig.check(*shape, 8, seed=turn)
    assert rig.driver.live["executable"] == 2


def test_a_kernel_without_work_is_disabled(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = any_shape._bound_launch

    def without_work(work: Any, numbers: Any) -> Launch:
        made = plain(work, numbers)
        return replace(made, grid=(0, 1, 1)) if "tl.max(" in made.source else made

    first = rig.check(2, 9, 8)
    monkeypatch.setattr(any_shape, "_bound_launch", without_work)
    x = torch.randn(2, 12, 8)
    rig.session.run({"x": x})
    assert rig.driver.calls["enable"] == 1, "the softmax"
    assert rig.stats["fallbacks"] == {}
    monkeypatch.undo()
    again = rig.check(2, 10, 8)
    assert rig.driver.calls["enable"] == 2
    assert rig.stats["variants"] == rig.stats["captures"] == 1
    assert len(first) == len(again)


def test_results_of_one_size_outlive_runs_of_another(rig: Rig) -> None:
    kept = rig.check(2, 11, 8)
    first = [t.clone() for t in kept]
    rig.check(7, 33, 8)
    rig.check(3, 8, 8)
    assert all(torch.equal(a, b) for a, b in zip(kept, first, strict=True))


@pytest.mark.parametrize("call", ["write", "instantiate", "create", "prepare", "launch"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_failed_call_leaves_results_right(
    monkeypatch: pytest.MonkeyPatch, call: str, after: int
) -> None:
    rig = Rig(monkeypatch)
    rig.check(2, 11, 8)
    rig.check(2, 9, 8)
    rig.driver.fail(call, after=after)
    for turn in range(2):
        for shape in ((3, 9), (2, 11), (2, 3), (1, 9), (2, 9)):
            try:
                rig.check(*shape, 8, seed=turn)
            except GraphError:
                assert call == "write", "only the address of a port cannot be made up for"
    assert call == "create" or call not in rig.driver._faults, "the call was made and failed"


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    for shape in SHAPES:
        rig.check(*shape, 8)
    driver = rig.driver
    rig.session.close()
    del rig
    gc.collect()
    assert driver.leaks() == {}


def test_arrays_of_the_host_run_by_the_same_graph(rig: Rig) -> None:
    for shape in SHAPES[:3]:
        x = np.random.default_rng(1).normal(size=(*shape, 8)).astype(np.float32)
        for a, b in zip(rig.session.run({"x": x}), rig.reference.run({"x": x}), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert rig.stats["captures"] == 1


def test_threads_run_different_sizes_at_once(rig: Rig) -> None:
    rig.check(2, 9, 8)
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(6):
                shape = SHAPES[(number + turn) % len(SHAPES)]
                rig.check(*shape, 8, seed=number * 10 + turn)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(t.is_alive() for t in threads)
    assert wrong == []
    assert rig.stats["captures"] == 1


def test_queued_runs_keep_their_sizes(rig: Rig) -> None:
    rig.check(2, 9, 8)
    rig.driver.lazy = True
    given = {s: torch.randn(*s, 8) for s in SHAPES}
    pending = {s: rig.session.run_async({"x": x}) for s, x in given.items()}
    rig.driver.lazy = False
    rig.driver.drain()
    for shape, run in pending.items():
        for a, b in zip(run.result(), rig.reference.run({"x": given[shape].numpy()}), strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-6)


def test_a_data_fault_belongs_to_the_run_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["t", "i"], ["y"])],
        "lookup",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(table, "t")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    rig = Rig(monkeypatch, model)
    for size, wrong in ((5, False), (7, True), (9, False), (7, False), (5, True), (6, False)):
        i = torch.arange(size) % 10
        if wrong:
            i[size // 2] = 77
            with pytest.raises(ExecutionError, match="77"):
                rig.session.run({"i": i})
            continue
        (given,) = rig.session.run({"i": i})
        np.testing.assert_array_equal(given.numpy(), table[i.numpy()])
    assert rig.stats["captures"] == rig.stats["variants"] == 1
