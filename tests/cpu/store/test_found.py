"""Compiled models on disk, found by the digest of the model file: hits and misses."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.runtime.cache import object_cache as cache_module
from monograph.runtime.cache import store as store_module
from monograph.runtime.cpu.executable import CpuExecutable
from monograph.runtime.cpu.native import NativeCode
from tests.cpu.store.kept import WEIGHTS, check, fed, found, made, no_import, write

ROOT = Path(__file__).parent.parent.parent.parent


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


def test_what_was_compiled_is_what_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storing an executable does not load it again; only its constants come from the file."""
    loads: list[NativeCode] = []
    make = NativeCode.__init__

    def count(self: NativeCode, *given: Any) -> None:
        loads.append(self)
        make(self, *given)

    check(monograph.load(path, cache_dir=""))  # The thread pool loads native code of its own.
    monkeypatch.setattr(NativeCode, "__init__", count)
    first = monograph.load(path)
    expected = check(first)
    assert found(first) == 0
    assert len(loads) == 1
    executable = first.executable(fed())
    assert isinstance(executable, CpuExecutable)
    assert isinstance(executable.artefact().constants.base, memoryview), "mapped from the file"
    second = monograph.load(path)
    assert check(second).tobytes() == expected.tobytes()
    assert found(second) == 1
    assert len(loads) == 2


def test_the_program_of_a_stored_executable_is_made_again(path: Path) -> None:
    executables = [monograph.load(path).executable(fed()) for _ in range(2)]
    for executable in executables:
        assert [s.nodes for s in executable.program.steps] == [["product"], ["soft"]]
        assert len(executable.module.segments) == 1
        assert executable.programs == [executable.program]
    compiled, loaded = (e.artefact() for e in executables)
    assert {k: bytes(v) for k, v in compiled.members().items()} == {
        k: bytes(v) for k, v in loaded.members().items()
    }


def test_a_stored_executable_holds_no_program(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[weakref.ref[Any]] = []
    adopt = CpuExecutable.adopt

    def watch(self: CpuExecutable, *given: Any) -> None:
        dropped.extend(map(weakref.ref, (self.program, self.module)))
        adopt(self, *given)

    monkeypatch.setattr(CpuExecutable, "adopt", watch)
    session = monograph.load(path)
    check(session)
    gc.collect()
    assert [x() for x in dropped] == [None, None]
    assert session.stats["host_steps"] == []
    assert len(dropped) == 2, "nothing but the program itself makes it again"


def test_a_fresh_process_imports_no_frontend_and_no_compiler(path: Path) -> None:
    check(monograph.load(path))
    script = f"""
import sys, numpy, monograph
session = monograph.load({str(path)!r})
session.run({{"x": numpy.ones((3, 8), "f4")}})
assert session.stats["from_disk"] == 1
heavy = ["onnx", "rich", "typer", "monograph.ops", "monograph.pipeline", "monograph.program"]
heavy += ["monograph.frontend.onnx", "monograph.codegen.llvm.module.select"]
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
    [{"threads": 3}, {"cpu_isa": "baseline"}, {"winograd": False}, {"dims": {"N": 3}}],
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
        monkeypatch.setattr(store_module, "_onnx_version", lambda: "another")
    session = monograph.load(path)
    check(session)
    assert found(session) == 0


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
    assert "not stored on disk, because of host steps (string_concat" in caplog.text


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
