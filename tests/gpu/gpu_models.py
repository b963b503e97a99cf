"""Small ONNX models, and a device for tests that compiles nothing and whose clock is a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from monograph.codegen.triton.module.launch import Arch, BufferRef, Launch
from monograph.runtime.gpu import target
from monograph.runtime.gpu.build.binaries import CompileRequest, KernelBinary
from monograph.runtime.gpu.driver.devices import Interpreter, Record

INTERPRETED = pytest.mark.skipif(
    bool(os.environ.get("MONOGRAPH_TEST_DEVICE")),
    reason="Triton either interprets kernels in a process or compiles them",
)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: dict[str, tuple[int, list[Any]]],
    constants: dict[str, Any] | None = None,
) -> onnx.ModelProto:
    def info(ports: dict[str, tuple[int, list[Any]]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, t, s) for n, (t, s) in ports.items()]

    kept = [numpy_helper.from_array(np.asarray(x), n) for n, x in (constants or {}).items()]
    graph = helper.make_graph(nodes, "small", info(inputs), info(outputs), kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def linear() -> onnx.ModelProto:
    """relu(x @ W) for any number of rows, a product with rivals."""
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["y"], name="relu"),
    ]
    weights = (np.random.default_rng(3).normal(size=(33, 20)) / 6).astype(np.float32)
    return model(nodes, {"x": (FLOAT, ["n", 33])}, {"y": (FLOAT, ["n", 20])}, {"W": weights})


def lookup() -> onnx.ModelProto:
    """A row of a table, by an index that may be wrong."""
    nodes = [helper.make_node("Gather", ["table", "at"], ["y"], name="row")]
    table = {"table": np.arange(15, dtype=np.float32).reshape(5, 3)}
    return model(nodes, {"at": (INT64, [2])}, {"y": (FLOAT, [2, 3])}, table)


def sequences() -> onnx.ModelProto:
    """exp(x) split into a sequence, and its second part doubled."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], name="before"),
        helper.make_node("SplitToSequence", ["e"], ["parts"], axis=0, name="parts"),
        helper.make_node("SequenceAt", ["parts", "one"], ["part"], name="at"),
        helper.make_node("Add", ["part", "part"], ["y"], name="after"),
    ]
    one = {"one": np.int64(1)}
    return model(nodes, {"x": (FLOAT, [3, 4])}, {"y": (FLOAT, [1, 4])}, one)


def cut() -> onnx.ModelProto:
    """The first elements of exp(x), doubled: as many as data say."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], name="before"),
        helper.make_node("Slice", ["e", "zero", "count"], ["part"], name="part"),
        helper.make_node("Add", ["part", "part"], ["y"], name="after"),
    ]
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (FLOAT, [6]), "count": (INT64, [1])}
    return model(nodes, inputs, {"y": (FLOAT, ["k"])}, {"zero": np.zeros(1, np.int64)})


class FakeDevice(Interpreter):
    """The interpreter as a device with a clock: kernels take what a table says, or 10 us."""

    measures = True
    name = "a fake GPU"
    driver = "1.0"
    cache_bytes = 1 << 20

    def __init__(self, arch: Arch | None = None) -> None:
        if arch is not None:
            self.arch = arch  # type: ignore[misc]
        self.measurements = 0
        self.turns: list[int] = []
        """The number of copies that took turns in each measurement."""
        self.clock: Callable[[int], float] = lambda number: 10.0
        self.loads: list[KernelBinary] = []

    def measure(self, *launches: Callable[[], None]) -> float:
        self.measurements += 1
        self.turns.append(len(launches))
        return self.clock(self.measurements - 1)

    def loaded(
        self,
        binary: KernelBinary,
        grid: tuple[int, int, int],
        arguments: Sequence[BufferRef],
        sizes: tuple[int, ...] = (),
    ) -> Record:
        self.loads.append(binary)
        return _Nothing()

    def record(self, launch: Launch, arguments: Sequence[BufferRef], stem: str) -> Record:
        return super().record(launch, arguments, stem)

    def has(self, wanted: CompileRequest) -> bool:
        return True


class _Nothing:
    def point(self, position: int, memory: Any, offset: int) -> None:
        pass

    def launch(self, stream: int) -> None:
        pass


def use(device: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets target "gpu" be this device."""
    monkeypatch.setattr(target, "open_device", lambda name: device)
