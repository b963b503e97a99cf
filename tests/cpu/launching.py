"""Small native functions for tests of the runtime."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from monograph.codegen.llvm.barrier import BARRIER_BYTES, build_barrier
from monograph.codegen.llvm.features import Features, host_features
from monograph.runtime.native import NativeCode, compile_module


def function(address: int, returns: Any, *arguments: Any) -> Any:
    """A native function as ctypes calls it."""
    return ctypes.CFUNCTYPE(returns, *arguments)(address)


def load(text: str, *names: str, features: Features | None = None) -> NativeCode:
    """A module of text in memory, with the barrier at hand."""
    features = features or host_features()
    barrier = build_barrier(features)
    whole = "\n".join([*sorted(barrier.declarations), barrier.text(), text])
    return NativeCode([compile_module(whole, features)], names)


class Context:
    """What a launch hands to its threads: barrier state, then numbers for the test."""

    def __init__(self, count: int) -> None:
        raw = np.zeros(BARRIER_BYTES + 8 * count + 64, np.uint8)
        start = -raw.ctypes.data % 64
        self.address = raw.ctypes.data + start
        self.numbers = raw[start + BARRIER_BYTES :][: 8 * count].view(np.int64)
