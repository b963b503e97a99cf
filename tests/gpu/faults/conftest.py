"""Every fault test gets a driver: of a device, or the fake one."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

MISSING = [n for n in ("torch", "triton") if importlib.util.find_spec(n) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: no other test may use the device meanwhile")


@pytest.fixture(params=[True, False], ids=["built", "recorded"])
def rig(request: pytest.FixtureRequest) -> Any:
    """Graphs that are built node by node, and such that are recorded from streams."""
    from tests.gpu.faults.rig import Rig

    return Rig(request.param)


@pytest.fixture(scope="module", autouse=True)
def _left_alone() -> Iterator[None]:
    """Freeze the objects that live before the tests: collections need not visit them each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
