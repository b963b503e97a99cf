"""The states of random ops on a device: memory at fixed addresses, that kernels count up.

A state belongs to its op, not to an executable: all that draw from it on one device share it. It
starts from where the host's is then; on the host itself it is the same memory.
"""

from __future__ import annotations

import threading

import torch

from monograph.ir import Array
from monograph.program.draws import states_of
from monograph.program.program import Program
from monograph.runtime.gpu.devices import Device
from monograph.runtime.gpu.tensors import from_numpy

_lock = threading.Lock()
_known: dict[tuple[int, torch.device], tuple[Array, torch.Tensor]] = {}
"""By the host's state, which lives as long as the process, and the place."""


def states_on(device: Device, program: Program) -> dict[str, torch.Tensor]:
    """The states that a program draws from, by the name of the input that stands for each."""
    names = dict(zip(program.graph.inputs, program.graph.input_names, strict=True))
    return {names[v]: _on(device, state) for v, state in states_of(program.graph).items()}


def _on(device: Device, state: Array) -> torch.Tensor:
    key = id(state), device.place
    with _lock:
        if key not in _known:
            _known[key] = state, from_numpy(state).to(device.place)
        return _known[key][1]
