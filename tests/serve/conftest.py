"""Servers that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.models import repository
from tests.serve.process import ServerProcess, serving


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ServerProcess]:
    with serving(models, grpc=True) as made:
        yield made
