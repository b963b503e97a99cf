"""Monograph in the place of onnxruntime, and what only the drop-in has."""

from __future__ import annotations

import logging
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import monograph
import monograph.onnxruntime as ort
from monograph.errors import ConfigError, FeedError, ModelError, MonographError
from monograph.onnxruntime.capi import onnxruntime_pybind11_state as state
from monograph.onnxruntime.options import log_once
from tests.onnxruntime import small_models as models
from tests.onnxruntime.small_models import X

PROGRAM = """
import importlib.metadata
import importlib.util
import sys

import numpy
import onnxruntime as ort
from onnxruntime import InferenceSession
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidProtobuf

assert importlib.util.find_spec("onnxruntime") is not None
assert importlib.metadata.version("onnxruntime") == ort.__version__
session = InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
x = numpy.full((3, 2), 3, numpy.float32)
print(ort.get_build_info().split()[3], session.run(None, {"X": x})[0].sum(), sys.argv[2:])
print(C.InvalidProtobuf is InvalidProtobuf, ort.capi.onnxruntime_pybind11_state.Fail.__name__)
try:
    import onnxruntime.quantization
except ModuleNotFoundError as e:
    print(e.name)
"""
SAID = "Monograph 54.0 ['a', '-b']\nTrue Fail\nonnxruntime.quantization\n"


def python(*arguments: str, cwd: pathlib.Path) -> Any:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "square.onnx").write_bytes(models.square())
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize("form", [["program.py"], ["-m", "program"], ["-c", PROGRAM]])
def test_an_unmodified_program_runs(folder: pathlib.Path, form: list[str]) -> None:
    done = python("-m", "monograph.onnxruntime", *form, "square.onnx", "a", "-b", cwd=folder)
    assert (done.stdout, done.returncode) == (SAID, 0), done.stderr


def test_a_program_is_needed(tmp_path: pathlib.Path) -> None:
    done = python("-m", "monograph.onnxruntime", cwd=tmp_path)
    assert (done.returncode, done.stdout[:6]) == (2, "usage:")


def test_import_is_light(tmp_path: pathlib.Path) -> None:
    """It imports neither onnxruntime nor what compiles models."""
    code = "import sys, monograph.onnxruntime; print(*sys.modules)"
    loaded = python("-c", code, cwd=tmp_path).stdout.split()
    assert "monograph.onnxruntime" in loaded
    heavy = {"onnxruntime", "onnx", "llvmlite", "torch", "monograph.session", "monograph.ir"}
    assert not heavy & set(loaded)


def test_replacement_comes_first(tmp_path: pathlib.Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("")
    code = (
        "import onnxruntime, monograph.onnxruntime as ort\n"
        "from monograph.errors import ConfigError\n"
        "try: ort.replace_onnxruntime()\nexcept ConfigError as e: print(e.message)"
    )
    assert python("-c", code, cwd=tmp_path).stdout == "onnxruntime is imported already\n"


def test_errors_are_errors_of_monograph() -> None:
    session = ort.InferenceSession(models.square())
    with pytest.raises(FeedError) as raised:
        session.run(None, {"X": X[0]})
    assert isinstance(raised.value, state.InvalidArgument)
    with pytest.raises(ModelError):
        ort.InferenceSession(b"garbage")
    classes = [k for k in vars(state).values() if isinstance(k, type) and issubclass(k, Exception)]
    assert len(classes) == 15
    assert all(issubclass(k, MonographError) for k in classes)


def test_threads_are_those_of_a_session() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    assert ort.InferenceSession(models.square(), options).monograph_session.threads == 1


def test_options_of_monograph_as_config_entries(tmp_path: pathlib.Path) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("monograph.target", "reference")
    options.add_session_config_entry("monograph.max_cached_shapes", "3")
    config = ort.InferenceSession(models.square(), options).monograph_session.config
    assert (config.target, config.max_cached_shapes) == ("reference", 3)


def test_unknown_options_of_monograph() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("monograph.treads", "3")
    with pytest.raises(state.Fail, match="did you mean threads"):
        ort.InferenceSession(models.square(), options)


def test_arguments_without_effect_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, "monograph"):
        for _ in range(2):
            ort.InferenceSession(models.square(), disabled_optimizers=["ConstantFolding"])
    found = [r.getMessage() for r in caplog.records if "no effect" in r.getMessage()]
    assert found == ["the argument disabled_optimizers of InferenceSession has no effect"]


def test_providers_of_the_options_are_for_sessions_without_any() -> None:
    options = ort.SessionOptions()
    options.add_provider("DmlExecutionProvider", {})
    with pytest.warns(UserWarning, match="'DmlExecutionProvider' is not in available"):
        ort.InferenceSession(models.square(), options)
    with pytest.warns(UserWarning, match="replaces those of the SessionOptions") as found:
        ort.InferenceSession(models.square(), options, ["CPUExecutionProvider"])
    assert len(found) == 1


def test_options_without_effect_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    options = ort.SessionOptions()
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    with caplog.at_level(logging.INFO, "monograph"):
        for _ in range(2):
            ort.InferenceSession(models.square(), options)
    found = [r.getMessage() for r in caplog.records if "no effect" in r.getMessage()]
    assert found == [
        "the session option enable_mem_pattern has no effect",
        "the session config entry session.disable_prepacking has no effect",
    ]


@pytest.mark.parametrize("call", ["add_initializer", "add_external_initializers"])
def test_initialisers_from_elsewhere_are_refused(call: str) -> None:
    given = ("W", None) if call == "add_initializer" else (["W"], [None])
    with pytest.raises(state.NotImplemented, match="reads initialisers from the model file"):
        getattr(ort.SessionOptions(), call)(*given)


def test_packages_run(tmp_path: pathlib.Path) -> None:
    session = monograph.load(models.square())
    session.run({"X": X})
    session.save(tmp_path / "square.mono")
    packaged = ort.InferenceSession(tmp_path / "square.mono")
    assert packaged.run(None, {"X": X})[0].tolist() == (X * X).tolist()
    assert packaged.get_modelmeta().custom_metadata_map == {"labels": "cat,dog", "stride": "32"}


def test_metadata_of_our_own_session(tmp_path: pathlib.Path) -> None:
    for _ in range(2):  # the second session finds it in the cache on disk
        found = monograph.load(models.square()).metadata
        assert found.properties == {"labels": "cat,dog", "stride": "32"}
        assert (found.producer, found.graph_name, found.version) == ("producer", "small", 7)


def test_metadata_that_is_not_utf8() -> None:
    raw = models.square().replace(b"cat,dog", b"cat\xff\xfedo")
    assert "labels" in monograph.load(raw).metadata.properties


def test_update_by_another_type_is_refused() -> None:
    """ONNX Runtime copies the bytes as they are."""
    value = ort.OrtValue.ortvalue_from_numpy(X.copy())
    with pytest.raises(RuntimeError, match="holds tensor"):
        value.update_inplace(X.astype(np.float64))


def test_any_byte_order() -> None:
    session = ort.InferenceSession(models.square())
    assert session.run(None, {"X": X.astype(">f4")})[0][0].tolist() == [1, 4]


def test_config_errors_keep_their_class() -> None:
    with pytest.raises(ConfigError):
        monograph.load(models.square(), threads=-1)
