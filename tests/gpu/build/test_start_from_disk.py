"""Programs of a GPU on disk: the next process compiles, imports and rewrites nothing."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.runtime.cache import object_cache
from monograph.runtime.cache import weights as stored_weights
from monograph.runtime.gpu import target
from monograph.runtime.gpu.artefact import PlannedCall
from monograph.session import Session
from tests.gpu import gpu_models as models
from tests.gpu.capture.test_sized_graphs import network
from tests.gpu.gpu_models import FLOAT, INT64, model
from tests.gpu.keeping_device import KeepingDevice

pytestmark = models.INTERPRETED
X = np.random.default_rng(1).normal(size=(3, 33)).astype(np.float32)


class Machine:
    """Processes on one machine, one after the other: each has its own device and session."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = str(folder / "cache")
        self._monkeypatch = monkeypatch
        self.device = KeepingDevice()

    def load(self, given: Any, **options: Any) -> Session:
        self.device = device = KeepingDevice()
        self._monkeypatch.setattr(target, "open_device", lambda name: device)
        source = given.SerializeToString() if isinstance(given, onnx.ModelProto) else given
        options = {"tune": "off", "cache_dir": self.cache} | options
        return monograph.load(source, target="gpu", **options)

    def forbid_work(self) -> None:
        """From now on nothing is read, rewritten or compiled."""

        def never(*args: Any, **others: Any) -> Any:
            raise AssertionError("a program on disk needs none of this")

        for name in (
            "monograph.bindings.Bindings._read",
            "monograph.bindings.Bindings._compile",
            "monograph.bindings.Bindings._compile_variant",
            "monograph.runtime.gpu.target.GpuBackend.compiled",
        ):
            self._monkeypatch.setattr(name, never)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def branch() -> onnx.ModelProto:
    """x + 1 or 2 x, as a flag says, and the row sums of that."""

    def side(op: str, name: str) -> onnx.GraphProto:
        node = helper.make_node(op, ["x", name], ["z"])
        return helper.make_graph(
            [node], "side", [], [helper.make_tensor_value_info("z", FLOAT, None)]
        )

    nodes = [
        helper.make_node(
            "If", ["flag"], ["b"], then_branch=side("Add", "one"), else_branch=side("Mul", "two")
        ),
        helper.make_node("ReduceSum", ["b"], ["y"], keepdims=0),
    ]
    return model(
        nodes,
        {"flag": (TensorProto.BOOL, []), "x": (FLOAT, [4, 8])},
        {"y": (FLOAT, [])},
        {"one": np.float32(1), "two": np.float32(2)},
    )


def test_the_next_process_compiles_nothing(machine: Machine) -> None:
    first = machine.load(models.linear())
    (wanted,) = first.run({"x": X})
    assert first.stats["from_disk"] == 0
    assert first.stats["compiled_kernels"] > 0
    machine.forbid_work()
    second = machine.load(models.linear())
    assert second.has_code({"x": X})
    for turn in range(3):
        (given,) = second.run({"x": torch.from_numpy(X + turn)})
        np.testing.assert_array_equal(given.numpy(), first.run({"x": X + turn})[0])
    stats = second.stats
    assert stats["from_disk"] == 1
    assert stats["compiled_kernels"] == 0
    assert stats["loaded_kernels"] == machine.device.loads == 1
    assert stats["captures"] == 1
    assert wanted.shape == given.shape


def test_branches_are_found_on_disk(machine: Machine) -> None:
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    machine.load(branch()).run({"flag": np.array(True), "x": x})
    machine.forbid_work()
    session = machine.load(branch())
    for flag, wanted in ((True, x + 1), (False, 2 * x)):
        (given,) = session.run({"flag": np.array(flag), "x": x})
        np.testing.assert_array_equal(given, wanted.sum())
    assert session.stats["from_disk"] == 1


def test_donated_state_is_found_on_disk(machine: Machine) -> None:
    nodes = [helper.make_node("Add", ["past", "x"], ["present"])]
    shape: dict[str, Any] = {"past": (FLOAT, [4]), "x": (FLOAT, [4])}
    counted = model(nodes, shape, {"present": (FLOAT, [4])})
    for turn in range(2):
        if turn:
            machine.forbid_work()
        session = machine.load(counted, donate={"present": "past"})
        state = torch.zeros(4)
        for _ in range(3):
            (state,) = session.run({"past": state, "x": torch.ones(4)}, out={"present": state})
        assert state.tolist() == [3.0] * 4
        assert session.stats["from_disk"] == turn


def test_a_wrong_index_is_an_error_of_a_program_on_disk(machine: Machine) -> None:
    machine.load(models.lookup()).run({"at": np.array([1, 2])})
    machine.forbid_work()
    session = machine.load(models.lookup())
    (given,) = session.run({"at": np.array([4, 0])})
    assert given[0].tolist() == [12.0, 13.0, 14.0]
    with pytest.raises(monograph.errors.ExecutionError, match="row"):
        session.run({"at": np.array([1, 5])})


def test_a_library_is_called_from_data(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's product that was chosen is in the stored program, with its views."""
    from monograph.runtime.gpu.build.tune import Tuner

    def library(self: Tuner, *rest: Any, **others: Any) -> Any:
        return lambda step, found: next((c for c in found if "library" in c.name), found[0])

    monkeypatch.setattr(Tuner, "chooser", library)
    first = machine.load(models.linear(), capture="off")
    (wanted,) = first.run({"x": X})
    artefact = first.executable({"x": X}).artefact()
    assert any(isinstance(p, PlannedCall) for p in artefact.launches)  # type: ignore[union-attr]
    machine.forbid_work()
    second = machine.load(models.linear(), capture="off")
    (given,) = second.run({"x": X})
    np.testing.assert_array_equal(given, wanted)
    assert second.stats["from_disk"] == 1


SHAPES = ((2, 9), (3, 8), (7, 11), (4, 16))


def test_code_for_any_shape_is_found_on_disk(machine: Machine) -> None:
    first = machine.load(network(), specialise="off")
    wanted = {}
    for shape in SHAPES:
        x = np.random.default_rng(0).normal(size=(*shape, 8)).astype(np.float32)
        wanted[shape] = x, first.run({"x": x})
    assert first.stats["variants"] == 1
    assert first.stats["from_disk"] == 0
    machine.forbid_work()
    second = machine.load(network(), specialise="off")
    for x, outputs in wanted.values():
        for given, old in zip(second.run({"x": torch.from_numpy(x)}), outputs, strict=True):
            np.testing.assert_array_equal(given.numpy(), old)
    stats = second.stats
    assert (stats["variants"], stats["from_disk"], stats["compiled_kernels"]) == (1, 1, 0)
    assert stats["captures"] == 1
    assert stats["resizes"] == len(SHAPES) - 1
    assert stats["guards"] == first.stats["guards"]


def test_kernels_for_multiples_of_16_are_found_on_disk(machine: Machine) -> None:
    """A kernel has two forms on disk, and sizes say which one is launched."""
    used: list[bytes] = []
    machine.load(network(), specialise="off").run({"x": np.zeros((2, 9, 8), np.float32)})
    session = machine.load(network(), specialise="off")
    loaded = machine.device.loaded

    def noted(binary: Any, *rest: Any) -> Any:
        used.append(binary.code)
        return loaded(binary, *rest)

    machine.device.loaded = noted  # type: ignore[method-assign]
    found = []
    for length in (9, 16, 10, 32):
        session.run({"x": np.zeros((16, length, 8), np.float32)})
        found.append(frozenset(used))
        used.clear()
    assert found[0] == found[2] != found[1] == found[3]


def test_faults_name_the_sizes_of_the_run(machine: Machine) -> None:
    nodes = [helper.make_node("Gather", ["table", "at"], ["y"], name="row")]
    ports: dict[str, Any] = {"table": (FLOAT, ["rows", 3]), "at": (INT64, ["n"])}
    gather = model(nodes, ports, {"y": (FLOAT, None)})  # type: ignore[dict-item]
    first = machine.load(gather, specialise="off")
    feeds = {"table": np.ones((5, 3), np.float32), "at": np.array([1, 2])}
    first.run(feeds)
    assert first.stats["variants"] == 1, first.stats["exact_reason"]
    machine.forbid_work()
    second = machine.load(gather, specialise="off")
    with pytest.raises(monograph.errors.ExecutionError) as caught:
        second.run(feeds | {"table": np.ones((7, 3), np.float32), "at": np.array([1, 2, 9])})
    assert "7" in str(caught.value)
    assert "9" in str(caught.value)


def test_shapes_share_the_weights_on_disk(machine: Machine) -> None:
    session = machine.load(models.linear())
    for rows in (2, 3, 5):
        session.run({"x": X[:1].repeat(rows, 0)})
    entries = Path(machine.cache).rglob("entries/*/*")
    holders = [e for e in entries if bytes(X.dtype.type(0)) and b'"slack"' in e.read_bytes()]
    assert len(holders) == 1
    machine.forbid_work()
    second = machine.load(models.linear())
    for rows in (2, 3, 5):
        second.run({"x": X[:1].repeat(rows, 0)})
    assert second.gpu.constants.uploads == 1  # type: ignore[union-attr]


def test_large_weights_are_in_several_packs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their digests are checked side by side; one that is damaged is made again."""
    draw = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", [x, w], [y]) for x, w, y in ("xah", "hbi", "icy")]
    weights = {name: draw.normal(size=(32, 32)).astype(np.float32) for name in "abc"}
    deep = model(nodes, {"x": (FLOAT, [4, 32])}, {"y": (FLOAT, [4, 32])}, weights)
    monkeypatch.setattr(stored_weights, "PACK_BYTES", 5000)
    feeds = {"x": draw.normal(size=(4, 32)).astype(np.float32)}
    (wanted,) = machine.load(deep).run(feeds)
    packs = [
        p for p in Path(machine.cache).rglob("entries/*/*") if b'"slack"' in p.read_bytes()[:4096]
    ]
    assert len(packs) == 2
    for damaged in (None, *packs):
        if damaged is not None:
            data = bytearray(damaged.read_bytes())
            data[-2000] ^= 1
            damaged.write_bytes(data)
        gc.collect()  # weights that are mapped are not read again
        session = machine.load(deep)
        (given,) = session.run(feeds)
        np.testing.assert_array_equal(given, wanted)
        assert session.stats["from_disk"] == (damaged is None)


@pytest.mark.parametrize("specialise", ["now", "off"])
def test_damage_is_found_and_compiled_again(machine: Machine, specialise: str) -> None:
    (wanted,) = machine.load(models.linear(), specialise=specialise).run({"x": X})
    kept = [p for p in Path(machine.cache).rglob("entries/*/*") if p.is_file()]
    for number in range(len(kept)):
        data = bytearray(kept[number].read_bytes())
        data[len(data) * 2 // 3] ^= 4
        kept[number].write_bytes(data)
        (given,) = machine.load(models.linear(), specialise=specialise).run({"x": X})
        np.testing.assert_array_equal(given, wanted)


def test_other_options_and_models_are_compiled(machine: Machine) -> None:
    machine.load(models.linear()).run({"x": X})
    other = models.linear()
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((33, 20), "f4"), "W"))
    for given, options in ((other, {}), (models.linear(), {"precision": "f16"})):
        session = machine.load(given, **options)
        session.run({"x": X})
        assert session.stats["from_disk"] == 0


def test_another_device_compiles_for_itself(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.load(models.linear()).run({"x": X})
    monkeypatch.setattr(KeepingDevice, "name", "another device")
    session = machine.load(models.linear())
    session.run({"x": X})
    assert session.stats["from_disk"] == 0


def test_later_measurements_choose_other_kernels(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"best": 2}
    tried: list[int] = []

    def measure(self: KeepingDevice, *launches: Any) -> float:
        tried.append(len(tried))
        return 5.0 if tried[-1] % 100 == clock["best"] else 10.0

    monkeypatch.setattr(KeepingDevice, "measures", True)
    monkeypatch.setattr(KeepingDevice, "measure", measure)
    options = {"tune": "fast", "capture": "off"}
    first = machine.load(models.linear(), **options)
    first.run({"x": X})
    assert first.stats["tuned"] == 1
    second = machine.load(models.linear(), **options)
    second.run({"x": X})
    assert second.stats["from_disk"] == second.stats["tuning_used"] == 1
    assert second.stats["tuned"] == 0
    # A file of measurements that says otherwise, from a colleague or a longer search.
    file = Path(machine.cache) / "tuning.json"
    cache = target.TuningCache.open(file)
    (entries,) = cache.measured.values()
    (entry,) = entries.values()
    winner, other, *rest = entry["us"]
    entry["us"] = {other: 1.0, winner: 2.0, **dict.fromkeys(rest, 3.0)}
    entry["winner"] = other
    cache.save = lambda: None  # type: ignore[method-assign]
    cache._write(file)
    third = machine.load(models.linear(), **options)
    third.run({"x": X})
    assert third.stats["from_disk"] == 0, "its kernel is not the fastest one any more"
    fourth = machine.load(models.linear(), **options)
    fourth.run({"x": X})
    assert fourth.stats["from_disk"] == 1


def test_external_data_that_changed_is_compiled_again(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        models.linear(), path, save_as_external_data=True, location="weights", size_threshold=0
    )
    (before,) = machine.load(path).run({"x": X})
    again = machine.load(path)
    again.run({"x": X})
    assert again.stats["from_disk"] == 1
    data = bytearray((tmp_path / "weights").read_bytes())
    data[3] ^= 0x80  # the sign of the first weight
    (tmp_path / "weights").write_bytes(data)
    session = machine.load(path)
    (after,) = session.run({"x": X})
    assert session.stats["from_disk"] == 0
    assert not np.array_equal(before, after)


def test_the_program_of_a_stored_executable_is_compiled_when_it_is_asked_for(
    machine: Machine,
) -> None:
    machine.load(models.linear()).run({"x": X})
    session = machine.load(models.linear())
    session.run({"x": X})
    (program,) = session.executable({"x": X}).programs
    assert [s.region.kind for s in program.steps] == ["dot"]


SCRIPT = """
import sys

import numpy as np
import torch

here = set(sys.modules)
import monograph
from monograph.runtime.gpu import target
from monograph.runtime.gpu.driver.devices import Interpreter


class Nothing:
    empty = False

    def point(self, *where):
        pass

    def launch(self, stream):
        pass


class Device(Interpreter):
    keeps_code = True
    name = "a device that keeps code"

    def loaded(self, *about):
        return Nothing()


device = Device()
target.open_device = lambda name: device
path, cache, specialise = sys.argv[1:]
options = {"tune": "off", "cache_dir": cache, "specialise": specialise, "capture": "off"}
session = monograph.load(path, target="gpu", **options)
(y,) = session.run({"x": np.ones((3, 33), np.float32)})
assert y.shape == (3, 20), y.shape
assert session.stats["from_disk"] == 1
for name in sorted({*sys.modules} - here):
    print(name)
"""
HEAVY = ("triton", "onnx", "monograph.ops", "monograph.pipeline")
ROOMS = ("frontend.onnx", "rules", "passes", "rewrite", "program.lowering", "program.fusion")


@pytest.mark.parametrize("specialise", ["now", "off"])
def test_a_program_on_disk_needs_no_compiler(
    machine: Machine, tmp_path: Path, specialise: str
) -> None:
    """No import of Triton, of onnx, of rewrites or kernel generators."""
    path = tmp_path / "model.onnx"
    path.write_bytes(models.linear().SerializeToString())
    options = {"specialise": specialise, "capture": "off"}
    machine.load(path, **options).run({"x": X})
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), machine.cache, specialise],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = done.stdout.split()
    assert "monograph.runtime.gpu.artefact" in found
    heavy = (*HEAVY, *(f"monograph.{room}" for room in ROOMS), "monograph.codegen.triton.emit")
    wrong = [m for m in found if any(m == h or m.startswith(f"{h}.") for h in heavy)]
    assert wrong == []


def test_files_hold_no_pickles(machine: Machine) -> None:
    machine.load(models.linear()).run({"x": X})
    for path in Path(machine.cache).rglob("entries/*/*"):
        parts = object_cache._unpack(path.name, memoryview(path.read_bytes()))
        assert parts is not None
        assert not any(bytes(p[:2]) == b"\x80\x04" for p in parts.values())
