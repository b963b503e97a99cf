"""Feeds that ONNX Runtime takes and Monograph's sessions do not, and its errors for the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from monograph.errors import MonographError
from monograph.onnxruntime.errors import InvalidArgument, OrtFail
from monograph.onnxruntime.values import OrtValue, element_name

if TYPE_CHECKING:
    from monograph.ir import TensorType
    from monograph.runtime.feeds import Port
    from monograph.session import Session

_FIX = "Please fix either the inputs/outputs or the model."


class FeedReader:
    """Converts feeds for a session, or raises ONNX Runtime's error for the first problem."""

    def __init__(self, session: Session) -> None:
        from monograph.ir import OptionalType, TensorType

        inputs = session.inputs
        self._ports = {p.name: p for p in (*inputs, *session.optional_inputs)}
        self._tensors = {
            n: p.type for n, p in self._ports.items() if isinstance(p.type, TensorType)
        }
        self._needed = [p.name for p in inputs if not isinstance(p.type, OptionalType)]
        self._absent = {p.name: None for p in inputs if isinstance(p.type, OptionalType)}

    def check_names(self, feeds: Mapping[str, Any]) -> None:
        """Raise ValueError if an input is missing."""
        if missing := [name for name in self._needed if name not in feeds]:
            given = list(feeds.keys())
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({given}).")

    def read(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return feeds that the session takes; optionals that are not fed are None."""
        self.check_names(feeds)
        for name in feeds:
            if name not in self._ports:
                raise InvalidArgument(f"Invalid input name: {name}")
        found: dict[str, Any] = dict(self._absent)
        for name, value in feeds.items():
            data = value.content if isinstance(value, OrtValue) else value
            type_ = self._tensors.get(name)
            found[name] = data if type_ is None else _tensor(self._ports[name], type_, data)
        return found


def _tensor(port: Port, type_: TensorType, data: Any) -> Any:
    """Return an array for a tensor, or raise ONNX Runtime's error."""
    if hasattr(data, "__dlpack__") and not isinstance(data, np.ndarray):
        return data  # the session describes what is wrong with it
    if data is None:
        raise OrtFail(f"Missing Input: {port.name}", hint="feed an array")
    if isinstance(data, (str, bytes, Mapping)):
        raise RuntimeError(
            f"Input must be a list of dictionaries or a single numpy array for input '{port.name}'."
        )
    if not isinstance(data, (np.ndarray, list, tuple)):
        raise RuntimeError(f"Unable to handle object of type {type(data)}")
    array = _array(port, type_, data)
    if array.dtype != type_.dtype.numpy:
        raise InvalidArgument(
            f"Unexpected input data type. Actual: (tensor({_name(array.dtype)})) ,"
            f" expected: (tensor({element_name(type_.dtype)}))"
        )
    _check_shape(port.name, array.shape, type_)
    return array


def _array(port: Port, type_: TensorType, data: Any) -> npt.NDArray[Any]:
    """Return an array; lists get the input's type, and texts become str."""
    if isinstance(data, np.ndarray) and not type_.dtype.is_string:
        return data
    try:
        made = np.array(data, None if type_.dtype.is_string else type_.dtype.numpy)
    except (ValueError, TypeError, OverflowError) as e:
        raise RuntimeError(f"Input '{port.name}' is a list that is no array: {e}") from e
    if not type_.dtype.is_string or made.dtype.kind not in "USO":
        return made
    texts = np.empty(made.shape, object)
    texts.reshape(-1)[:] = [x.decode() if isinstance(x, bytes) else str(x) for x in made.flat]
    return texts


def _check_shape(name: str, shape: tuple[int, ...], type_: TensorType) -> None:
    wanted = type_.shape
    if wanted is None:
        return
    if len(shape) != len(wanted):
        raise InvalidArgument(
            f"Invalid rank for input: {name} Got: {len(shape)} Expected: {len(wanted)} {_FIX}"
        )
    pairs = enumerate(zip(shape, wanted, strict=True))
    wrong = [(i, have, want) for i, (have, want) in pairs if isinstance(want, int) and have != want]
    if wrong:
        listed = "".join(f"\n index: {i} Got: {have} Expected: {want}" for i, have, want in wrong)
        raise InvalidArgument(
            f"Got invalid dimensions for input: {name} for the following indices{listed}\n {_FIX}"
        )


def _name(dtype: np.dtype[Any]) -> str:
    """Return ONNX Runtime's name of a numpy type; numpy's where ONNX has none."""
    from monograph.ir import from_numpy

    try:
        return element_name(from_numpy(dtype))
    except MonographError:
        return dtype.name
