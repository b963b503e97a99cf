"""Code for any shape on disk and in packages: a second process runs every shape without a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.errors import ConfigError, FeedError
from monograph.runtime.cache import object_cache as cache_module
from tests.cpu.store.kept import entries, fed, no_import, softmax, write
from tests.cpu.store.test_damaged import damages
from tests.test_session import model_of

WIDE = np.random.default_rng(1).standard_normal((8, 4096)).astype(np.float32) / 8
ROWS = (3, 7, 40, 5)


def made() -> onnx.ModelProto:
    return model_of(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Softmax", ["a"], ["y"], axis=-1),
        ],
        [("x", TensorProto.FLOAT, ["N", 8])],
        [("y", TensorProto.FLOAT, ["N", 4096])],
        [numpy_helper.from_array(WIDE, "w")],
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "wide.onnx", made())


def load(path: Path) -> monograph.Session:
    return monograph.load(path, specialise="off", threads=2)


def check(session: monograph.Session, rows: int) -> np.ndarray:
    (given,) = session.run(fed(rows))
    np.testing.assert_allclose(given, softmax(fed(rows)["x"], WIDE), rtol=1e-4)
    return given


def test_a_second_session_runs_every_shape_without_the_model(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(path)
    expected = {rows: check(first, rows) for rows in ROWS}
    assert first.stats["variants"] == 1
    assert first.stats["from_disk"] == 0
    guards = first.stats["guards"]
    files = entries(cache)
    del first
    no_import(monkeypatch)
    second = load(path)
    for rows in ROWS:
        np.testing.assert_array_equal(check(second, rows), expected[rows])
    check(second, 23)
    assert second.stats["variants"] == 1
    assert second.stats["guards"] == guards
    assert second.stats["from_disk"] == 1
    assert entries(cache) == files


def test_a_fresh_process_imports_no_frontend_and_no_compiler(path: Path) -> None:
    check(load(path), 3)
    script = f"""
import sys, numpy, monograph
session = monograph.load({str(path)!r}, specialise="off", threads=2)
for rows in (9, 4, 77):
    session.run({{"x": numpy.ones((rows, 8), "f4")}})
assert session.stats["from_disk"] == 1
heavy = ["onnx", "rich", "typer", "monograph.ops", "monograph.pipeline", "monograph.program"]
heavy += ["monograph.frontend.onnx", "monograph.codegen.llvm.module.select"]
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_shape_outside_of_the_guards_adds_a_variant(path: Path) -> None:
    first = load(path)
    check(first, 1)
    check(first, 3)
    assert first.stats["variants"] == 2
    assert first.stats["variant_reasons"] == ["", "dimension 0 of x is 3: must be 1"]
    second = load(path)
    check(second, 3)
    check(second, 1)
    assert (second.stats["variants"], second.stats["from_disk"]) == (2, 2)
    third = load(path)
    check(third, 1)
    assert (third.stats["variants"], third.stats["from_disk"]) == (1, 1)
    check(third, 0)
    assert load(path).run(fed(0))[0].shape == (0, 4096)


def test_shapes_share_weights_and_the_memory_of_runs(path: Path) -> None:
    session = load(path)
    executables = [session.executable(fed(rows)) for rows in ROWS]
    for rows in ROWS:
        check(session, rows)
    places = {w.ctypes.data for e in executables for w in e._weights.values()}
    assert len(places) == 1
    assert len({id(e._free) for e in executables}) == 1
    (workspace,) = executables[0]._free
    assert workspace.arena.size >= max(e.arena_bytes for e in executables)
    assert session.stats["constant_bytes"] < 1.2 * WIDE.nbytes


def test_memory_of_a_larger_run_does_not_change_a_smaller_one(path: Path) -> None:
    session = load(path)
    expected = check(session, 3)
    check(session, 40)
    for workspace in session.executable(fed(3))._free:
        workspace.arena[:] = 0xFF  # not a number
    np.testing.assert_array_equal(check(session, 3), expected)


def test_every_damage_is_found_and_mended(path: Path, cache: Path) -> None:
    check(load(path), 3)
    whole = {p: p.read_bytes() for p in entries(cache)}
    (variant,) = [p for p in whole if b'"sizes"' in whole[p].split(b"\n", 2)[1]]
    for damaged in damages(whole[variant]):
        variant.write_bytes(damaged)
        check(load(path), 3)
        assert len(variant.read_bytes()) > 1000, "it was made again"


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "no json",
        '{"symbols": [["N", 3, 2]], "factors": [["//", [[1, 0]], []]], "guards": [], "table": []}',
        '{"symbols": [["N", 3, 2]], "factors": [["eval", []]], "guards": [], "table": []}',
        '{"symbols": [["N", "3", 2]], "factors": [], "guards": [], "table": []}',
        '{"symbols": [["N", 3, 2]], "factors": [], "guards": [], "table": [[[1, 5]]]}',
        '{"symbols": [["N", 3, 2]], "factors": [], "guards": [], "table": [[[1, -1]]]}',
        "[" * 100_000,
    ],
)
def test_sizes_of_another_meaning_are_mended(path: Path, cache: Path, text: str) -> None:
    check(load(path), 3)
    disk = cache_module.DiskCache(cache, 1 << 24)
    for place in entries(cache):
        parts = {k: bytes(v) for k, v in (disk.get(place.name) or {}).items()}
        if "sizes" in parts:
            disk.put(place.name, parts | {"sizes": text.encode()})
    session = load(path)
    check(session, 3)
    assert session.stats["from_disk"] == 0
    again = load(path)
    check(again, 5)
    assert again.stats["from_disk"] == 1


def test_the_reason_for_exact_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(
        [
            helper.make_node("RandomUniformLike", ["x"], ["r"], low=2.0, high=3.0),
            helper.make_node("Less", ["x", "r"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["N"])],
        [("y", TensorProto.BOOL, None)],
    )
    path = write(tmp_path / "random.onnx", model)
    feeds = {"x": np.array([0, 5, 1], np.float32)}
    reasons = []
    for _ in range(2):
        session = monograph.load(path, specialise="off")
        assert session.run(feeds)[0].tolist() == [True, False, True]
        reasons.append(session.stats["exact_reason"])
        monkeypatch.setattr(
            "monograph.runtime.dynamic.staged.compile_open",
            lambda *_, **__: pytest.fail("it is known that this is in vain"),
        )
    assert reasons[0] == reasons[1] != ""


def test_a_package_serves_every_shape(path: Path, tmp_path: Path) -> None:
    session = load(path)
    expected = {rows: check(session, rows) for rows in (*ROWS, 1)}
    session.save(tmp_path / "m.mono")
    assert (tmp_path / "m.mono").stat().st_size < 1.6 * WIDE.nbytes
    del session
    for options in ({}, {"dims": {"N": 3}}, {"specialise": "off"}):
        package = monograph.load(tmp_path / "m.mono", **options)
        np.testing.assert_array_equal(check(package, 3), expected[3])
    for rows in (*ROWS, 1, 100, 11):
        given = check(package, rows)
        np.testing.assert_array_equal(given, expected.get(rows, given))
    assert package.stats["variants"] == 1
    with pytest.raises(ConfigError, match="no code for inputs of these shapes") as e:
        package.run(fed(0))
    assert "any shape, but N is 0: must be at least 1" in str(e.value)
    with pytest.raises(FeedError):
        package.run({"x": np.zeros((3, 9), np.float32)})
    with pytest.raises(ConfigError, match="another value of dims"):
        monograph.load(tmp_path / "m.mono", dims={"M": 3})
    package.save(tmp_path / "again.mono")
    assert (tmp_path / "again.mono").read_bytes() == (tmp_path / "m.mono").read_bytes()


def test_a_package_may_hold_exact_code_too(path: Path, tmp_path: Path) -> None:
    session = load(path)
    check(session, 3)
    exact = monograph.load(path, threads=2)
    expected = check(exact, 5)
    exact._bindings.variants = session._bindings.variants
    exact.save(tmp_path / "m.mono")
    package = monograph.load(tmp_path / "m.mono")
    np.testing.assert_array_equal(check(package, 5), expected)
    check(package, 6)
    assert package.packaged_sizes == [{"N": 5}]


PROCESS = """
import sys, time, json, numpy, monograph
stages = []
while time.time() < float(sys.argv[2]):
    time.sleep(0.001)
session = monograph.load(sys.argv[1], specialise="off", threads=2,
                         progress=lambda stage, *_: stages.append(stage))
session.run({"x": numpy.ones((int(sys.argv[3]), 8), "f4")})
print(json.dumps([session.stats["from_disk"], "compile" in stages]))
"""


def test_processes_that_start_together_compile_once(path: Path) -> None:
    import time

    start = str(time.time() + 2.0)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(path), start, str(rows)],
            stdout=subprocess.PIPE,
            env=os.environ,
        )
        for rows in (3, 8, 20)
    ]
    told = sorted(json.loads(p.communicate(timeout=120)[0]) for p in running)
    assert told == [[0, True], [1, False], [1, False]]
