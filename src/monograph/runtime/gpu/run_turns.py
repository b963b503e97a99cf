"""Turns of runs: programs that share temporaries run one after the other, on any streams."""

from __future__ import annotations

import threading

import torch

from monograph.runtime.gpu.driver.devices import Device
from monograph.runtime.gpu.memory import SLACK

NOBODY = -2
"""In the place of a stream: another program has run since."""


class RunTurns:
    """The temporaries of programs that take turns, their lock, and the order of their streams."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.lock = threading.RLock()
        self._stream = device.stream()
        self._last = 0
        self._arena: torch.Tensor | None = None

    def arena(self, nbytes: int) -> torch.Tensor:
        """Return memory for temporaries. Programs that have a smaller one keep it."""
        if self._arena is None or self._arena.numel() < nbytes + SLACK:
            # Growing by half at least bounds the sum of all that are kept.
            held = 0 if self._arena is None else self._arena.numel()
            room = max(nbytes + SLACK, held + held // 2)
            self._arena = torch.empty(room, dtype=torch.uint8, device=self.device.place)
        return self._arena

    @property
    def stream(self) -> int:
        """The stream of the last run."""
        return self._stream

    def stream_of(self, program: object) -> int:
        """Return the stream of a program's last run; `NOBODY` if another has run since."""
        return self._stream if self._last in (0, id(program)) else NOBODY

    def take(self, program: object, stream: int) -> None:
        """Note that a program runs next, on a stream."""
        self._last, self._stream = id(program), stream
