"""The progress bar of compilations: when it is shown, and what it says."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from monograph.report.render import progress
from monograph.report.render.progress import ProgressBar, compile_bar
from monograph.runtime.progress import READY, silent

ENVIRONMENT = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "25"}
"""Of a terminal that shows a live display, wherever the tests run."""


def terminal(kind: str = ENVIRONMENT["TERM"]) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    environment = {**ENVIRONMENT, "TERM": kind}
    return Console(file=text, force_terminal=True, width=80, _environ=environment), text


def shown(bar: ProgressBar) -> None:
    """Waits for the thread that shows the bar."""
    timer = bar._timer
    assert timer is not None
    timer.join(30)
    assert not timer.is_alive()


def test_work_that_is_over_soon_shows_nothing() -> None:
    console, text = terminal()
    bar = ProgressBar(console, delay=3600)
    bar("import", 0, 1)
    bar("compile", 1, 9)
    bar(READY, 1, 1)
    assert text.getvalue() == ""
    assert bar._timer is None


def test_work_that_takes_a_while_names_its_stages() -> None:
    console, text = terminal()
    bar = ProgressBar(console, delay=0)
    bar("rewrite", 3, 20)
    shown(bar)
    bar("compile", 4, 9)
    assert bar._display is not None
    bar._display.refresh()
    bar(READY, 1, 1)
    for part in ("rewrite", "3/20", "compile", "4/9"):
        assert part in text.getvalue()
    assert bar._display is None
    before = text.getvalue()
    bar(READY, 1, 1)
    assert text.getvalue() == before


def test_a_terminal_that_cannot_move_the_cursor_gets_no_control_codes() -> None:
    console, text = terminal("dumb")
    bar = ProgressBar(console, delay=0)
    bar("rewrite", 3, 20)
    shown(bar)
    bar(READY, 1, 1)
    assert "\x1b" not in text.getvalue()


@pytest.mark.parametrize("variables", [
    {"TERM": "dumb"}, {}, {"NO_COLOR": "1"}, {"CI": "true"}, {"TERM": "dumb", "CI": "true"},
    {"TTY_COMPATIBLE": "0"}, {"TTY_INTERACTIVE": "0"},
], ids=str)  # fmt: skip
def test_these_tests_do_not_depend_on_the_environment(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR", "CI", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, content in variables.items():
        monkeypatch.setenv(name, content)
    test_work_that_takes_a_while_names_its_stages()


def test_a_bar_can_be_used_again() -> None:
    console, text = terminal()
    bar = ProgressBar(console, delay=0)
    for stage in ("first", "second"):
        bar(stage, 0, 1)
        shown(bar)
        bar(READY, 1, 1)
        assert stage in text.getvalue()


def test_threads_may_report() -> None:
    console, _ = terminal()
    bar = ProgressBar(console, delay=0)
    bar("compile", 0, 8)
    shown(bar)
    threads = [threading.Thread(target=bar, args=("compile", i, 8)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bar(READY, 1, 1)
    assert bar._display is None


@pytest.mark.parametrize(("terminal", "kind", "shown"), [
    (True, "xterm-256color", True), (True, None, True), (True, "dumb", False),
    (True, "unknown", False), (False, "xterm-256color", False), (False, "dumb", False),
])  # fmt: skip
def test_only_a_terminal_that_redraws_lines_gets_a_bar(
    terminal: bool, kind: str | None, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert progress.DELAY_SECONDS == 1.0
    monkeypatch.setattr("sys.stderr", _Stream(terminal))
    monkeypatch.delenv("TERM", raising=False)
    if kind is not None:
        monkeypatch.setenv("TERM", kind)
    bar = compile_bar()
    assert isinstance(bar, ProgressBar) if shown else bar is silent


class _Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal
