"""Without torch and triton these tests say so and do not run; see `make test-codegen`."""

from __future__ import annotations

import importlib.util
import os

import pytest

MISSING = [n for n in ("torch", "triton") if importlib.util.find_spec(n) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []
DEVICE = os.environ.get("MONOGRAPH_TEST_DEVICE", "")
SHARE = os.environ.get("MONOGRAPH_TEST_SHARE", "")
"""Which of how many shares of the tests to run, as "2/16": see `tests.gpu.sweep`."""
if not MISSING and not DEVICE:
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_report_header() -> str:
    if MISSING:
        return f"GPU code generation: not tested, without {' and '.join(MISSING)}"
    if DEVICE:
        return f"GPU target: tested on a {DEVICE} device"
    return "GPU code generation: tested by Triton's interpreter"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if SHARE:
        which, shares = map(int, SHARE.split("/"))
        items[:] = items[which::shares]
