"""OrtValue, OrtDevice and IOBinding."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from tests.onnxruntime import small_models as models
from tests.onnxruntime.small_models import X

Y = X * X


@pytest.fixture
def value(ort: Any) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(X.copy())


@pytest.fixture
def square(ort: Any) -> Any:
    return ort.InferenceSession(models.square())


def test_facts_of_a_value(value: Any) -> None:
    assert value.shape() == [3, 2]
    assert value.data_type() == "tensor(float)"
    assert value.element_type() == onnx.TensorProto.FLOAT
    assert value.device_name() == "cpu"
    assert value.tensor_size_in_bytes() == 24
    assert value.has_value()


def test_kind_of_a_value(value: Any) -> None:
    assert value.is_tensor()
    assert not value.is_sparse_tensor()
    assert not value.is_tensor_sequence()


def test_value_as_an_array(value: Any) -> None:
    assert value.numpy().tolist() == X.tolist()
    assert np.asarray(value).tolist() == X.tolist()
    assert np.array(value, np.float64).dtype == np.float64


def test_value_shares_the_memory_of_an_array(ort: Any) -> None:
    given = X.copy()
    made = ort.OrtValue.ortvalue_from_numpy(given)
    assert made.data_ptr() == given.ctypes.data
    given[0, 0] = 9
    assert made.numpy()[0, 0] == 9


@pytest.mark.parametrize("kind", [np.int64, np.float16, np.bool_, np.uint8, np.float64])
def test_element_types_of_values(ort: Any, kind: Any) -> None:
    made = ort.OrtValue.ortvalue_from_numpy(np.ones(3, kind))
    name = {"float64": "double"}.get(np.dtype(kind).name, np.dtype(kind).name)
    assert made.data_type() == f"tensor({name})"
    assert made.numpy().dtype == kind


def test_scalar_as_a_value(ort: Any) -> None:
    made = ort.OrtValue.ortvalue_from_numpy(np.array(3.0, np.float32))
    assert (made.shape(), made.numpy().tolist()) == ([], 3.0)


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_value_of_a_shape_and_a_type(ort: Any, kind: Any) -> None:
    made = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], kind)
    assert (made.shape(), made.numpy().dtype, made.device_name()) == ([2, 3], kind, "cpu")


def test_value_of_an_onnx_type(ort: Any) -> None:
    made = ort.OrtValue.ortvalue_from_shape_and_type([2], onnx.TensorProto.BFLOAT16)
    assert (made.data_type(), made.tensor_size_in_bytes()) == ("tensor(bfloat16)", 4)
    assert made.element_type() == onnx.TensorProto.BFLOAT16


def test_value_of_the_bytes_of_an_onnx_type(ort: Any) -> None:
    raw = np.array([1, 2], ml_dtypes.bfloat16).view(np.uint16)
    made = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, onnx.TensorProto.BFLOAT16)
    assert (made.data_type(), made.shape()) == ("tensor(bfloat16)", [2])


@pytest.mark.parametrize("given", [[1, 2], np.array(["a"]), np.array(["a"], object)])
def test_only_arrays_of_numbers_become_values(ort: Any, given: Any) -> None:
    with pytest.raises(RuntimeError, match="non-string numpy arrays"):
        ort.OrtValue.ortvalue_from_numpy(given)


def test_device_that_is_not_there(ort: Any) -> None:
    if ort.get_device() == "GPU":
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="Can't allocate memory on the device"):
        ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)


def test_device_that_nobody_knows(ort: Any) -> None:
    with pytest.raises(Exception, match="Unsupported device type: junk"):
        ort.OrtValue.ortvalue_from_numpy(X, "junk", 0)


def test_update(value: Any) -> None:
    address = value.data_ptr()
    value.update_inplace(X * 3)
    assert value.numpy().tolist() == (X * 3).tolist()
    assert value.data_ptr() == address


def test_update_by_a_value(ort: Any, value: Any) -> None:
    value.update_inplace(ort.OrtValue.ortvalue_from_numpy(X * 5))
    assert value.numpy().tolist() == (X * 5).tolist()


def test_update_by_a_strided_array(value: Any) -> None:
    value.update_inplace(np.ascontiguousarray(X.T).T)
    assert value.numpy().tolist() == X.tolist()


def test_update_of_another_size(value: Any) -> None:
    with pytest.raises(RuntimeError, match="does not match the size"):
        value.update_inplace(X[:1])


def test_update_by_a_list(value: Any) -> None:
    with pytest.raises(TypeError):
        value.update_inplace([1, 2])


def test_value_by_dlpack(ort: Any, value: Any) -> None:
    assert value.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(value).tolist() == X.tolist()
    assert ort.OrtValue.from_dlpack(X.copy()).numpy().tolist() == X.tolist()
    assert ort.OrtValue.from_dlpack(value).data_type() == "tensor(float)"


def test_devices(ort: Any) -> None:
    device = ort.OrtDevice.make("cpu", 0)
    assert (device.device_id(), device.device_type(), device.device_mem_type()) == (0, 0, 0)
    assert device.device_vendor_id() == 0
    assert ort.OrtDevice.make("cuda", 1).device_id() == 1


def test_run_on_values(ort: Any, square: Any, value: Any) -> None:
    (found,) = square.run_with_ort_values(["Y"], {"X": value})
    assert isinstance(found, ort.OrtValue)
    assert (found.numpy().tolist(), found.shape()) == (Y.tolist(), [3, 2])


def test_run_on_values_returns_all_outputs(square: Any, value: Any) -> None:
    assert len(square.run_with_ort_values(None, {"X": value})) == 1


def test_run_on_values_takes_no_arrays(square: Any) -> None:
    with pytest.raises(AttributeError):
        square.run_with_ort_values(None, {"X": X})


def test_run_takes_values(square: Any, value: Any) -> None:
    assert square.run(None, {"X": value})[0].tolist() == Y.tolist()


def test_values_of_other_types_are_refused(ort: Any, state: Any, square: Any) -> None:
    wrong = ort.OrtValue.ortvalue_from_numpy(X.astype(np.float64))
    with pytest.raises(state.InvalidArgument, match="Unexpected input data type"):
        square.run_with_ort_values(None, {"X": wrong})


def test_binding_of_arrays(square: Any) -> None:
    binding = square.io_binding()
    binding.bind_cpu_input("X", X)
    binding.bind_output("Y")
    square.run_with_iobinding(binding)
    (found,) = binding.copy_outputs_to_cpu()
    assert found.tolist() == Y.tolist()


def test_binding_reads_an_array_at_each_run(square: Any) -> None:
    given = X.copy()
    binding = square.io_binding()
    binding.bind_cpu_input("X", given)
    binding.bind_output("Y")
    for scale in (1, 2):
        given[:] = X * scale
        square.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == (Y * scale * scale).tolist()


def test_binding_of_values(ort: Any, square: Any, value: Any) -> None:
    target = ort.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32)
    binding = square.io_binding()
    binding.bind_ortvalue_input("X", value)
    binding.bind_ortvalue_output("Y", target)
    square.run_with_iobinding(binding)
    assert target.numpy().tolist() == Y.tolist()
    assert binding.get_outputs()[0].data_ptr() == target.data_ptr()


def test_binding_of_addresses(square: Any) -> None:
    given, made = X.copy(), np.zeros((3, 2), np.float32)
    binding = square.io_binding()
    binding.bind_input("X", "cpu", 0, np.float32, given.shape, given.ctypes.data)
    binding.bind_output("Y", "cpu", 0, np.float32, made.shape, made.ctypes.data)
    binding.synchronize_inputs()
    square.run_with_iobinding(binding)
    binding.synchronize_outputs()
    assert made.tolist() == Y.tolist()


def test_binding_of_an_address_by_an_onnx_type(square: Any) -> None:
    given = X.copy()
    binding = square.io_binding()
    element = onnx.TensorProto.FLOAT
    binding.bind_input("X", "cpu", 0, element, given.shape, given.ctypes.data)
    binding.bind_output("Y")
    square.run_with_iobinding(binding)
    assert binding.get_outputs()[0].numpy().tolist() == Y.tolist()


def test_outputs_of_a_binding_come_as_bound(ort: Any) -> None:
    session = ort.InferenceSession(models.two_inputs())
    binding = session.io_binding()
    one = np.ones(2, np.float32)
    binding.bind_cpu_input("A", one)
    binding.bind_cpu_input("B", one * 3)
    for name in ("Z", "Y"):
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    assert [x.tolist() for x in binding.copy_outputs_to_cpu()] == [[-2, -2], [4, 4]]


def test_binding_of_open_sizes(ort: Any) -> None:
    session = ort.InferenceSession(models.open_sizes())
    binding = session.io_binding()
    for rows in (1, 3):
        binding.bind_output("Y", "cpu")
        binding.bind_cpu_input("X", np.ones((rows, 1, 4), np.float32))
        session.run_with_iobinding(binding)
        assert binding.get_outputs()[0].shape() == [rows, 1, 4]


def test_output_in_the_memory_of_an_input(ort: Any, square: Any) -> None:
    given = X.copy()
    value = ort.OrtValue.ortvalue_from_numpy(given)
    binding = square.io_binding()
    binding.bind_ortvalue_input("X", value)
    binding.bind_ortvalue_output("Y", value)
    square.run_with_iobinding(binding)
    assert given.tolist() == Y.tolist()


def test_binding_without_outputs(square: Any) -> None:
    binding = square.io_binding()
    binding.bind_cpu_input("X", X)
    with pytest.raises(RuntimeError, match="At least one output should be requested"):
        square.run_with_iobinding(binding)


def test_binding_without_inputs(square: Any) -> None:
    binding = square.io_binding()
    binding.bind_output("Y")
    with pytest.raises(RuntimeError):
        square.run_with_iobinding(binding)


def test_binding_of_an_unknown_input(square: Any) -> None:
    with pytest.raises(RuntimeError, match="Failed to find NodeArg with name: Q"):
        square.io_binding().bind_cpu_input("Q", X)


def test_binding_of_an_unknown_output(square: Any) -> None:
    binding = square.io_binding()
    binding.bind_cpu_input("X", X)
    binding.bind_output("Q")
    with pytest.raises(RuntimeError, match="Invalid output name: Q"):
        square.run_with_iobinding(binding)


def test_address_without_a_shape(square: Any) -> None:
    with pytest.raises(ValueError, match="`element_type` and `shape` are to be provided"):
        square.io_binding().bind_output("Y", "cpu", 0, None, None, X.ctypes.data)


def test_memory_of_another_shape(square: Any) -> None:
    made = np.zeros((3, 3), np.float32)
    binding = square.io_binding()
    binding.bind_cpu_input("X", X)
    binding.bind_output("Y", "cpu", 0, np.float32, made.shape, made.ctypes.data)
    with pytest.raises(RuntimeError, match="Error in execution"):
        square.run_with_iobinding(binding)


def test_bindings_are_cleared(square: Any) -> None:
    binding = square.io_binding()
    binding.bind_cpu_input("X", X)
    binding.bind_output("Y")
    square.run_with_iobinding(binding)
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    assert list(binding.get_outputs()) == []
    with pytest.raises(RuntimeError):
        square.run_with_iobinding(binding)


def test_binding_of_another_session(ort: Any, square: Any) -> None:
    other = ort.InferenceSession(models.square())
    with pytest.raises(ValueError, match="session that created it"):
        other.run_with_iobinding(square.io_binding())
