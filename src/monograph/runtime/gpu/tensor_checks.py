"""Checks whether tensors of the caller can be used as they are, with reasons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from monograph.errors import FeedError
from monograph.runtime.dlpack import is_foreign
from monograph.runtime.gpu.bound_program import VECTOR, DevicePort
from monograph.runtime.gpu.tensors import is_plain, torch_type


def imported(data: Any) -> Any:
    """Return a feed; a tensor of another library as a torch tensor."""
    if isinstance(data, torch.Tensor) or not is_foreign(data):
        return data
    return torch.from_dlpack(data)


def refuse_misfit(slot: DevicePort, data: torch.Tensor) -> None:
    """Refuses a tensor of another type or shape."""
    if tuple(data.shape) != slot.shape or data.dtype != torch_type(slot.dtype):
        raise FeedError(
            f"the input {slot.name} has another type",
            expected=f"{torch_type(slot.dtype)} {list(slot.shape)}",
            given=f"{data.dtype} {list(data.shape)}",
        )


def where_else(data: Any, place: torch.device) -> str:
    """Return where an input or output is; "" if it is on the device."""
    if not isinstance(data, torch.Tensor):
        return "it is on the host"
    return f"it is on {data.device}" if data.device != place else ""


def why_copied(data: Any, place: torch.device) -> str:
    """Return why an input must be copied; "" if it need not be."""
    if not isinstance(data, torch.Tensor):
        return "it is on the host"
    if data.device != place:
        return f"it is on {data.device}"
    if not data.is_contiguous():
        return "it is strided"
    if not is_plain(data):
        return "it is negated when read"
    return "it is misaligned" if data.data_ptr() % VECTOR else ""


def why_not_written(given: Any, others: Iterable[Any], place: torch.device) -> str:
    """Return why kernels cannot write to the caller's memory; "" if they can."""
    if not isinstance(given, torch.Tensor) or given.device != place:
        return ""
    if not given.is_contiguous():
        return "it is strided"
    if not is_plain(given):
        return "it is negated when read"
    start, end = _range(given)
    for other in others:
        if isinstance(other, torch.Tensor) and other.device == place:
            first, last = _range(other)
            if first < end and start < last:
                return "it overlaps another"
    return ""


def why_copied_back(given: Any, place: torch.device) -> str:
    """Return why an output is copied to the caller's memory; "" if it need not be."""
    if given is None:
        return ""
    misaligned = isinstance(given, torch.Tensor) and given.data_ptr() % VECTOR
    return where_else(given, place) or ("it is misaligned" if misaligned else "")


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses that a tensor's elements lie in."""
    if not tensor.numel():
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def lands_on_host(given: Any, as_tensors: bool) -> bool:
    """Return True if an output is an array on the host."""
    return isinstance(given, np.ndarray) or (given is None and not as_tensors)
