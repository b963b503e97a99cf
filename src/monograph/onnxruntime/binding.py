"""IOBinding: inputs and outputs in memory that the caller chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from monograph.errors import FeedError, MonographError
from monograph.onnxruntime.memory import (
    gpu_tensor_at,
    host_array_at,
    is_on_gpu,
    to_gpu,
    to_host,
)
from monograph.onnxruntime.values import OrtDevice, OrtValue

if TYPE_CHECKING:
    from monograph.onnxruntime.session import InferenceSession


@dataclass(frozen=True)
class _Place:
    """The place of an output: memory of the caller, or a device to allocate it on."""

    device: OrtDevice
    memory: Any = None


class IOBinding:
    """Inputs and outputs of a session, bound to arrays, tensors or addresses."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, _Place] = {}
        self._results: list[OrtValue] = []

    @property
    def _iobinding(self) -> IOBinding:
        """The binding itself: programs reach for ONNX Runtime's native binding by this name."""
        return self

    def bind_cpu_input(self, name: str, arr_on_cpu: npt.NDArray[Any]) -> None:
        """Bind an input to an array. Its elements are read when the session runs."""
        self._bind_input(name, arr_on_cpu)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input to memory at an address."""
        device = OrtDevice.make(device_type, device_id)
        self._bind_input(name, _at_address(device, element_type, shape, buffer_ptr))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to a value."""
        self._bind_input(name, ortvalue.content)

    def _bind_input(self, name: str, data: Any) -> None:
        if name not in self._session.input_names:
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")
        self._inputs[name] = data

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to memory at an address, or to a device on which it is allocated."""
        device = OrtDevice.make(device_type, device_id)
        if buffer_ptr is None:
            self._outputs[name] = _Place(device)
            return
        if element_type is None or shape is None:
            raise ValueError(
                "`element_type` and `shape` are to be provided if pre-allocated memory is provided"
            )
        self._outputs[name] = _Place(device, _at_address(device, element_type, shape, buffer_ptr))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to the memory of a value."""
        device = OrtDevice.make(ortvalue.device_name(), ortvalue.__dlpack_device__()[1])
        self._outputs[name] = _Place(device, ortvalue.content)

    def synchronize_inputs(self) -> None:
        """Wait for work on a GPU that writes inputs."""
        _synchronise([*self._inputs.values()])

    def synchronize_outputs(self) -> None:
        """Wait for work on a GPU that writes outputs."""
        _synchronise([value.content for value in self._results])

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order in which they were bound."""
        return list(self._results)

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        """Return the outputs of the last run."""
        return self.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the outputs of the last run as arrays on the host."""
        return [v.numpy() if v.is_tensor() else v.content for v in self._results]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs, and the results of the last run."""
        self._outputs.clear()
        self._results = []

    def belongs_to(self, session: InferenceSession) -> bool:
        """Return True if a session made this binding."""
        return self._session is session

    def run(self) -> None:
        """Run the session on what is bound."""
        if not self._outputs:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        known = [arg.name for arg in self._session.get_outputs()]
        for name in self._outputs:
            if name not in known:
                raise RuntimeError(f"Error in execution: Invalid output name: {name}")
        try:
            results = dict(zip(known, self._run(), strict=True))
            made = {name: _put(results[name], place) for name, place in self._outputs.items()}
        except (MonographError, ValueError) as e:
            raise RuntimeError(f"Error in execution: {e}") from e
        self._results = [OrtValue(data) for data in made.values()]

    def _run(self) -> list[Any]:
        """Return all outputs; those with memory of their own lie there where that can be."""
        memory = {n: place.memory for n, place in self._outputs.items() if place.memory is not None}
        feeds = self._feeds()
        if not memory:
            return self._session.run_feeds(feeds)
        try:
            return self._session.run_feeds(feeds, memory)
        except FeedError:
            # An output may lie in the memory of an input, which only a copy can do.
            return self._session.run_feeds(feeds)

    def _feeds(self) -> dict[str, Any]:
        """Return the inputs where the session reads them."""
        gpu = self._session.gpu
        if gpu is None:
            return {n: to_host(x) if is_on_gpu(x) else x for n, x in self._inputs.items()}
        wanted = any(not place.device.on_host for place in self._outputs.values())
        if not wanted or any(map(is_on_gpu, self._inputs.values())):
            return self._inputs
        # Feeds on a GPU make a session return tensors on the GPU.
        name = gpu.torch_name()
        return {
            n: to_gpu(x, name) if isinstance(x, np.ndarray) else x for n, x in self._inputs.items()
        }


def _at_address(
    device: OrtDevice, element_type: Any, shape: Sequence[int], address: int
) -> npt.NDArray[Any] | Any:
    if device.on_host:
        return host_array_at(address, element_type, shape)
    return gpu_tensor_at(address, element_type, shape, device.torch_name())


def _put(result: Any, place: _Place) -> Any:
    """Return an output in the memory or on the device that it is bound to."""
    if result is place.memory:
        return result
    if place.memory is None:
        if not hasattr(result, "shape") or is_on_gpu(result) != place.device.on_host:
            return result
        if place.device.on_host:
            return to_host(result)
        return to_gpu(result, place.device.torch_name())
    if tuple(result.shape) != tuple(place.memory.shape):
        raise FeedError(
            "the memory that an output is bound to has another shape",
            expected=list(result.shape),
            given=list(place.memory.shape),
        )
    OrtValue(place.memory).update_inplace(OrtValue(result))
    return place.memory


def _synchronise(data: Sequence[Any]) -> None:
    if any(map(is_on_gpu, data)):
        import torch

        torch.cuda.synchronize()
