"""Fixtures of every test: no cache of the user, one kind of terminal; tests left out are listed."""

from __future__ import annotations

import importlib.util

import pytest

TERMINAL = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES")
"""Variables that change how a text is written to a terminal."""


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Compiled objects go to a directory that goes with the test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONOGRAPH_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def fixed_terminal() -> object:
    """Texts have the form of one terminal, whichever runs the tests: see `TERM=dumb`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        for name in TERMINAL:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def fixed_cost() -> object:
    """Rewrites go by the default costs: tests that assert them must not depend on the host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("monograph.runtime.cpu.host_cost._measured", lambda *_: None)
        yield


@pytest.fixture(autouse=True)
def unchecked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that look at kernels' text, their speed or their keys want them without checks."""
    if request.node.get_closest_marker("unchecked") is not None:
        monkeypatch.setenv("MONOGRAPH_CHECKED", "0")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The tests of a whole folder are left out without torch: no skip would show."""
    missing = [n for n in ("torch", "triton") if importlib.util.find_spec(n) is None]
    if missing:
        without = " and ".join(missing)
        terminalreporter.write_line(
            f"GPU kernels were not tested, for want of {without}: `make test-codegen` does that"
        )
