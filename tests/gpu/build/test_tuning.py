"""The measured choice, with a clock that is a table: what is kept, found again, left out."""

from __future__ import annotations

import json
import math
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monograph
from monograph.codegen.triton.module import select
from monograph.codegen.triton.module.kernel import Candidate
from monograph.errors import CodegenError, ConfigError
from monograph.ir import constant
from monograph.ops.attention import CacheUpdate
from monograph.ops.elementwise import Add
from monograph.runtime.gpu.build import search, tune
from monograph.runtime.gpu.build.binaries import Built, CompileRequest
from monograph.runtime.gpu.build.tuning_cache import TuningCache, bucket_of, environment_of
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from monograph.session import Session
from tests.gpu import gpu_models
from tests.gpu.against import device as real_device
from tests.gpu.gpu_models import FakeDevice, linear, use
from tests.rules.checks import graph_of, value

pytestmark = gpu_models.INTERPRETED
X = np.random.default_rng(1).normal(size=(3, 33)).astype(np.float32)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    made = FakeDevice()
    use(made, monkeypatch)
    return made


def load(folder: Path, **options: Any) -> Session:
    return monograph.load(linear(), target="gpu", cache_dir=str(folder), **options)


def entries(folder: Path) -> dict[str, Any]:
    (found,) = json.loads((folder / "tuning.json").read_text())["measured"].values()
    return dict(found)


def test_the_fastest_rival_is_chosen_and_kept(device: FakeDevice, tmp_path: Path) -> None:
    device.clock = lambda number: 5.0 if number == 2 else 10.0 + number
    session = load(tmp_path)
    (found,) = session.run({"x": X})
    right = monograph.load(linear(), target="reference").run({"x": X})[0]
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)
    (entry,) = entries(tmp_path).values()
    assert next(iter(entry["us"])) == entry["winner"] != entry["default"]
    assert entry["us"][entry["winner"]] == 5.0
    assert "dot(f32[3, 33]" in entry["problem"]
    assert session.stats["tuned"] == session.stats["tuning_used"] == 1
    assert 2 < device.measurements <= tune.TRIED


def test_constants_are_cold_where_those_of_the_model_are(
    device: FakeDevice, tmp_path: Path
) -> None:
    load(tmp_path).run({"x": X})
    assert set(device.turns) == {1}  # all of the model's constants stay in the cache
    device.turns.clear()
    device.cache_bytes = 4 * 33 * 20
    load(tmp_path, tf32=True).run({"x": X})
    assert set(device.turns) == {2}


def test_what_is_known_is_not_measured_again(device: FakeDevice, tmp_path: Path) -> None:
    load(tmp_path).run({"x": X})
    before = device.measurements
    session = load(tmp_path)
    session.run({"x": X})
    assert device.measurements == before
    assert session.stats["tuned"] == 0
    assert session.stats["tuning_used"] == 1


def test_full_measures_all_rivals(device: FakeDevice, tmp_path: Path) -> None:
    load(tmp_path).run({"x": X})
    fast = device.measurements
    load(tmp_path, tune="full").run({"x": X})
    full = device.measurements - fast
    assert full > fast
    load(tmp_path, tune="full").run({"x": X})
    load(tmp_path, tune="fast").run({"x": X})
    assert device.measurements == fast + full


def test_off_measures_nothing_and_uses_nothing(device: FakeDevice, tmp_path: Path) -> None:
    load(tmp_path).run({"x": X})
    before = device.measurements
    session = load(tmp_path, tune="off")
    session.run({"x": X})
    assert device.measurements == before
    assert session.stats["tuning_used"] == 0


def test_a_measurement_holds_for_its_device_and_driver(device: FakeDevice, tmp_path: Path) -> None:
    load(tmp_path).run({"x": X})
    before = device.measurements
    device.driver = "2.0"
    load(tmp_path).run({"x": X})
    assert device.measurements == 2 * before
    kept = json.loads((tmp_path / "tuning.json").read_text())["measured"]
    assert len(kept) == 2
    assert all("a fake GPU" in name and "triton" in name for name in kept)


def test_tf32_is_another_problem(device: FakeDevice, tmp_path: Path) -> None:
    load(tmp_path).run({"x": X})
    load(tmp_path, tf32=True).run({"x": X})
    assert sorted(key.endswith("-tf32") for key in entries(tmp_path)) == [False, True]


def test_a_file_that_is_shared(device: FakeDevice, tmp_path: Path) -> None:
    shared = tmp_path / "mine" / "h200.json"
    load(tmp_path, tuning_cache=shared).run({"x": X})
    assert shared.exists()
    assert not (tmp_path / "tuning.json").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"monograph tuning": 7, "measured": {}}', "{broken"])
def test_a_file_of_another_kind_is_refused(device: FakeDevice, tmp_path: Path, text: str) -> None:
    (tmp_path / "tuning.json").write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)
    assert (tmp_path / "tuning.json").read_text() == text


def test_a_winner_that_does_not_exist_any_more(device: FakeDevice, tmp_path: Path) -> None:
    load(tmp_path).run({"x": X})
    path = tmp_path / "tuning.json"
    data = json.loads(path.read_text())
    (entry,) = next(iter(data["measured"].values())).values()
    entry["us"] = {"gone": 1.0, **entry["us"]}
    entry["winner"] = "gone"
    path.write_text(json.dumps(data))
    (found,) = load(tmp_path).run({"x": X})
    assert found.shape == (3, 20)


def test_others_may_write_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    entry = {"problem": "p", "winner": "a", "default": "a", "mode": "fast", "us": {"a": 1.0}}
    one, two = TuningCache.open(path), TuningCache.open(path)
    one.of("here")["p1"] = entry
    two.of("here")["p2"] = entry
    one.save()
    two.save()
    assert set(TuningCache.open(path).of("here")) == {"p1", "p2"}
    assert [p.name for p in tmp_path.iterdir()] == ["tuning.json"]


def entry(winner: str, mode: str = "fast") -> dict[str, Any]:
    times = {winner: 1.0, "other": 2.0}
    return {"problem": "p", "winner": winner, "default": "other", "mode": mode, "us": times}


def _measure_many(path: Path, who: int, count: int, start: Any) -> None:
    start.wait()
    cache = TuningCache.open(path)
    for number in range(count):
        cache.of("here")[f"{who}-{number}"] = entry("a")
        cache.save()


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_many_write_at_once(tmp_path: Path, kind: str) -> None:
    """None loses what another wrote, and the file can be read at any time."""
    path, writers, count = tmp_path / "tuning.json", 4, 12
    TuningCache(path, {"elsewhere": {"p": entry("a")}}).save()
    forked = multiprocessing.get_context("fork")
    start: Any = forked.Barrier(writers) if kind == "processes" else threading.Barrier(writers)
    make: Any = forked.Process if kind == "processes" else threading.Thread
    at_work = [make(target=_measure_many, args=(path, i, count, start)) for i in range(writers)]
    for one in at_work:
        one.start()
    while any(one.is_alive() for one in at_work):
        TuningCache.open(path)
    for one in at_work:
        one.join()
    found = TuningCache.open(path)
    assert set(found.of("here")) == {f"{i}-{n}" for i in range(writers) for n in range(count)}
    assert set(found.of("elsewhere")) == {"p"}
    assert [p.name for p in tmp_path.iterdir()] == ["tuning.json"]


def test_who_measures_at_once_uses_the_same_winner(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    one, two, late = (TuningCache.open(path) for _ in range(3))
    one.of("here")["p"] = entry("a")
    two.of("here")["p"] = entry("b")
    one.save()
    two.save()
    late.refresh()
    for cache in (one, two, late, TuningCache.open(path)):
        assert cache.of("here")["p"]["winner"] == "a"


def test_more_rivals_replace_fewer(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    one, two = TuningCache.open(path), TuningCache.open(path)
    one.of("here")["p"] = entry("a")
    two.of("here")["p"] = entry("b", "full")
    one.save()
    two.save()
    one.refresh()
    for cache in (one, two, TuningCache.open(path)):
        assert cache.of("here")["p"]["winner"] == "b"


def test_what_another_session_has_measured_meanwhile(device: FakeDevice, tmp_path: Path) -> None:
    one, two = load(tmp_path), load(tmp_path)
    device.clock = lambda number: 5.0 if number == 2 else 10.0
    one.run({"x": X})
    before = device.measurements
    device.clock = lambda number: 1.0 if number == before + 1 else 10.0
    two.run({"x": X})
    assert device.measurements == before
    chosen = [s.gpu.tuner.used for s in (one, two) if s.gpu is not None]  # type: ignore[union-attr]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 1


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*rest: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    TuningCache(tmp_path / "tuning.json", {"here": {"p": entry("a")}}).save()
    assert "cannot be written: Permission denied" in caplog.text
    assert not list(tmp_path.iterdir())


def test_the_environment_names_versions() -> None:
    text = environment_of(FakeDevice())
    for word in ("a fake GPU", "driver 1.0", f"monograph {monograph.__version__}", "torch "):
        assert word in text


class Refusing(FakeDevice):
    """Compiles nothing that a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[CompileRequest] = []

    def has(self, wanted: CompileRequest) -> bool:
        return False

    def load(self, wanted: CompileRequest, binary: Any) -> None:
        pass


def compiler(monkeypatch: pytest.MonkeyPatch, device: Refusing, fails: Any) -> None:
    def build_all(wanted: Any, arch: Any, done: Any = None) -> Built:
        device.asked += list(wanted)
        error = CodegenError("the compiler said no")
        return {r: error if fails(r) else None for r in wanted}  # type: ignore[misc]

    monkeypatch.setattr(tune, "build_all", build_all)

    class Builds:
        def __init__(self, arch: Any, expected: int, each: Any) -> None:
            self.each = each

        def add(self, requests: Any) -> None:
            for one, made in build_all(requests, None).items():
                self.each(one, made)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(search, "KernelBuilds", Builds)
    use(device, monkeypatch)


def test_a_kernel_that_does_not_compile_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = Refusing()
    compiler(monkeypatch, device, lambda r: r == device.asked[0])
    for mode in ("off", "fast"):
        device.asked.clear()
        (found,) = load(tmp_path, tune=mode).run({"x": X})
        right = monograph.load(linear(), target="reference").run({"x": X})[0]
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)
    (entry,) = entries(tmp_path).values()
    assert entry["default"] not in entry["us"]


def test_a_step_of_which_no_kernel_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler(monkeypatch, Refusing(), lambda r: True)
    with pytest.raises(CodegenError, match="no kernel for a step compiles") as caught:
        load(tmp_path).run({"x": X})
    assert caught.value.op == "dot"
    assert "product" in str(caught.value.node)
    assert "the compiler said no" in str(caught.value)


def test_progress_says_what_is_measured(device: FakeDevice, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    load(tmp_path, progress=lambda *at: seen.append(at)).run({"x": X})
    stages = [stage for stage, _, _ in seen]
    assert any(stage.startswith("measure dot(") for stage in stages)
    (total,) = {at[2] for at in seen if at[0].startswith("measure")}
    assert ("measure", total, total) in seen
    assert stages[-1] == "ready"


def test_candidates_have_names_of_their_own(device: FakeDevice, tmp_path: Path) -> None:
    session = load(tmp_path, tune="off")
    session.run({"x": X})
    program = session.executable({"x": X}).programs[0]
    context = select.GpuContext(program, program.steps[0], device.arch)
    names = [c.name for c in select.candidates(context) if isinstance(c, Candidate)]
    assert len(names) == len(set(names)) > 1


def test_counts_are_plausible_in_a_measurement() -> None:
    """Counts in integers make half of the elements count; random bytes would make all count."""
    cache, row = value("f32[1, 2, 64, 8]", "cache"), value("f32[1, 2, 1, 8]", "row")
    start = Add()(value("i64[1]", "start"), constant(np.int64(1)))
    graph = graph_of(CacheUpdate(2)(cache, row, start))
    module = compile_for_gpu(graph, real_device().arch)
    executable = GpuExecutable(module, real_device())
    buffers = [b for b in module.program.places.buffers if b.kind in ("input", "output")]
    ports = {f"{b.kind}:{b.name}": tune._numbers(b.nbytes, real_device().place) for b in buffers}
    executable.fill(tune._numbers)
    tune._fill_counts(module, executable, ports)
    (step,) = (s for s in module.program.steps if s.region.kind == "cache_update")
    (count,) = (v for v in step.region.inputs if v.dtype.is_integer)
    at = module.offsets[module.program.places.storage[count].buffer.id]
    assert executable.buffers["arena"][at : at + 8].view(torch.int64).item() == 32


def two_products() -> Any:
    """A large product and a small one."""
    draw = np.random.default_rng(0)
    large = draw.normal(size=(33, 256)).astype(np.float32)
    small = draw.normal(size=(256, 8)).astype(np.float32)
    nodes = [
        gpu_models.helper.make_node("MatMul", ["x", "a"], ["h"]),
        gpu_models.helper.make_node("Relu", ["h"], ["r"]),
        gpu_models.helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    ports: tuple[Any, Any] = ({"x": (1, [3, 33])}, {"y": (1, [3, 8])})
    return gpu_models.model(nodes, *ports, {"a": large, "b": small})


def timed(device: FakeDevice, monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[float]:
    """Let a measurement take a second on a clock of its own; the first default is slow."""
    clock = [0.0]

    def took(number: int) -> float:
        clock[0] += 1
        return 100.0 if number == 0 else 10.0 + number

    device.clock = took
    monkeypatch.setattr(search, "now", lambda: clock[0])
    monkeypatch.setattr(search, "FAST_SECONDS", seconds)
    return clock


@pytest.mark.parametrize("seconds", [0.5, 4.0, 7.0])
def test_a_fast_search_keeps_its_time(
    device: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    clock = timed(device, monkeypatch, seconds)
    options = {"target": "gpu", "cache_dir": str(tmp_path), "capture": "off"}
    (found,) = monograph.load(two_products(), **options).run({"x": X})
    right = monograph.load(two_products(), target="reference").run({"x": X})[0]
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-3)
    assert device.measurements == clock[0] <= seconds + 1
    tried = [len(e["us"]) for e in entries(tmp_path).values()] if seconds > 1 else []
    # Both defaults come first; then the problem that takes most of a run.
    assert sorted(tried) == {0.5: [], 4.0: [3], 7.0: [6]}[seconds]


def test_a_full_search_has_all_the_time(
    device: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(device, monkeypatch, 1.0)
    options = {"target": "gpu", "cache_dir": str(tmp_path), "capture": "off", "tune": "full"}
    monograph.load(two_products(), **options).run({"x": X})
    assert len(entries(tmp_path)) == 2
    assert all(len(e["us"]) > tune.TRIED for e in entries(tmp_path).values())


def test_other_sizes_of_a_bucket_are_not_measured(device: FakeDevice, tmp_path: Path) -> None:
    session = load(tmp_path)
    session.run({"x": np.ones((17, 33), np.float32)})
    measured = device.measurements
    for rows in (18, 25, 31):
        (found,) = session.run({"x": np.ones((rows, 33), np.float32)})
        assert found.shape == (rows, 20)
    assert device.measurements == measured
    assert session.stats["tuning_used"] == 4, "its winner is used for all of them"
    session.run({"x": np.ones((32, 33), np.float32)})
    assert device.measurements > measured, "twice the rows are another bucket"
    assert len(entries(tmp_path)) == 2


def test_a_full_search_measures_every_size(device: FakeDevice, tmp_path: Path) -> None:
    session = load(tmp_path, tune="full")
    for rows in (17, 18):
        session.run({"x": np.ones((rows, 33), np.float32)})
    assert len(entries(tmp_path)) == 2


def test_the_nearest_sizes_of_a_bucket_decide() -> None:
    given = bucket_of("dot:f32[24, 700]")
    near, far = bucket_of("dot:f32[25, 690]"), bucket_of("dot:f32[17, 1000]")
    assert given.key == near.key == far.key != bucket_of("dot:f32[24, 500]").key
    assert bucket_of("x:f32[3, 64]").key != bucket_of("x:f32[2, 64]").key, "small sizes are exact"
    assert bucket_of("x:f16[64]").key != bucket_of("x:f32[64]").key
    assert given.key != bucket_of("dot:f32[24, 700]", "-rounded-tf32").key
    distances = [given.distance({"sizes": " ".join(map(str, b.sizes))}) for b in (near, far)]
    assert distances == sorted(distances)
    assert given.distance({"sizes": "3"}) == math.inf
