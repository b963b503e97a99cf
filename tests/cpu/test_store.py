"""Compiled models on disk, found by the digest of the model file: hits, misses, damage, others."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.errors import ModelError
from monograph.runtime import cache as cache_module
from monograph.runtime import store as store_module

ROOT = Path(__file__).parent.parent.parent
WEIGHTS = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "cache"
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", str(place))
    return place


def made(weights: np.ndarray = WEIGHTS, rows: Any = "N") -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Softmax", ["a"], ["y"], "soft", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 16])],
        [numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "model.onnx", made())


def write(path: Path, model: onnx.ModelProto) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def fed(rows: int = 3) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)}


def softmax(x: np.ndarray, weights: np.ndarray = WEIGHTS) -> np.ndarray:
    y = np.exp(np.float64(x) @ weights)
    return y / y.sum(-1, keepdims=True)


def check(session: monograph.Session, rows: int = 3, weights: np.ndarray = WEIGHTS) -> np.ndarray:
    (given,) = session.run(fed(rows))
    np.testing.assert_allclose(given, softmax(fed(rows)["x"], weights), rtol=1e-5)
    return given


def found(session: monograph.Session) -> int:
    return session.stats["from_disk"]


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("entries/*/*"))


def no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the model is read")

    monkeypatch.setattr("monograph.frontend.onnx.read_model", refuse)


def test_a_second_session_reads_no_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = monograph.load(path)
    expected = check(first)
    assert found(first) == 0
    no_import(monkeypatch)
    second = monograph.load(path)
    assert (second.inputs, second.outputs) == (first.inputs, first.outputs)
    np.testing.assert_array_equal(check(second), expected)
    assert found(second) == 1
    same = {"compiled", "launches_per_run", "kernels_per_run", "peak_bytes", "host_steps"}
    assert {k: second.stats[k] for k in same} == {k: first.stats[k] for k in same}


def test_a_fresh_process_imports_no_frontend_and_no_compiler(path: Path) -> None:
    check(monograph.load(path))
    script = f"""
import sys, numpy, monograph
session = monograph.load({str(path)!r})
session.run({{"x": numpy.ones((3, 8), "f4")}})
assert session.stats["from_disk"] == 1
heavy = ["onnx", "rich", "typer", "monograph.ops", "monograph.pipeline", "monograph.program"]
heavy += ["monograph.frontend.onnx", "monograph.codegen.llvm.select"]
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_what_is_asked_of_the_model_is_read_then(path: Path) -> None:
    check(monograph.load(path))
    session = monograph.load(path)
    check(session)
    executable = session.executable(fed())
    assert [s.nodes for s in executable.program.steps] == [["product"], ["soft"]]
    assert len(executable.module.segments) == 1
    assert executable.host_steps == []
    assert session.graph.output_names == ("y",)
    assert session.bound_graph(fed(5)).input_types[0].static == (5, 8)
    assert set(session.tolerances(fed())) == {"y"}


def test_bytes_are_found_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(monograph.load(path.read_bytes()))
    no_import(monkeypatch)
    session = monograph.load(path.read_bytes())
    check(session)
    assert found(session) == 1


def test_a_model_that_is_no_file_is_not_kept(cache: Path) -> None:
    session = monograph.load(made())
    check(session)
    check(monograph.load(made()))
    assert found(monograph.load(made())) == 0


def test_other_shapes_are_compiled_and_found_later(path: Path) -> None:
    check(monograph.load(path), 3)
    second = monograph.load(path)
    check(second, 3)
    check(second, 5)
    assert (found(second), second.stats["compiled"]) == (1, 2)
    third = monograph.load(path)
    check(third, 5)
    check(third, 3)
    assert (found(third), third.stats["compiled"]) == (2, 2)


@pytest.mark.parametrize(
    "options",
    [{"threads": 3}, {"features": "baseline"}, {"winograd": False}, {"dims": {"N": 3}}],
    ids=str,
)
def test_other_options_are_other_code(path: Path, options: dict[str, Any]) -> None:
    check(monograph.load(path))
    other = monograph.load(path, **options)
    check(other)
    assert found(other) == 0
    again = monograph.load(path, **options)
    check(again)
    assert found(again) == 1


def test_another_model_is_another_entry(path: Path) -> None:
    check(monograph.load(path))
    write(path, made(2 * WEIGHTS))
    session = monograph.load(path)
    check(session, weights=2 * WEIGHTS)
    assert found(session) == 0


@pytest.mark.parametrize("part", ["monograph", "llvmlite", "onnx", "numpy"])
def test_another_version_is_a_miss(path: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(monograph.load(path))
    if part == "monograph":
        monkeypatch.setattr(cache_module, "_own_version", lambda: "another")
    elif part == "llvmlite":
        monkeypatch.setattr("llvmlite.__version__", "another")
    elif part == "numpy":
        monkeypatch.setattr("numpy.__version__", "another")
    else:
        monkeypatch.setattr(store_module, "version", lambda name: "another")
    session = monograph.load(path)
    check(session)
    assert found(session) == 0


def test_every_damage_is_found_and_mended(path: Path, cache: Path) -> None:
    check(monograph.load(path))
    whole = {p: p.read_bytes() for p in entries(cache)}
    assert len(whole) >= 2
    sizes = json.loads(max(whole.values(), key=len).split(b"\n", 2)[1])["parts"]
    assert {"layout", "object0", "constants"} <= set(sizes)
    executable = max(whole, key=lambda p: len(whole[p]))
    for place, data in whole.items():
        for damaged in damages(data):
            executable.unlink()  # so that object code is looked for
            place.write_bytes(damaged)
            session = monograph.load(path)
            check(session)
            assert place.read_bytes() == data, "it was made again"


def damages(data: bytes) -> list[bytes]:
    """An entry cut short, and with one bit wrong in its head and in each of its parts."""
    head = data.split(b"\n", 2)
    start = sum(len(x) + 1 for x in head[:2])
    places = [0, 40, start - 10]
    for size in json.loads(head[1])["parts"].values():
        places += [start, start + size // 2, start + max(size - 1, 0)]
        start += -(-size // 64) * 64
    flips = [data[:i] + bytes([data[i] ^ 4]) + data[i + 1 :] for i in places if i < len(data)]
    return [b"", data[: len(data) // 2], data[:-1], data + b"\0", *flips]


@pytest.mark.parametrize("text", ["[]", "{}", '{"signature": 3, "beside": {}}', "no json"])
def test_members_of_another_meaning_are_mended(path: Path, cache: Path, text: str) -> None:
    """Whole, but not what this version writes: for whatever reason."""
    check(monograph.load(path))
    disk = cache_module.DiskCache(cache, 1 << 20)
    for place in entries(cache):
        parts = {k: bytes(v) for k, v in (disk.get(place.name) or {}).items()}
        for name in ("manifest", "layout"):
            if name in parts:
                disk.put(place.name, parts | {name: text.encode()})
    session = monograph.load(path)
    check(session)
    assert found(session) == 0
    check(monograph.load(path))
    assert found(monograph.load(path)) == 0
    again = monograph.load(path)
    check(again)
    assert found(again) == 1


def save_beside(path: Path, weights: np.ndarray) -> Path:
    onnx.save(
        made(weights), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    return path


def test_files_beside_the_model_count(tmp_path: Path) -> None:
    path = save_beside(tmp_path / "model.onnx", WEIGHTS)
    model, data = path.read_bytes(), (tmp_path / "weights.bin").read_bytes()
    check(monograph.load(path))
    session = monograph.load(path)
    check(session)
    assert found(session) == 1
    (tmp_path / "weights.bin").write_bytes((2 * WEIGHTS).tobytes())
    assert path.read_bytes() == model, "only the file beside it differs"
    changed = monograph.load(path)
    check(changed, weights=2 * WEIGHTS)
    assert found(changed) == 0
    (tmp_path / "weights.bin").write_bytes(data)
    back = monograph.load(path)
    check(back)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"'w' cannot be read"):
        monograph.load(path)


def test_a_file_beside_the_model_must_still_be_inside(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = save_beside(home / "model.onnx", WEIGHTS)
    check(monograph.load(path))
    (home / "weights.bin").rename(tmp_path / "weights.bin")
    (home / "weights.bin").symlink_to("../weights.bin")
    with pytest.raises(ModelError, match="outside the model's directory"):
        monograph.load(path)


def test_weights_that_change_while_they_are_read_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_beside(tmp_path / "model.onnx", WEIGHTS)
    look = store_module.CacheStore.look_beside

    def look_and_change(self: Any, locations: Any) -> None:
        look(self, locations)
        (tmp_path / "weights.bin").write_bytes((2 * WEIGHTS).tobytes())

    with monkeypatch.context() as patch:
        patch.setattr(store_module.CacheStore, "look_beside", look_and_change)
        check(monograph.load(path), weights=2 * WEIGHTS)
    save_beside(path, WEIGHTS)
    session = monograph.load(path)
    check(session)
    assert found(session) == 0


def test_weights_that_are_gone_when_code_is_kept(tmp_path: Path) -> None:
    path = save_beside(tmp_path / "model.onnx", WEIGHTS)
    session = monograph.load(path)
    (tmp_path / "weights.bin").unlink()
    check(session)
    assert found(session) == 0


def test_a_model_that_changed_under_a_session(path: Path) -> None:
    check(monograph.load(path))
    session = monograph.load(path)
    check(session)
    write(path, made(2 * WEIGHTS))
    check(session)
    with pytest.raises(ModelError, match="has changed since the session was made"):
        session.graph  # noqa: B018


def test_weights_that_changed_under_a_session(tmp_path: Path) -> None:
    path = save_beside(tmp_path / "model.onnx", WEIGHTS)
    check(monograph.load(path))
    session = monograph.load(path)
    (tmp_path / "weights.bin").write_bytes((2 * WEIGHTS).tobytes())
    with pytest.raises(ModelError, match="external data of the model has changed"):
        check(session, 5)


def test_a_process_that_moves_finds_its_model(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    check(monograph.load(path.name))
    session = monograph.load(path.name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    check(session, 7)
    assert session.graph.output_names == ("y",)


def test_a_cache_that_cannot_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    cache_module._warn_once.cache_clear()
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with caplog.at_level(logging.WARNING, "monograph"):
        for _ in range(2):
            session = monograph.load(path)
            check(session)
            assert found(session) == 0
    assert caplog.text.count("cannot write to the cache") == 1


def test_no_cache_at_all(path: Path, cache: Path) -> None:
    for options in ({"cache_dir": ""}, {"cache_bytes": 0}):
        session = monograph.load(path, **options)
        check(session)
        assert found(session) == 0
    assert entries(cache) == []


def test_a_cache_that_is_too_small(path: Path, cache: Path) -> None:
    for _ in range(2):
        session = monograph.load(path, cache_bytes=1000)
        check(session)
        assert found(session) == 0
    assert sum(p.stat().st_size for p in entries(cache)) <= 1000


def test_the_cache_stays_within_its_bound(path: Path, cache: Path) -> None:
    session = monograph.load(path, cache_bytes=100_000)
    for rows in range(1, 12):
        check(session, rows)
        assert sum(p.stat().st_size for p in entries(cache)) <= 100_000
    assert len(entries(cache)) > 2
    check(monograph.load(path, cache_bytes=100_000), 1)


def test_what_the_host_computes_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [helper.make_node("StringConcat", ["a", "b"], ["y"])]
    ports = [helper.make_tensor_value_info(n, TensorProto.STRING, [2]) for n in "aby"]
    graph = helper.make_graph(nodes, "g", ports[:2], ports[2:])
    opsets = [helper.make_opsetid("", 20)]
    path = write(tmp_path / "s.onnx", helper.make_model(graph, opset_imports=opsets, ir_version=9))
    feeds = {"a": np.array(["p", "q"], object), "b": np.array(["r", "s"], object)}
    with caplog.at_level(logging.INFO, "monograph"):
        for _ in range(2):
            session = monograph.load(path)
            assert session.run(feeds)[0].tolist() == ["pr", "qs"]
            assert found(session) == 0
    assert "not kept on disk: steps on the host (string_concat" in caplog.text


def test_a_signature_of_every_kind_comes_back(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[N, M, 3] x, seq(float[M]) s, optional(int64[2]) o, float m)
        => (float[N, M, 3] y, seq(float[M]) t, float n) <float m = {1}>
    { y = Relu(x)  t = Identity(s)  n = Neg(m) }"""
    model = onnx.parser.parse_model(text)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = 'an "odd" name, [2]'
    path = write(tmp_path / "m.onnx", model)
    first, second = monograph.load(path), monograph.load(path)
    for which in ("inputs", "outputs", "optional_inputs"):
        assert getattr(second, which) == getattr(first, which)
    assert [p.name for p in second.optional_inputs] == ["m"]


def test_optional_inputs_have_code_of_their_own(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[2] x, float[2] d) => (float[2] y) <float[2] d = {10, 20}> { y = Add(x, d) }"""
    path = write(tmp_path / "m.onnx", onnx.parser.parse_model(text))
    x = np.ones(2, np.float32)
    for hits in (0, 2):
        session = monograph.load(path)
        assert session.run({"x": x})[0].tolist() == [11, 21]
        assert session.run({"x": x, "d": x})[0].tolist() == [2, 2]
        assert found(session) == hits


def test_faults_are_told_alike(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[4] x, int64[2] i) => (float[2] y) { [pick] y = Gather(x, i) }"""
    path = write(tmp_path / "m.onnx", onnx.parser.parse_model(text))
    feeds = {"x": np.ones(4, np.float32), "i": np.array([0, 9])}
    messages = []
    for _ in range(2):
        session = monograph.load(path)
        with pytest.raises(monograph.errors.ExecutionError) as e:
            session.run(feeds)
        messages.append(str(e.value))
    assert found(session) == 1
    assert messages[0] == messages[1]
    assert "pick" in messages[0]


def test_donated_state_from_disk(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[4] past, float[4] x) => (float[4] present) { present = Add(past, x) }"""
    path = write(tmp_path / "m.onnx", onnx.parser.parse_model(text))
    for hits in (0, 1):
        session = monograph.load(path, donate={"present": "past"})
        past, x = np.zeros(4, np.float32), np.ones(4, np.float32)
        for turn in range(1, 4):
            fed_past = past
            (past,) = session.run({"past": past, "x": x})
            assert past.tolist() == [turn] * 4
            assert turn > 1 or fed_past.tolist() == [0] * 4
        assert found(session) == hits


def test_a_session_goes_when_nobody_holds_it(path: Path) -> None:
    import gc
    import weakref

    check(monograph.load(path))
    session = monograph.load(path)
    check(session)
    gc.collect()
    gc.disable()
    try:
        watched = weakref.ref(session.executable(fed()))
        del session
        assert watched() is None
    finally:
        gc.enable()


SCRIPT = """
import sys, numpy, monograph
x = numpy.random.default_rng(int(sys.argv[2])).standard_normal((4, 8)).astype("f4")
for turn in range(6):
    session = monograph.load(sys.argv[1])
    expected = monograph.load(sys.argv[1], "reference").run({"x": x[: turn % 4 + 1]})[0]
    given = session.run({"x": x[: turn % 4 + 1]})[0]
    numpy.testing.assert_allclose(given, expected, rtol=1e-5)
print(session.stats["from_disk"])
"""


def test_processes_share_compiled_models(path: Path) -> None:
    environment = os.environ | {"MONOGRAPH_CACHE_BYTES": "60000"}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(path), str(i)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(3)
    ]
    for child in children:
        _, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors
        assert "damaged" not in errors


def test_stages_are_reported(path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    session = monograph.load(path, progress=lambda *given: seen.append(given))
    assert [stage for stage, _, _ in seen] == ["import", "ready"]
    seen.clear()
    check(session)
    stages = list(dict.fromkeys(stage for stage, _, _ in seen))
    assert stages == ["rewrite", "generate", "compile", "load", "ready"]
    assert all(0 <= done <= total for _, done, total in seen)
    for stage in ("rewrite", "compile"):
        done = [d for s, d, t in seen if s == stage]
        assert sorted(done) == list(range(max(done) + 1))
        assert max(done) == next(t for s, _, t in seen if s == stage)
    seen.clear()
    check(monograph.load(path, progress=lambda *given: seen.append(given)))
    assert [stage for stage, _, _ in seen] == ["ready", "load", "ready"]


def test_a_failure_ends_the_report(tmp_path: Path) -> None:
    seen: list[str] = []
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError):
        monograph.load(tmp_path / "m.onnx", progress=lambda stage, *_: seen.append(stage))
    assert seen == ["import", "ready"]
    with pytest.raises(monograph.errors.ConfigError, match="progress is a function"):
        monograph.load(tmp_path / "m.onnx", progress=True)  # type: ignore[arg-type]
