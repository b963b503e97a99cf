"""The drop-in for ONNX Runtime with memory of a GPU: values, bindings, providers.

Without a GPU the interpreter runs the kernels, and torch's tensors on the host stand for memory of
a GPU, which arrays of numpy are not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import monograph.onnxruntime as ort
from monograph.onnxruntime import binding, memory, providers, session, values
from monograph.onnxruntime.providers import choose_target
from monograph.runtime.gpu import tensors
from tests.onnxruntime import small_models as models
from tests.onnxruntime.small_models import X

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
HAS_GPU = torch.cuda.is_available()
PLACE = "cuda" if HAS_GPU else "cpu"
USABLE = ("0", "1")
"""The GPUs of the machine that is imitated."""
Bind = Callable[[Any], None]


class _Waits:
    """Counts waits for the GPU."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture(scope="module", autouse=True)
def waits() -> Iterator[_Waits]:
    """Let the modules of the drop-in find a GPU where there is none."""
    waits = _Waits()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "synchronize", waits)
        if not HAS_GPU:
            _imitate_gpu(patch)
        yield waits


def _imitate_gpu(patch: pytest.MonkeyPatch) -> None:
    def is_tensor(data: Any) -> bool:
        return isinstance(data, torch.Tensor)

    def torch_name(device: ort.OrtDevice) -> str:
        assert device.name == "cuda"
        return "cpu"

    def tensor_at(address: int, element_type: Any, shape: Any, place: str) -> torch.Tensor:
        assert place == "cpu"
        return torch.from_numpy(memory.host_array_at(address, element_type, shape))

    def interpreted(*given: Any) -> providers.ChosenTarget:
        found = choose_target(*given)
        return dataclasses.replace(found, target="cpu" if found.gpu is None else "gpu:interpreter")

    def problem(number: str) -> str:
        return "" if number in ("", *USABLE) else "there is no such GPU"

    patch.setattr(providers, "_problem", problem)
    patch.setattr(providers, "_gpu_providers", lambda: providers.NVIDIA)
    patch.setattr(session, "choose_target", interpreted)
    for module in (memory, values, binding):
        patch.setattr(module, "is_on_gpu", is_tensor)
    patch.setattr(ort.OrtDevice, "torch_name", torch_name)
    patch.setattr(binding, "gpu_tensor_at", tensor_at)


@pytest.fixture(scope="module")
def square() -> Any:
    return ort.InferenceSession(models.square(), providers=[CUDA, CPU])


def bound(session: Any, bind_input: Bind, bind_output: Bind) -> tuple[str, list[Any]]:
    binding = session.io_binding()
    bind_input(binding)
    bind_output(binding)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return binding.get_outputs()[0].device_name(), binding.copy_outputs_to_cpu()[0].tolist()


def test_providers(square: Any) -> None:
    assert ort.get_available_providers()[-2:] == [CUDA, CPU]
    assert ort.get_device() == "GPU"
    assert square.get_providers() == [CUDA, CPU]
    assert square.monograph_session.config.on_gpu
    assert square.run(None, {"X": X})[0].tolist() == (X * X).tolist()


@pytest.mark.parametrize(
    ("given", "target", "options"),
    [
        (None, "gpu:0", {name: {} for name in (*providers.NVIDIA, CPU)}),
        ([], "gpu:0", {name: {} for name in (*providers.NVIDIA, CPU)}),
        ([CPU], "cpu", {CPU: {}}),
        ([CPU, CUDA], "cpu", {CUDA: {}, CPU: {}}),
        ([(CUDA, {"device_id": 0})], "gpu:0", {CUDA: {"device_id": "0"}, CPU: {}}),
        ([CUDA, (CPU, {"a": 1})], "gpu:0", {CUDA: {}, CPU: {}}),
        (["TensorrtExecutionProvider", CUDA], "gpu:0",
         {"TensorrtExecutionProvider": {}, CUDA: {}, CPU: {}}),
    ],
)  # fmt: skip
def test_first_available_provider_is_used(
    given: Any, target: str, options: dict[str, dict[str, str]]
) -> None:
    found = choose_target(given, None)
    assert (found.target, found.options) == (target, options)
    assert found.providers == list(options)
    assert found.gpu == (None if target == "cpu" else 0)


@pytest.mark.skipif(HAS_GPU, reason="needs a machine with a known number of GPUs")
def test_number_of_a_gpu() -> None:
    assert choose_target([(CUDA, {"device_id": 1})], None).target == "gpu:1"
    assert choose_target([CUDA], [{"device_id": "1"}]).target == "gpu:1"


@pytest.mark.parametrize("number", ["99", "-1", "x", ""])
def test_a_gpu_that_is_not_there_warns_and_the_cpu_is_used(number: str) -> None:
    given = [(CUDA, {"device_id": number})]
    with pytest.raises(RuntimeError, match="device_id"):
        choose_target(given, None)
    with pytest.warns(UserWarning, match=r"device_id.*Falling back to \['CPUExec"):
        found = ort.InferenceSession(models.square(), providers=given)
    assert found.get_providers() == [CPU]
    assert found.run(None, {"X": X})[0].tolist() == (X * X).tolist()
    with pytest.raises(RuntimeError, match="device_id"):
        ort.InferenceSession(models.square(), providers=given, enable_fallback=False)


def test_a_provider_of_another_vendor_warns_and_the_next_is_used() -> None:
    with pytest.warns(UserWarning, match="'OpenVINOExecutionProvider' is not in available"):
        found = ort.InferenceSession(models.square(), providers=["OpenVINOExecutionProvider", CUDA])
    assert found.get_providers() == [CUDA, CPU]
    assert found.run(None, {"X": X})[0].tolist() == (X * X).tolist()


def test_providers_are_set_again() -> None:
    session = ort.InferenceSession(models.square(), providers=[CPU])
    for names in ([CUDA, CPU], [CPU]):
        session.set_providers(names)
        assert session.get_providers() == names
        assert session.monograph_session.config.on_gpu == (names[0] == CUDA)
        assert session.run(None, {"X": X})[0].tolist() == (X * X).tolist()


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.bool_, np.uint8])
@pytest.mark.parametrize("shape", [(2, 2), (4,), (4, 1, 1)])
def test_values(kind: Any, shape: tuple[int, ...]) -> None:
    given = np.array([1, 0, 3, 4]).astype(kind).reshape(shape)
    value = ort.OrtValue.ortvalue_from_numpy(given, "cuda", 0)
    assert (value.device_name(), value.shape()) == ("cuda", list(shape))
    assert value.data_type() == ort.OrtValue.ortvalue_from_numpy(given).data_type()
    assert value.tensor_size_in_bytes() == given.nbytes
    assert value.numpy().dtype == kind
    assert value.numpy().tolist() == given.tolist()
    value.update_inplace(given[::-1])
    assert value.numpy().tolist() == given[::-1].tolist()
    assert given.reshape(-1).tolist() == np.array([1, 0, 3, 4]).astype(kind).tolist()
    again = ort.OrtValue.from_dlpack(torch.from_dlpack(value))
    assert (again.data_ptr(), again.device_name()) == (value.data_ptr(), "cuda")


@pytest.mark.parametrize("shape", [[], [0], [1], [2, 0, 3]])
def test_allocated_values(shape: list[int]) -> None:
    value = ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, "cuda", 0)
    assert (value.device_name(), value.shape()) == ("cuda", shape)
    assert value.numpy().tolist() == np.zeros(shape, np.float32).tolist()


def test_values_are_copied_between_host_and_gpu() -> None:
    here = ort.OrtValue.ortvalue_from_numpy(X.copy())
    there = ort.OrtValue.ortvalue_from_shape_and_type(X.shape, np.float32, "cuda", 0)
    ort.copy_tensors([here], [there])
    assert there.numpy().tolist() == X.tolist()
    there.update_inplace(-X)
    ort.copy_tensors([there], [here])
    assert here.numpy().tolist() == (-X).tolist()
    with pytest.raises(RuntimeError, match="does not match the size"):
        there.update_inplace(X[:1])
    with pytest.raises(RuntimeError, match="holds tensor\\(float\\)"):
        there.update_inplace(X.astype(np.float64))


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
    x, y = torch.from_numpy(X.copy()).to(PLACE), torch.zeros(3, 2, device=PLACE)

    def given(binding: Any) -> None:
        binding.bind_input("X", "cuda", 0, np.float32, tuple(x.shape), x.data_ptr())

    def made(binding: Any) -> None:
        binding.bind_output("Y", "cuda", 0, np.float32, tuple(y.shape), y.data_ptr())

    assert bound(square, given, made)[0] == "cuda"
    assert y.tolist() == (X * X).tolist()


@pytest.mark.parametrize("name", [CUDA, CPU])
@pytest.mark.parametrize("source", ["cpu", "cuda"])
@pytest.mark.parametrize("result", ["cpu", "cuda"])
@pytest.mark.parametrize("preallocated", [False, True])
def test_inputs_and_outputs_lie_anywhere(
    name: str, source: str, result: str, preallocated: bool
) -> None:
    """Also a session on the CPU takes tensors of a GPU, as in ONNX Runtime: it copies them."""
    session = ort.InferenceSession(models.square(), providers=[name])
    given = ort.OrtValue.ortvalue_from_numpy(X, source, 0)
    made = ort.OrtValue.ortvalue_from_shape_and_type(X.shape, np.float32, result, 0)

    def bind_output(binding: Any) -> None:
        if preallocated:
            binding.bind_ortvalue_output("Y", made)
        else:
            binding.bind_output("Y", result, 0)

    found = bound(session, lambda b: b.bind_ortvalue_input("X", given), bind_output)
    assert found == (result, (X * X).tolist())
    assert not preallocated or made.numpy().tolist() == found[1]
    assert given.numpy().tolist() == X.tolist()


def test_host_feeds_go_to_the_gpu_of_the_session(
    square: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[str] = []
    whole = tensors.from_numpy
    monkeypatch.setattr(binding, "to_gpu", lambda x, place: (places.append(place), whole(x))[1])
    monkeypatch.setattr(ort.OrtDevice, "torch_name", lambda device: f"cuda:{device.device_id()}")
    monkeypatch.setattr(type(square), "gpu", ort.OrtDevice.make("cuda", 1))
    monkeypatch.setattr(square, "run_feeds", lambda feeds: [feeds["X"]])
    bound(square, lambda b: b.bind_cpu_input("X", X), lambda b: b.bind_output("Y", "cuda", 1))
    assert places == ["cuda:1"]


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_bindings_wait_for_a_gpu_only(square: Any, waits: _Waits, place: str) -> None:
    binding = square.io_binding()
    binding.bind_ortvalue_input("X", ort.OrtValue.ortvalue_from_numpy(X, place, 0))
    binding.bind_output("Y", place, 0)
    before = waits.count
    binding.synchronize_inputs()
    square.run_with_iobinding(binding)
    ran = waits.count
    binding.synchronize_outputs()
    assert (ran > before, waits.count > ran) == (place == "cuda", place == "cuda")


def test_memory_of_another_shape_on_a_gpu(square: Any) -> None:
    binding = square.io_binding()
    binding.bind_cpu_input("X", X)
    binding.bind_ortvalue_output("Y", ort.OrtValue.ortvalue_from_numpy(X[:2], "cuda", 0))
    with pytest.raises(RuntimeError, match="shape"):
        square.run_with_iobinding(binding)
