"""Skips what needs packages that are not here, and counts from zero in every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def fresh_torch() -> Iterator[None]:
    torch = pytest.importorskip("torch", reason="torch is not installed: run `make test-torch`")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: run `make test-torch`")
    from monograph.compat.torch.counters import reset_stats

    torch.manual_seed(0)
    torch._dynamo.reset()
    reset_stats()
    yield
    torch._dynamo.reset()
