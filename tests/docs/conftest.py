"""A working folder with the files that the pages' examples use."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.fixtures import write_files


@pytest.fixture(scope="session")
def example_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models; examples may add files, and change none of these."""
    folder = tmp_path_factory.mktemp("examples")
    write_files(folder)
    return folder


@pytest.fixture
def in_folder(
    example_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.MonkeyPatch]:
    """Run the test in a folder of its own that links to the models."""
    for file in example_files.iterdir():
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("monograph")
    level = logger.level
    yield monkeypatch
    logger.setLevel(level)  # an example sets it
