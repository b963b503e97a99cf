"""Each test runs twice: on Monograph's module, and on ONNX Runtime's where that is installed."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

OURS, THEIRS = "monograph.onnxruntime", "onnxruntime"


@pytest.fixture(params=[OURS, THEIRS])
def ort(request: pytest.FixtureRequest) -> Any:
    """The module that a test is about."""
    if request.param == THEIRS:
        return pytest.importorskip(THEIRS)
    return importlib.import_module(OURS)


@pytest.fixture
def state(ort: Any) -> Any:
    """The internal module of the same implementation that defines its exceptions."""
    return importlib.import_module(f"{ort.__name__}.capi.onnxruntime_pybind11_state")


@pytest.fixture
def collection(ort: Any) -> Any:
    """The internal module of the same implementation that defines its sessions."""
    return importlib.import_module(f"{ort.__name__}.capi.onnxruntime_inference_collection")
