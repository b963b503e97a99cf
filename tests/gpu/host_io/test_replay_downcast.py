"""Arrays of the host that are rounded on their way to the device, on a driver in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monograph
from monograph.errors import FeedError
from monograph.ir import DType, dtype
from monograph.ir.dtype import bf16, f16, f32
from monograph.runtime.gpu.artefact import layout_from_json, layout_to_json
from monograph.runtime.gpu.bound_program import DevicePort, GpuLayout, GpuProgram
from monograph.runtime.gpu.build.tuning_cache import TuningCache
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.host_io import host_io_graphs, overlapped_upload, pinned_staging
from monograph.runtime.gpu.host_io.overlapped_upload import can_narrow
from monograph.runtime.gpu.host_io.pinned_staging import StagingLayout
from monograph.runtime.gpu.host_io.transfer_policy import (
    ALL_MODES,
    DOWNCAST,
    FULL_WIDTH,
    OVERLAPPED,
    PLAIN,
    MeasuredTransferModes,
    TransferMode,
    candidate_modes,
    nearest,
    time_all,
)
from tests.gpu import gpu_models
from tests.gpu.capture.replay_models import SIZE, double, port, running, slot
from tests.gpu.fake_driver import FakeDriver, FakeRecord, numbers
from tests.gpu.fake_graphs import FakeGraphs
from tests.gpu.host_io.test_replay_hosted import Made

KINDS = [kind for kind in (f16, bf16) if can_narrow(kind)]
SMALL = 16
"""Bytes of a block here: two make an input."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"PIECE": SMALL, "ALIGNMENT": SMALL, "LARGE": 1 << 20}.items():
        monkeypatch.setattr(pinned_staging, name, size)
    monkeypatch.setattr(overlapped_upload, "GRAIN", SMALL)


def rounded(x: Any, kind: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(x, np.float32).astype(kind.numpy).astype(np.float32)


def model(kind: DType) -> Callable[[FakeDriver], GpuProgram]:
    """y = w * 2 of an input that is used whole; z = x, rounded to a type."""

    def cast(words: list[int]) -> None:
        numbers(words[1], SIZE)[:] = rounded(numbers(words[0], SIZE), kind)

    def make(driver: FakeDriver) -> GpuProgram:
        works = [
            (FakeRecord(driver, "double", double, 2), [port("input:w"), port("output:y")]),
            (FakeRecord(driver, "cast", cast, 2), [port("input:x"), port("output:z")]),
        ]
        inputs = [slot("w"), DevicePort("x", f32, (SIZE,), narrowed=kind)]
        return running(driver, inputs, [slot("y"), slot("z")], works)

    return make


@pytest.fixture(params=DOWNCAST, ids=str)
def _halved(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which this mode is the fastest."""

    def timed(runs: Mapping[TransferMode, Callable[[], None]]) -> dict[TransferMode, float]:
        assert set(runs) == {*FULL_WIDTH, *DOWNCAST}
        time_all(runs)
        return {mode: 1.0 if mode == request.param else 2.0 for mode in runs}

    monkeypatch.setattr(host_io_graphs, "time_all", timed)


def replayed(kind: DType, builds: bool = True) -> tuple[Replay, FakeDriver]:
    driver = FakeDriver()
    graphs = FakeGraphs(driver, builds=builds)
    measured = MeasuredTransferModes(TuningCache(None), "here")
    return Replay(model(kind)(driver), graphs, measured=measured), driver


ODD = np.array([65519.996, 65520, -1e-40, -0.0, 2.0**-25, 1.5 * 2.0**-24, np.inf, np.nan], "f4")


def feeds(seed: int = 0) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    x = r.permutation(ODD) if seed % 2 else r.standard_normal(SIZE).astype(np.float32)
    return {"w": r.standard_normal(SIZE).astype(np.float32), "x": x}


def check(found: list[np.ndarray], given: Mapping[str, Any], kind: DType) -> None:
    y, z = found
    np.testing.assert_array_equal(y, np.asarray(given["w"], np.float32) * 2)
    right = rounded(given["x"], kind)
    np.testing.assert_array_equal(z, right)
    np.testing.assert_array_equal(np.signbit(z[z == 0]), np.signbit(right[z == 0]))


@pytest.mark.parametrize("builds", [True, False], ids=["built", "recorded"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.usefixtures("_halved")
def test_rounded_inputs_give_the_same_bits(kind: DType, builds: bool) -> None:
    replay, driver = replayed(kind, builds)
    for seed in range(6):
        driver.ran.clear()
        check(replay.run(feeds(seed)), feeds(seed), kind)
    assert driver.ran.count(f"take_{kind}") == 1, "they have come another way"
    assert replay.stats["captures"] == 1
    assert replay.stats["replays"] == 6


@pytest.mark.parametrize("given", ["strided", "list", "doubles", "made when asked"])
@pytest.mark.usefixtures("_halved")
def test_what_does_not_fit_is_made_to(given: str) -> None:
    """Doubles become floats first, as ever: rounded twice, they are not what one step makes."""
    replay, driver = replayed(bf16)
    change: dict[str, Callable[[np.ndarray], Any]] = {
        "strided": lambda x: np.repeat(x, 2)[::2],
        "list": lambda x: x.tolist(),
        "doubles": lambda x: x.astype(np.float64) * (1 + 2.0**-40),
        "made when asked": lambda x: x,
    }
    halfway = np.float32(1 + 2.0**-8)  # a little more than that as a double, and not as a float
    for seed in range(4):
        data = feeds(seed)
        data["x"][0] = halfway
        changed = {name: change[given](x) for name, x in data.items()}
        found = replay.run(Made(changed) if given == "made when asked" else changed)
        check(found, changed, bf16)
        assert found[1][0] == 1
    assert f"take_{bf16}" in driver.ran


@pytest.mark.usefixtures("_halved")
def test_a_wrong_shape_is_refused() -> None:
    replay, _ = replayed(bf16)
    replay.run(feeds())
    with pytest.raises(FeedError, match="input x has the wrong shape"):
        replay.run(feeds() | {"x": np.zeros(SIZE + 1, np.float32)})
    check(replay.run(feeds(2)), feeds(2), bf16)


@pytest.mark.usefixtures("_halved")
def test_arrays_are_the_callers_again_at_once() -> None:
    replay, driver = replayed(bf16)
    replay.run(feeds())
    driver.lazy = True
    runs = []
    for seed in range(8):
        given = feeds(seed)
        runs.append(replay.run_async(given))
        for x in given.values():
            x[:] = 7
    for seed, pending in enumerate(runs):
        check(pending.result(), feeds(seed), bf16)


def layout(*slots: DevicePort) -> GpuLayout:
    return GpuLayout(slots, (slot("y"),), (), 0, 0, (), ())


def named(name: str, narrowed: DType | None = None, size: int = SIZE) -> DevicePort:
    return DevicePort(name, f32, (size,), narrowed=narrowed)


def test_what_is_rounded_comes_first() -> None:
    found = StagingLayout(layout(named("a"), named("b", bf16), named("c"), named("d", bf16)))
    assert found.narrowed == bf16
    assert list(found.inputs) == ["b", "d", "a", "c"]
    assert found.narrow_to == found.inputs["a"][1] == 64
    assert list(StagingLayout(layout(named("a"), named("b"))).inputs) == ["a", "b"]


def test_the_type_of_most_is_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = (named("a", f16), named("b", bf16, 64), named("c", f16))
    monkeypatch.setattr(overlapped_upload, "host_features", lambda: narrowing_host(True))
    assert StagingLayout(layout(*slots)).narrowed == bf16
    assert StagingLayout(layout(*slots[::2])).narrowed == f16
    monkeypatch.setattr(overlapped_upload, "host_features", lambda: narrowing_host(False))
    assert StagingLayout(layout(*slots)).narrowed == bf16
    found = StagingLayout(layout(*slots[::2]))
    assert (found.narrowed, found.narrow_to) == (None, 0)


def narrowing_host(converts: bool) -> Any:
    from monograph.codegen.llvm.module.features import TABLE

    return TABLE["avx2" if converts else "sse2"]


def test_what_is_donated_is_not_rounded() -> None:
    outputs = (slot("y", over="x"),)
    found = StagingLayout(GpuLayout((named("x", bf16), named("w")), outputs, (), 0, 0, (), ()))
    assert (found.narrowed, found.narrow_to) == (None, 0)


def test_it_is_tried_only_where_something_is_rounded() -> None:
    halves, none = StagingLayout(layout(named("x", bf16))), StagingLayout(layout(named("x")))
    assert candidate_modes(halves, True) == (*FULL_WIDTH, *DOWNCAST)
    assert candidate_modes(none, True) == FULL_WIDTH
    assert not set(DOWNCAST) & set(candidate_modes(halves, False))


def test_ways_are_known_by_their_names() -> None:
    assert len({str(mode) for mode in ALL_MODES}) == len(ALL_MODES)
    assert [str(mode) for mode in DOWNCAST] == ["narrowed in, direct out", "narrowed in, copy out"]
    for mode in ALL_MODES:
        cache = MeasuredTransferModes(TuningCache(None), "here")
        cache.keep(layout(named("x", bf16)), {mode: 1.0, PLAIN: 2.0})
        assert cache.find(layout(named("x", bf16))) == mode
        assert cache.find(layout(named("x"))) is None, "it was measured on another program"


@pytest.mark.parametrize("writes", [True, False])
def test_where_it_is_not_possible_the_nearest_is_taken(writes: bool) -> None:
    mode = TransferMode(writes=writes, overlapped=True, narrowed=True)
    assert nearest(mode, ALL_MODES) == mode
    assert nearest(mode, FULL_WIDTH) == TransferMode(writes=writes, overlapped=True)
    assert nearest(mode, [w for w in FULL_WIDTH if w not in OVERLAPPED]) == TransferMode(
        writes=writes
    )


@gpu_models.INTERPRETED
@pytest.mark.parametrize(("precision", "kind"), [("f32", None), ("f16", f16), ("bf16", bf16)])
def test_programs_say_what_they_round(precision: str, kind: DType | None, tmp_path: Path) -> None:
    session = monograph.load(
        gpu_models.linear(), target="gpu:interpreter", precision=precision, cache_dir=""
    )
    found = session.executable({"x": np.ones((2, 33), np.float32)}).executable.layout
    assert [s.narrowed for s in found.inputs] == [kind]
    assert layout_from_json(layout_to_json(found)) == found


def test_layouts_that_do_not_say_are_refused() -> None:
    kept = layout_to_json(layout(named("x", f16), DevicePort("w", dtype("i8"), (3,))))
    assert layout_from_json(kept) == layout(named("x", f16), DevicePort("w", dtype("i8"), (3,)))
    del kept["outputs"][0]["narrowed"]
    with pytest.raises(ValueError, match="a port is of another format"):
        layout_from_json(kept)
