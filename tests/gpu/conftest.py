"""Without torch and triton these tests say so and do not run; see `make test-codegen`."""

from __future__ import annotations

import importlib.util
import os

import pytest

MISSING = [n for n in ("torch", "triton") if importlib.util.find_spec(n) is None]
collect_ignore_glob = ["*test_*.py"] if MISSING else []
DEVICE = os.environ.get("MONOGRAPH_TEST_DEVICE", "")
SHARE = os.environ.get("MONOGRAPH_TEST_SHARE", "")
"""The share of the tests to run, as "2/16": see `tests.gpu.sweep`."""
if not MISSING and not DEVICE:
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not MISSING:
        where = f"a {DEVICE} device" if DEVICE else "Triton's interpreter"
        terminalreporter.write_line(f"GPU kernels were tested by {where}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if SHARE:
        which, shares = map(int, SHARE.split("/"))
        items[:] = items[which::shares]
