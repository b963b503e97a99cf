"""The names of ONNX Runtime's modules: each is there, or is refused with a reason."""

from __future__ import annotations

import importlib
import logging
import pathlib
import subprocess
import sys
import types
from typing import Any

import numpy as np
import onnx
import pytest

import monograph
import monograph.onnxruntime as ours
from monograph.onnxruntime.options import log_once, set_global_thread_pool_sizes
from monograph.onnxruntime.refused import REASONS
from tests.onnxruntime import small_models as models
from tests.onnxruntime.small_models import X

OF_PLUGINS = {
    "add_provider_for_devices", "clear_ep_context_data_read_func", "set_ep_context_data_read_func",
    "set_provider_selection_policy", "set_provider_selection_policy_delegate",
    "get_input_epdevices", "get_provider_graph_assignment_info",
}  # fmt: skip
"""Members that take or return parts of providers that are loaded from libraries."""
NATIVE = {"run_with_ortvaluevector", "set_load_cancellation_flag", "create_v2", "as_sparse_tensor"}
"""Members that need objects of ONNX Runtime's native module."""


def public(given: Any) -> set[str]:
    """Return the names of a module or a class, without modules that it imports."""
    found = {n for n in dir(given) if not n.startswith("_")}
    return {n for n in found if not isinstance(getattr(given, n), types.ModuleType)}


def test_every_name_of_the_module_is_there_or_refused() -> None:
    theirs = pytest.importorskip("onnxruntime")
    missing = public(theirs) - public(ours)
    local = {"import_capi_exception", "version"}  # variables of its import
    assert missing - local == set(REASONS) & public(theirs)
    for name in missing & set(REASONS):
        with pytest.raises(AttributeError, match=name) as raised:
            getattr(ours, name)
        assert str(raised.value).endswith(REASONS[name])


CLASSES = [
    "InferenceSession", "IOBinding", "OrtValue", "OrtDevice", "SessionOptions", "RunOptions",
    "ModelMetadata", "NodeArg", "OrtMemoryInfo", "OrtArenaCfg", "OrtMemType", "OrtAllocatorType",
    "GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder", "OrtDeviceVendorId",
]  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_every_member_of_a_class_is_there(name: str) -> None:
    theirs, mine = getattr(pytest.importorskip("onnxruntime"), name), getattr(ours, name)
    there = public(mine) | set(getattr(mine, "__annotations__", ()))
    there |= {n for base in mine.__mro__ for n in vars(base)}
    there |= set(getattr(mine, "__members__", ()))
    assert public(theirs) - there - OF_PLUGINS - NATIVE == set()


@pytest.mark.parametrize("name", ["OrtMemType", "OrtAllocatorType", "OrtMemoryInfoDeviceType"])
def test_numbers_of_enumerations(name: str) -> None:
    theirs = getattr(pytest.importorskip("onnxruntime"), name)
    mine = getattr(ours, name)
    assert {n: int(m) for n, m in mine.__members__.items()} == {
        n: m.value for n, m in theirs.__members__.items()
    }


def test_every_exception_is_there(state: Any) -> None:
    mine = importlib.import_module("monograph.onnxruntime.capi.onnxruntime_pybind11_state")
    named = {n for n, k in vars(state).items() if isinstance(k, type) and issubclass(k, Exception)}
    assert len(named) >= 15
    assert all(issubclass(getattr(mine, name), Exception) for name in named)


def test_functions_of_the_native_module(ort: Any, state: Any) -> None:
    assert state.get_version_string() == ort.__version__
    assert state.get_available_providers() == ort.get_available_providers()
    assert state.get_build_info() == ort.get_build_info()
    assert state.get_default_session_options().intra_op_num_threads == 0
    assert (state.has_collective_ops(), ort.package_name) == (False, "onnxruntime")


def test_modules_that_programs_import(ort: Any) -> None:
    validation = importlib.import_module(f"{ort.__name__}.capi.onnxruntime_validation")
    assert validation.get_package_name_and_version_info()[:2] == ("onnxruntime", ort.__version__)
    assert not validation.check_training_module()[0]
    assert validation.check_distro_info() is None
    build = importlib.import_module(f"{ort.__name__}.capi.build_and_package_info")
    assert (build.package_name, build.__version__) == ("onnxruntime", ort.__version__)


INNER = (
    "capi.onnxruntime_pybind11_state.InvalidArgument",
    "capi._pybind_state.Fail",
    "capi.onnxruntime_inference_collection.OrtValue",
    "onnxruntime_validation.check_distro_info",
)


@pytest.mark.parametrize("module", ["monograph.onnxruntime", "onnxruntime"])
def test_inner_modules_are_there_without_an_import(module: str, tmp_path: pathlib.Path) -> None:
    """`except ort.capi.onnxruntime_pybind11_state.Fail` is how programs name an exception."""
    pytest.importorskip(module)
    wanted = ", ".join(f"ort.{name}.__name__" for name in INNER)
    code = f"import {module} as ort; print({wanted})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [name.split(".")[-1] for name in INNER], done.stderr


def test_allocators_are_registered(ort: Any) -> None:
    info = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    assert (info.name, info.device_id, info.mem_type) == ("Cpu", 0, ort.OrtMemType.DEFAULT)
    assert info.allocator_type == ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    assert ort.create_and_register_allocator(info, None) is None


def test_settings_of_an_arena(ort: Any) -> None:
    arena = ort.OrtArenaCfg(8, 0, 4, 2)
    assert (arena.max_mem, arena.initial_chunk_size_bytes) == (8, 4)
    assert (arena.max_dead_bytes_per_chunk, arena.max_power_of_two_extend_bytes) == (2, -1)
    assert ort.OrtArenaCfg({"max_mem": 16, "arena_extend_strategy": 0}).max_mem == 16
    with pytest.raises(RuntimeError, match="Invalid OrtArenaCfg"):
        ort.OrtArenaCfg({"junk": 1})
    with pytest.raises(TypeError):
        ort.OrtArenaCfg(1)


def test_memory_of_inputs_and_outputs(ort: Any) -> None:
    session = ort.InferenceSession(models.two_inputs())
    assert [info.name for info in session.get_input_memory_infos()] == ["Cpu", "Cpu"]
    assert [info.device_id for info in session.get_output_memory_infos()] == [0, 0]


def test_results_of_a_tuner(ort: Any) -> None:
    session = ort.InferenceSession(models.square())
    assert session.get_tuning_results() == []
    assert session.set_tuning_results([], error_on_invalid=True) is None
    session.release_captured_graph()


def test_a_value_is_allocated_by_a_session(ort: Any) -> None:
    session = ort.InferenceSession(models.square())
    value = session.create_ortvalue_from_shape_and_type([2, 3], np.float32, "cpu")
    assert (value.shape(), value.data_type()) == ([2, 3], "tensor(float)")


def test_native_objects_behind_values_and_bindings(ort: Any) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X.copy())
    assert value._ortvalue.shape() == [3, 2]
    binding = ort.InferenceSession(models.square()).io_binding()
    binding._iobinding.bind_ortvalue_input("X", value._ortvalue)


def test_values_are_copied() -> None:
    source = ours.OrtValue.ortvalue_from_numpy(X.copy())
    target = ours.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32)
    ours.copy_tensors([source], [target])
    assert target.numpy().tolist() == X.tolist()


def test_threads_that_sessions_share() -> None:
    """Not on ONNX Runtime: there all later sessions of the process would have to share them."""
    options = ours.SessionOptions()
    set_global_thread_pool_sizes(1, 1)
    try:
        assert ours.InferenceSession(models.square(), options).monograph_session.config.threads == 0
        options.use_per_session_threads = False
        assert ours.InferenceSession(models.square(), options).monograph_session.threads == 1
    finally:
        set_global_thread_pool_sizes()


def test_dynamic_options_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    session = ours.InferenceSession(models.square())
    with caplog.at_level(logging.INFO, "monograph"):
        for _ in range(2):
            session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
    found = [r.getMessage() for r in caplog.records if "no effect" in r.getMessage()]
    assert found == ["the dynamic option ep.dynamic.workload_type has no effect"]


def test_the_model_is_written(ort: Any, tmp_path: pathlib.Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(models.square(), options)
    again = ort.InferenceSession(tmp_path / "optimised.onnx")
    assert again.run(None, {"X": X})[0].tolist() == (X * X).tolist()


def test_the_model_is_written_with_its_external_data(tmp_path: pathlib.Path) -> None:
    model = onnx.load_from_string(models.with_default())
    del model.graph.input[1]
    (tmp_path / "apart").mkdir()
    onnx.save(
        model, tmp_path / "apart" / "m.onnx",
        save_as_external_data=True, location="m.data", size_threshold=0,
    )  # fmt: skip
    options = ours.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "whole.onnx")
    ours.InferenceSession(tmp_path / "apart" / "m.onnx", options)
    found = ours.InferenceSession(tmp_path / "whole.onnx")
    assert found.run(None, {"X": np.ones(2, np.float32)})[0].tolist() == [2, 3]


def test_a_package_holds_no_model_to_write(tmp_path: pathlib.Path) -> None:
    session = monograph.load(models.square())
    session.run({"X": X})
    session.save(tmp_path / "square.mono")
    options = ours.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "square.onnx")
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.NotImplemented, match="no model"):
        ours.InferenceSession(tmp_path / "square.mono", options)
