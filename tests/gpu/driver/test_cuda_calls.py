"""Page locks of the CUDA driver: what is called, in which capture mode, and what undoes it."""

from __future__ import annotations

from typing import Any

import pytest

from monograph.runtime.gpu.driver import cuda_calls
from monograph.runtime.gpu.driver.graphs import GraphError
from tests.gpu.driver.bindings import Bindings, real

BAD = real.CUresult.CUDA_ERROR_INVALID_VALUE
RELAXED = real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
LOCK, UNLOCK, MODE = "cuMemHostRegister", "cuMemHostUnregister", "cuThreadExchangeStreamCaptureMode"


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Bindings:
    made = Bindings()
    monkeypatch.setattr(cuda_calls, "cu", made)
    return made


def names(bindings: Bindings) -> list[str]:
    return [name for name, _ in bindings.calls]


def within(call: str) -> list[str]:
    """Return the calls around one that must not invalidate captures of other threads."""
    return ["cuCtxPushCurrent", MODE, call, MODE, "cuCtxPopCurrent"]


def modes(bindings: Bindings) -> list[Any]:
    """Return the capture modes that were set."""
    return [mode for (mode,) in bindings.named(MODE)]


def test_lock_registers_the_pages_and_close_releases_them(bindings: Bindings) -> None:
    handle = cuda_calls.lock_pages("context", 4096, 8192)
    assert names(bindings) == within(LOCK)
    assert bindings.named(LOCK) == [(4096, 8192, real.CU_MEMHOSTREGISTER_PORTABLE)]
    first, last = modes(bindings)
    assert first == RELAXED
    assert last != RELAXED
    bindings.calls.clear()
    handle.close()
    assert names(bindings) == within(UNLOCK)
    assert bindings.named(UNLOCK) == [(4096,)]
    handle.close()
    assert len(bindings.named(UNLOCK)) == 1


def test_failed_lock_is_an_error_and_restores_the_thread(bindings: Bindings) -> None:
    bindings.errors[LOCK] = BAD
    with pytest.raises(GraphError, match="CUDA_ERROR_INVALID_VALUE"):
        cuda_calls.lock_pages("context", 4096, 8192)
    assert names(bindings) == within(LOCK)
    assert len(bindings.named(UNLOCK)) == 0


def test_context_that_was_not_pushed_is_not_popped(bindings: Bindings) -> None:
    bindings.errors["cuCtxPushCurrent"] = BAD
    handle = cuda_calls.lock_pages("context", 4096, 8192)
    assert names(bindings) == within(LOCK)[:-1]
    handle.close()
