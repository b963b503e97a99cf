"""SessionOptions, RunOptions and providers."""

from __future__ import annotations

import json
import pathlib
import warnings
from typing import Any

import numpy as np
import pytest

from tests.onnxruntime import small_models as models
from tests.onnxruntime.small_models import X

CPU = "CPUExecutionProvider"
DEFAULTS = {
    "enable_cpu_mem_arena": True,
    "enable_mem_pattern": True,
    "enable_mem_reuse": True,
    "enable_profiling": False,
    "inter_op_num_threads": 0,
    "intra_op_num_threads": 0,
    "log_severity_level": -1,
    "log_verbosity_level": 0,
    "logid": "",
    "optimized_model_filepath": "",
    "profile_file_prefix": "onnxruntime_profile_",
    "use_deterministic_compute": False,
    "use_per_session_threads": True,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_of_a_session(ort: Any, name: str) -> None:
    value = getattr(ort.SessionOptions(), name)
    assert value == DEFAULTS[name]
    assert type(value) is type(DEFAULTS[name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable_cpu_mem_arena", False),
        ("enable_mem_pattern", False),
        ("enable_mem_reuse", False),
        ("inter_op_num_threads", 2),
        ("intra_op_num_threads", 1),
        ("intra_op_num_threads", 2),
        ("log_severity_level", 3),
        ("log_verbosity_level", 1),
        ("logid", "mine"),
        ("use_deterministic_compute", True),
        ("use_per_session_threads", True),
    ],
)
def test_options_of_a_session(ort: Any, name: str, value: Any) -> None:
    options = ort.SessionOptions()
    setattr(options, name, value)
    assert getattr(options, name) == value
    session = ort.InferenceSession(models.square(), options)
    assert session.run(None, {"X": X})[0][0].tolist() == [1, 4]
    assert getattr(session.get_session_options(), name) == value


LEVELS = {"DISABLE_ALL": 0, "ENABLE_BASIC": 1, "ENABLE_EXTENDED": 2, "ENABLE_ALL": 99}


@pytest.mark.parametrize("name", LEVELS)
def test_levels_of_optimisation(ort: Any, name: str) -> None:
    level = getattr(ort.GraphOptimizationLevel, f"ORT_{name}")
    assert (level.value, level.name) == (LEVELS[name], f"ORT_{name}")
    options = ort.SessionOptions()
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.graph_optimization_level = level
    assert options.graph_optimization_level == level
    session = ort.InferenceSession(models.square(), options)
    assert session.run(None, {"X": X})[0][0].tolist() == [1, 4]


def test_a_number_is_no_level(ort: Any) -> None:
    with pytest.raises(TypeError):
        ort.SessionOptions().graph_optimization_level = 1


def test_texts_of_enumerations(ort: Any) -> None:
    for member in (
        ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
        ort.ExecutionMode.ORT_PARALLEL,
        ort.ExecutionOrder.DEFAULT,
        ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
    ):
        text = f"{type(member).__name__}.{member.name}"
        assert (str(member), f"{member}", repr(member)) == (text, text, f"<{text}: {int(member)}>")


@pytest.mark.parametrize("name", ["ORT_SEQUENTIAL", "ORT_PARALLEL"])
def test_execution_modes(ort: Any, name: str) -> None:
    options = ort.SessionOptions()
    assert options.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    options.execution_mode = getattr(ort.ExecutionMode, name)
    assert options.execution_mode.name == name


@pytest.mark.parametrize("name", ["DEFAULT", "PRIORITY_BASED"])
def test_execution_orders(ort: Any, name: str) -> None:
    options = ort.SessionOptions()
    options.execution_order = getattr(ort.ExecutionOrder, name)
    assert options.execution_order == getattr(ort.ExecutionOrder, name)


@pytest.mark.parametrize("kind", ["SessionOptions", "RunOptions"])
def test_unknown_options(ort: Any, kind: str) -> None:
    options = getattr(ort, kind)()
    with pytest.raises(AttributeError):
        options.threads = 3
    with pytest.raises(AttributeError):
        _ = options.threads


@pytest.mark.parametrize(
    ("name", "value"), [("intra_op_num_threads", "a"), ("logid", 3), ("enable_profiling", "yes")]
)
def test_options_of_another_type(ort: Any, name: str, value: Any) -> None:
    with pytest.raises(TypeError):
        setattr(ort.SessionOptions(), name, value)


@pytest.mark.parametrize(("value", "expected"), [(0, False), (1, True), (None, False), (2.5, True)])
def test_numbers_as_truth_values(ort: Any, value: Any, expected: bool) -> None:
    options = ort.SessionOptions()
    options.enable_mem_pattern = options.enable_profiling = value
    assert options.enable_mem_pattern is options.enable_profiling is expected


def test_config_entries(ort: Any) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("somebody.else", "x")
    options.add_session_config_entry("somebody.else", "y")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("somebody.else") == "y"
    assert ort.InferenceSession(models.square(), options).run(None, {"X": X})[0].shape == (3, 2)


def test_unknown_config_entry(ort: Any) -> None:
    with pytest.raises(RuntimeError, match="does not have configuration with key: k"):
        ort.SessionOptions().get_session_config_entry("k")


@pytest.mark.parametrize("key", ["", "k" * 2000])
def test_keys_of_config_entries(ort: Any, key: str) -> None:
    with pytest.raises(RuntimeError, match="Config key is empty or longer"):
        ort.SessionOptions().add_session_config_entry(key, "v")


def test_config_entries_are_texts(ort: Any) -> None:
    with pytest.raises(TypeError):
        ort.SessionOptions().add_session_config_entry("k", 1)


def test_size_of_a_dimension(ort: Any, state: Any) -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    session = ort.InferenceSession(models.open_sizes(), options)
    assert session.get_inputs()[0].shape == [2, None, 4]
    y, _ = session.run(None, {"X": np.ones((2, 3, 4), np.float32)})
    assert y.shape == (2, 3, 4)
    with pytest.raises(state.InvalidArgument, match="index: 0 Got: 3 Expected: 2"):
        session.run(None, {"X": np.ones((3, 3, 4), np.float32)})


def test_size_of_a_dimension_that_the_model_lacks(ort: Any) -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    session = ort.InferenceSession(models.open_sizes(), options)
    assert session.get_inputs()[0].shape == ["N", None, 4]


def test_library_of_custom_ops_that_cannot_be_loaded(ort: Any, state: Any) -> None:
    with pytest.raises(state.Fail, match="Failed to load library"):
        ort.SessionOptions().register_custom_ops_library("/no/such/library.so")


def test_run_options(ort: Any) -> None:
    options = ort.RunOptions()
    assert (options.log_severity_level, options.log_verbosity_level) == (-1, 0)
    assert (options.logid, options.terminate) == ("", False)
    options.logid, options.log_severity_level = "run", 2
    options.only_execute_path_to_fetches = True
    assert (options.logid, options.log_severity_level) == ("run", 2)
    session = ort.InferenceSession(models.two_inputs())
    one = np.ones(2, np.float32)
    assert session.run(["Z"], {"A": one, "B": one}, options)[0].tolist() == [0, 0]


def test_config_entries_of_a_run(ort: Any) -> None:
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    with pytest.raises(RuntimeError, match="does not have configuration with key: z"):
        options.get_run_config_entry("z")


def test_profile(ort: Any, tmp_path: pathlib.Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = ort.InferenceSession(models.square(), options)
    session.run(None, {"X": X})
    assert session.get_profiling_start_time_ns() > 0
    name = session.end_profiling()
    assert name.startswith(str(tmp_path / "profile"))
    events = json.loads(pathlib.Path(name).read_text())
    runs = [event for event in events if event["name"] == "model_run"]
    assert len(runs) == 1
    assert {"pid", "dur", "ts", "ph", "args"} <= runs[0].keys()


def test_no_profile(ort: Any) -> None:
    session = ort.InferenceSession(models.square())
    assert (session.end_profiling(), session.get_profiling_start_time_ns()) == ("", 0)


def test_available_providers(ort: Any) -> None:
    available = ort.get_available_providers()
    assert available[-1] == CPU
    assert set(available) <= set(ort.get_all_providers())
    assert ort.get_all_providers()[-1] == CPU
    assert ort.get_device() in ("CPU", "GPU")


@pytest.mark.parametrize("providers", [None, []])
def test_no_provider(ort: Any, providers: Any) -> None:
    session = ort.InferenceSession(models.square(), providers=providers)
    available = [n for n in ort.get_available_providers() if n != "AzureExecutionProvider"]
    assert session.get_providers() == available
    assert session.get_provider_options() == {name: {} for name in available}


@pytest.mark.parametrize("providers", [[CPU], (CPU,), [(CPU, {})]])
def test_cpu_provider(ort: Any, providers: Any) -> None:
    session = ort.InferenceSession(models.square(), providers=providers)
    assert session.get_providers() == [CPU]
    assert session.get_provider_options() == {CPU: {}}


def test_all_available_providers(ort: Any) -> None:
    session = ort.InferenceSession(models.square(), providers=ort.get_available_providers())
    assert CPU in session.get_providers()


@pytest.mark.parametrize("others", [["OpenVINOExecutionProvider"], ["DmlExecutionProvider", CPU]])
def test_unavailable_provider(ort: Any, others: list[str]) -> None:
    if set(others) - {CPU} & set(ort.get_available_providers()):
        pytest.skip(f"{others} are available")
    with pytest.warns(UserWarning, match="is not in available provider names"):
        session = ort.InferenceSession(models.square(), providers=others)
    assert session.get_providers() == [CPU]
    assert session.run(None, {"X": X})[0].shape == (3, 2)


def test_provider_that_does_not_exist(ort: Any) -> None:
    with pytest.warns(UserWarning, match="'Junk' is not in available provider names"):
        session = ort.InferenceSession(models.square(), providers=["Junk"])
    assert session.get_providers() == [CPU]


@pytest.mark.parametrize("providers", [["Junk"], [3], {"a"}])
def test_wrong_providers_without_a_fallback(ort: Any, providers: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((RuntimeError, ValueError)):
            ort.InferenceSession(models.square(), providers=providers, enable_fallback=0)


def test_duplicate_provider(ort: Any) -> None:
    with pytest.warns(UserWarning, match="Duplicate provider"):
        session = ort.InferenceSession(models.square(), providers=[CPU, CPU])
    assert session.get_providers() == [CPU]


def test_providers_are_set_again(ort: Any) -> None:
    session = ort.InferenceSession(models.square())
    session.set_providers([CPU])
    session.disable_fallback()
    session.enable_fallback()
    assert session.get_providers() == [CPU]
    assert session.run(None, {"X": X})[0][0].tolist() == [1, 4]


def test_providers_that_do_not_exist_are_not_set(ort: Any) -> None:
    session = ort.InferenceSession(models.square())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="Unknown Provider Type: Junk"):
            session.set_providers(["Junk"])


def test_arguments_become_names_and_texts(collection: Any) -> None:
    check = collection.check_and_normalize_provider_args
    given = [("a", {1: 2}), "b"]
    assert check(given, None, ["a", "b"]) == (["a", "b"], [{"1": "2"}, {}])
    assert check(["a", "b"], [{"1": 2}, {}], ["a", "b"]) == (["a", "b"], [{"1": "2"}, {}])
    assert check(None, [{}], []) == ([], [])


@pytest.mark.parametrize(
    ("providers", "options", "match"),
    [
        ({"a"}, None, "'providers' should be a sequence"),
        (["a"], {"b": 1}, "'provider_options' should be a sequence"),
        (["a"], [{}, {}], "should be the same length"),
        ([("a", {})], [{}], "Only string values"),
        (["a"], ["b"], "must be dicts"),
        ([("a", 1)], None, "either strings or"),
        ([3], None, "either strings or"),
    ],
)
def test_malformed_arguments(collection: Any, providers: Any, options: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        collection.check_and_normalize_provider_args(providers, options, ["a"])
