"""Torch tensors as the feeds of a session, and its outputs as torch tensors; memory is shared."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from monograph.errors import FeedError

_NARROW: dict[Any, tuple[Any, Any]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: (torch.uint8, ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: (torch.uint8, ml_dtypes.float8_e5m2fnuz),
}
"""Types that numpy lacks: the integers of the same width, and the type of `ml_dtypes`."""
_TORCH_OF = {np.dtype(narrow): (bits, kind) for kind, (bits, narrow) in _NARROW.items()}


def to_feed(given: Any, pairs: bool = False) -> Any:
    """Return what a session takes for a tensor or a Python number.

    A tensor of the host becomes an array in its memory; a tensor of a GPU stays as it is. `pairs`
    makes pairs of real numbers of complex ones.
    """
    if not isinstance(given, torch.Tensor):
        return np.asarray(given)
    given = given.detach()
    if pairs:
        given = torch.view_as_real(given.resolve_conj())
    if given.device.type == "cuda":
        return given
    if given.device.type != "cpu":
        raise FeedError(
            "a tensor must be in the memory of the host or of a GPU",
            given=f"a tensor on the device {given.device}",
            hint='move it with .to("cpu")',
        )
    given = given.resolve_conj().resolve_neg()
    if given.dtype in _NARROW:
        bits, narrow = _NARROW[given.dtype]
        return given.view(bits).numpy().view(narrow)
    return given.numpy()


def to_result(given: Any, device: Any, number: bool, pairs: bool) -> Any:
    """Return an output of a session as torch has it: a tensor, or a Python number."""
    made = to_tensor(given, device)
    if pairs:
        made = torch.view_as_complex(made.contiguous())
    return made.item() if number else made


def to_tensor(given: Any, device: Any = None) -> Any:
    """Return an output of a session as a tensor on a device; by default where it is."""
    if isinstance(given, torch.Tensor):
        return given if device is None else given.to(device)
    array = np.asarray(given)
    if array.dtype in _TORCH_OF:
        bits, kind = _TORCH_OF[array.dtype]
        made = torch.from_numpy(array.view(np.dtype(str(bits).removeprefix("torch.")))).view(kind)
    else:
        made = torch.from_numpy(array if array.flags.writeable else array.copy())
    return made if device is None else made.to(device)


def target_of(tensors: Any) -> str | None:
    """Return the target that runs where tensors are; None leaves the choice to the configuration.

    A tensor of the host does not decide.
    """
    devices = {t.device for t in tensors if isinstance(t, torch.Tensor)} - {torch.device("cpu")}
    for device in devices:
        if device.type == "cuda":
            return f"gpu:{device.index}" if device.index else "gpu"
    return None
