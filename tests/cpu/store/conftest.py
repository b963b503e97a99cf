"""A cache of its own for every test, and a model to keep there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cpu.store.kept import made, write


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "cache"
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", str(place))
    return place


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "model.onnx", made())


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile exact code where a test names no tier: most of these ask what is kept of it."""
    monkeypatch.setenv("MONOGRAPH_SPECIALISE", "now")
