"""A small model, and what it answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.report import models


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    return models.save(models.LINEAR, tmp_path, "linear.onnx")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Inputs and right outputs of the linear model, worked out by hand."""
    x = np.array([[1, 0, 0], [0, 1, 1]], np.float32)
    y = np.array([[1.5, 1.5], [8.5, 9.5]], np.float32)
    path = tmp_path / "io.npz"
    np.savez(path, **{"in:x": x, "out:y": y, "out:best": np.array([1])})
    return path
