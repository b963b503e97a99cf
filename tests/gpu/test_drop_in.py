"""The drop-in for ONNX Runtime with memory of a GPU: values, bindings, providers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import monograph.onnxruntime as ort
from monograph.onnxruntime.providers import choose_target
from tests.onnxruntime import small_models as models
from tests.onnxruntime.small_models import X

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = "CUDAExecutionProvider"
Bind = Callable[[Any], None]


@pytest.fixture(scope="module")
def square() -> Any:
    return ort.InferenceSession(models.square(), providers=[CUDA, "CPUExecutionProvider"])


def bound(session: Any, bind_input: Bind, bind_output: Bind) -> tuple[str, list[Any]]:
    binding = session.io_binding()
    bind_input(binding)
    bind_output(binding)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return binding.get_outputs()[0].device_name(), binding.copy_outputs_to_cpu()[0].tolist()


def test_providers(square: Any) -> None:
    assert ort.get_available_providers()[-2:] == [CUDA, "CPUExecutionProvider"]
    assert ort.get_device() == "GPU"
    assert square.get_providers() == [CUDA, "CPUExecutionProvider"]
    assert square.monograph_session.config.on_gpu
    assert choose_target([(CUDA, {"device_id": 1})], None).target == "gpu:1"
    assert choose_target(["CPUExecutionProvider", CUDA], None).target == "cpu"
    assert square.run(None, {"X": X})[0].tolist() == (X * X).tolist()


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.bool_, np.uint8])
def test_values(kind: Any) -> None:
    given = np.array([[1, 0], [3, 4]]).astype(kind)
    value = ort.OrtValue.ortvalue_from_numpy(given, "cuda", 0)
    assert (value.device_name(), value.shape()) == ("cuda", [2, 2])
    assert value.data_type() == ort.OrtValue.ortvalue_from_numpy(given).data_type()
    assert value.numpy().dtype == kind
    assert value.numpy().tolist() == given.tolist()
    value.update_inplace(given[::-1])
    assert value.numpy().tolist() == given[::-1].tolist()
    assert ort.OrtValue.from_dlpack(torch.from_dlpack(value)).data_ptr() == value.data_ptr()


def test_bindings_of_values(square: Any) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)

    def given(binding: Any) -> None:
        binding.bind_ortvalue_input("X", value)

    expected = (X * X).tolist()
    assert bound(square, given, lambda b: b.bind_output("Y", "cuda", 0)) == ("cuda", expected)
    assert bound(square, given, lambda b: b.bind_output("Y")) == ("cpu", expected)
    assert bound(square, given, lambda b: b.bind_ortvalue_output("Y", value)) == ("cuda", expected)
    assert value.numpy().tolist() == expected
    (found,) = square.run_with_ort_values(["Y"], {"X": value})
    assert (found.device_name(), found.numpy().tolist()) == ("cuda", (X**4).tolist())


def test_bindings_of_addresses(square: Any) -> None:
    x, y = torch.from_numpy(X).cuda(), torch.zeros(3, 2, device="cuda")

    def given(binding: Any) -> None:
        binding.bind_input("X", "cuda", 0, np.float32, tuple(x.shape), x.data_ptr())

    def made(binding: Any) -> None:
        binding.bind_output("Y", "cuda", 0, np.float32, tuple(y.shape), y.data_ptr())

    assert bound(square, given, made)[0] == "cuda"
    assert y.tolist() == (X * X).tolist()


def test_binding_of_a_host_array_to_a_gpu_output(square: Any) -> None:
    found = bound(square, lambda b: b.bind_cpu_input("X", X), lambda b: b.bind_output("Y", "cuda"))
    assert found == ("cuda", (X * X).tolist())
