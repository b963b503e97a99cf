"""Decoders on disk that several files of tests open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from benchmarks.decoders import build

from tests.generate.decoders import STYLES
from tests.generate.queued import Queue


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("decoder"), "tiny-llama")


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(built, tmp_path / "copy"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same decoder in every style."""
    made = {style: tmp_path_factory.mktemp(style) for style in STYLES}
    return {s: build(folder, "tiny-llama", style=s) for s, folder in made.items()}


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    """Lets decoders on the CPU run ahead."""
    return Queue(monkeypatch)
