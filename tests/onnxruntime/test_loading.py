"""InferenceSession: what it loads, what it says about the model, and how it refuses."""

from __future__ import annotations

import pathlib
from typing import Any

import onnx
import pytest

from tests.onnxruntime import small_models as models


@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_a_path_loads(ort: Any, tmp_path: pathlib.Path, kind: Any) -> None:
    path = tmp_path / "square.onnx"
    path.write_bytes(models.square())
    (found,) = ort.InferenceSession(kind(path)).run(None, {"X": models.X})
    assert found.tolist() == (models.X * models.X).tolist()


def test_bytes_load(ort: Any) -> None:
    (found,) = ort.InferenceSession(models.square()).run(None, {"X": models.X})
    assert found[2].tolist() == [25.0, 36.0]


def test_path_of_the_model_is_kept(ort: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "square.onnx"
    path.write_bytes(models.square())
    assert ort.InferenceSession(str(path))._model_path == str(path)
    assert ort.InferenceSession(models.square())._model_path is None


def test_keyword_arguments_of_the_constructor(ort: Any) -> None:
    session = ort.InferenceSession(
        path_or_bytes=models.square(),
        sess_options=ort.SessionOptions(),
        providers=["CPUExecutionProvider"],
        provider_options=[{}],
    )
    assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("given", [3, None, bytearray(b"x"), ["model.onnx"], 1.5])
def test_other_types_are_no_model(ort: Any, given: Any) -> None:
    with pytest.raises(TypeError, match="Unable to load from type"):
        ort.InferenceSession(given)


def test_an_empty_path_is_no_model(ort: Any) -> None:
    with pytest.raises(TypeError):
        ort.InferenceSession("")


def test_a_model_proto_is_no_model(ort: Any) -> None:
    with pytest.raises(TypeError, match="Unable to load from type"):
        ort.InferenceSession(models.parsed(models.square()))


def test_missing_file(ort: Any, state: Any) -> None:
    with pytest.raises(state.NoSuchFile, match="File doesn't exist") as raised:
        ort.InferenceSession("/no/such/model.onnx")
    assert str(raised.value).startswith("[ONNXRuntimeError] : 3 : NO_SUCHFILE : ")


@pytest.mark.parametrize("raw", [b"garbage", b"\xff" * 40])
def test_bytes_that_are_no_protobuf(ort: Any, state: Any, raw: bytes) -> None:
    with pytest.raises(state.InvalidProtobuf) as raised:
        ort.InferenceSession(raw)
    assert str(raised.value).startswith("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : ")


def test_file_that_is_no_protobuf(ort: Any, state: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"garbage")
    with pytest.raises(state.InvalidProtobuf, match="Load model from"):
        ort.InferenceSession(path)


def test_directory_is_no_model(ort: Any, state: Any, tmp_path: pathlib.Path) -> None:
    with pytest.raises(state.InvalidProtobuf):
        ort.InferenceSession(tmp_path)


def test_bytes_without_a_graph(ort: Any, state: Any) -> None:
    with pytest.raises(state.InvalidArgument):
        ort.InferenceSession(b"")


def test_unknown_op(ort: Any, state: Any) -> None:
    with pytest.raises((state.InvalidGraph, state.NotImplemented), match="Frobnicate"):
        ort.InferenceSession(models.unknown_op())


def test_shapes_that_do_not_fit(ort: Any, state: Any) -> None:
    with pytest.raises(state.Fail) as raised:
        ort.InferenceSession(models.bad_shapes())
    assert str(raised.value).startswith("[ONNXRuntimeError] : 1 : FAIL : ")


def test_options_of_another_type(ort: Any) -> None:
    with pytest.raises(TypeError):
        ort.InferenceSession(models.square(), "options")


def test_inputs_and_outputs(ort: Any) -> None:
    session = ort.InferenceSession(models.open_sizes())
    (x,), (y, z) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.type, x.shape) == ("X", "tensor(float)", ["N", None, 4])
    assert (y.name, y.type, y.shape) == ("Y", "tensor(float)", ["N", None, 4])
    assert (z.name, z.type, z.shape) == ("Z", "tensor(float)", ["N", None, 4])


def test_text_of_an_input(ort: Any) -> None:
    (x,) = ort.InferenceSession(models.open_sizes()).get_inputs()
    assert str(x) == "NodeArg(name='X', type='tensor(float)', shape=['N', None, 4])"


TYPES = {
    "FLOAT": "float", "UINT8": "uint8", "INT8": "int8", "UINT16": "uint16", "INT16": "int16",
    "INT32": "int32", "INT64": "int64", "STRING": "string", "BOOL": "bool", "FLOAT16": "float16",
    "DOUBLE": "double", "UINT32": "uint32", "UINT64": "uint64", "BFLOAT16": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_type_of_an_input(ort: Any, name: str) -> None:
    session = ort.InferenceSession(models.identity(getattr(onnx.TensorProto, name)))
    assert session.get_inputs()[0].type == f"tensor({TYPES[name]})"
    assert session.get_outputs()[0].type == f"tensor({TYPES[name]})"
    assert session.get_inputs()[0].shape == [2]


def test_scalar_has_an_empty_shape(ort: Any) -> None:
    assert ort.InferenceSession(models.identity(models.INT64, ())).get_inputs()[0].shape == []


def test_type_of_a_sequence(ort: Any) -> None:
    first, second = ort.InferenceSession(models.element_of_sequence()).get_inputs()
    assert (first.type, first.shape) == ("seq(tensor(float))", [])
    assert (second.type, second.shape) == ("tensor(int64)", [])


def test_type_of_an_optional(ort: Any) -> None:
    (given,) = ort.InferenceSession(models.has_element()).get_inputs()
    assert (given.type, given.shape) == ("optional(tensor(float))", [2])


def test_type_of_a_sequence_of_maps(ort: Any) -> None:
    (z,) = ort.InferenceSession(models.zipmap()).get_outputs()
    assert z.type == "seq(map(int64,tensor(float)))"


def test_inputs_with_initialisers(ort: Any) -> None:
    session = ort.InferenceSession(models.with_default())
    assert [a.name for a in session.get_inputs()] == ["X"]
    (w,) = session.get_overridable_initializers()
    assert (w.name, w.type, w.shape) == ("W", "tensor(float)", [2])


def test_model_without_initialisers_has_none_to_override(ort: Any) -> None:
    assert list(ort.InferenceSession(models.square()).get_overridable_initializers()) == []


def test_metadata(ort: Any) -> None:
    meta = ort.InferenceSession(models.square()).get_modelmeta()
    assert meta.custom_metadata_map == {"labels": "cat,dog", "stride": "32"}
    assert meta.producer_name == "producer"
    assert meta.graph_name == "small"
    assert meta.domain == "domain"
    assert meta.description == "describes"
    assert meta.graph_description == ""
    assert meta.version == 7


def test_metadata_of_a_model_without_any(ort: Any) -> None:
    meta = ort.InferenceSession(models.two_inputs()).get_modelmeta()
    assert (meta.custom_metadata_map, meta.producer_name, meta.version) == ({}, "", 2**63 - 1)


def test_exceptions_have_no_common_runtime_error(ort: Any, state: Any) -> None:
    for name in ("Fail", "InvalidArgument", "NoSuchFile", "InvalidProtobuf", "InvalidGraph"):
        assert issubclass(getattr(state, name), Exception)
        assert not issubclass(getattr(state, name), (RuntimeError, ValueError))


def test_version(ort: Any) -> None:
    assert ort.get_version_string() == ort.__version__
    assert int(ort.__version__.split(".")[0]) >= 1
    assert "Build Info" in ort.get_build_info()


def test_telemetry(ort: Any) -> None:
    ort.disable_telemetry_events()
    ort.enable_telemetry_events()


@pytest.mark.parametrize("severity", [-1, 5])
def test_severities_of_the_logger(ort: Any, severity: int) -> None:
    with pytest.raises(RuntimeError):
        ort.set_default_logger_severity(severity)
    ort.set_default_logger_severity(2)


def test_unknown_names_of_the_module(ort: Any) -> None:
    with pytest.raises(AttributeError):
        _ = ort.InferenceSessions
