"""Calls that must not spoil what others record: waiting, and locking pages of the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from cuda.bindings import driver as cu

from monograph.runtime.gpu.driver.cuda_nodes import check
from monograph.runtime.gpu.driver.graphs import Handle

_RELAXED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
_EVERYWHERE = cu.CU_MEMHOSTREGISTER_PORTABLE
"""For all devices of the process: pages can be locked only once."""


def lock_pages(context: Any, address: int, nbytes: int) -> Handle:
    """Locks whole pages; they are let go with the handle, in whichever thread that is."""
    with _allowed(context):
        check(cu.cuMemHostRegister(address, nbytes, _EVERYWHERE))
    return Handle(address, partial(_let_go, context))


def _let_go(context: Any, address: int) -> None:
    with _allowed(context):
        cu.cuMemHostUnregister(address)


def undisturbed(call: Any, value: Any) -> Any:
    """The error of a call that would spoil what another thread records, if it were not said so."""
    (_, before) = cu.cuThreadExchangeStreamCaptureMode(_RELAXED)
    try:
        return call(value)[0]
    finally:
        cu.cuThreadExchangeStreamCaptureMode(before)


@contextmanager
def _allowed(context: Any) -> Iterator[None]:
    """Does not disturb what another thread records, and needs nothing of what this one has had."""
    (error,) = cu.cuCtxPushCurrent(context)
    (_, before) = cu.cuThreadExchangeStreamCaptureMode(_RELAXED)
    try:
        yield
    finally:
        cu.cuThreadExchangeStreamCaptureMode(before)
        if not int(error):
            cu.cuCtxPopCurrent()
