"""The states of random ops on a device: memory at fixed addresses, that kernels count up.

A state belongs to its ops, not to an executable: all that draw from it on one device share it. It
starts from where the host's is then, on the host itself it is the same memory, and it goes with
that. An executable holds what its own launches use.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

import torch

from monograph.ops.random import Turns
from monograph.program.legalise.lower_random import states_of
from monograph.program.program import Program
from monograph.runtime.gpu.driver.devices import Device
from monograph.runtime.gpu.tensors import from_numpy

_lock = threading.Lock()
_known: WeakKeyDictionary[Turns, dict[torch.device, torch.Tensor]] = WeakKeyDictionary()
"""By the host's state, and the place."""


def states_on(device: Device, program: Program) -> dict[str, torch.Tensor]:
    """The states that a program draws from, by the name of the input that stands for each."""
    names = dict(zip(program.graph.inputs, program.graph.input_names, strict=True))
    return {names[v]: _on(device, state) for v, state in states_of(program.graph).items()}


def _on(device: Device, state: Turns) -> torch.Tensor:
    with _lock:
        places = _known.setdefault(state, {})
        found = places.get(device.place)
        if found is None:
            found = places[device.place] = from_numpy(state.count).to(device.place)
        else:  # it may have been made on another stream than whoever asks now will run on
            device.used([found])
        return found
