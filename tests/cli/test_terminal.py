"""Text on terminals: lines that fit, words that stay whole, and no left-over progress bar."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from monograph.report.render import console, progress
from monograph.report.render.console import table, wrapped
from monograph.report.render.progress import ProgressBar
from monograph.runtime.progress import READY
from tests.cli.calls import call
from tests.report import models

COMMANDS = [
    ("inspect", "--target", "cpu"),
    ("explain",),
    ("run",),
    ("bench", "--seconds", "0.1"),
    ("verify",),
    ("verify", "--per-step"),
    ("verify", "--replay"),
    ("verify", "--bisect"),
    ("profile", "--runs", "2"),
]


def words(text: str) -> set[str]:
    """The words of an output that are the same in each run, without figures, units and lines."""
    found = {w.strip(":,;().") for w in re.findall(r"[^\s┃│]+", text)}
    return {w for w in found if not re.search(r"[\d━─]", w)} - {"s", "ms", "us", "ns"}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_words_are_whole_at_any_width(
    command: tuple[str, ...], linear: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(width: int) -> str:
        monkeypatch.setattr(console, "console", lambda: console.Output(width=width))
        return call(command[0], linear, *command[1:]).stdout

    shown(200)  # later runs find the code in the cache, and say so
    expected = words(shown(200))
    for width in (60, 80):
        text = shown(width)
        assert expected <= words(text), expected - words(text)
        path = str(linear)
        longest = max(len(line.rstrip()) for line in text.splitlines() if path not in line)
        assert longest <= width


@pytest.mark.parametrize("width", [24, 40, 60, 80])
def test_a_table_that_does_not_fit_becomes_records(width: int) -> None:
    rows = table("the title", "name", "shape", "time", "ONNX nodes", right=(2,))
    rows.add_row("dense", "[1, 214]", "1.2 ms", "/model/layers.0/attention/MatMul and 5 more")
    rows.add_row("", "", "3 us", "", style="red")
    out = console.Output(width=width, file=io.StringIO())
    out.print(rows)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    for part in ("dense", "[1, 214]", "1.2 ms", "/model/layers.0/attention/MatMul", "3 us"):
        assert part in text
    assert ("name: dense" in text) == (width < 60)
    assert ("┃" in text) == (width >= 80)


def test_long_words_and_indents() -> None:
    def lines(text: str, width: int) -> list[str]:
        return [line.plain for line in wrapped(Text(text), width)]

    assert lines("", 10) == [""]
    assert lines("one two three", 8) == ["one two", "three"]
    assert lines("  one two three", 9) == ["  one two", "    three"]
    assert lines("a " + "x" * 30 + " b", 10) == ["a", "x" * 30, "b"]
    assert lines("rule     name", 40) == ["rule     name"]


@pytest.mark.parametrize("command", [("profile", "--runs", "2"), ("verify", "--per-step")])
def test_no_bar_is_left_when_results_are_shown(
    command: tuple[str, ...], linear: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[ProgressBar] = []

    def bar() -> ProgressBar:
        bars.append(ProgressBar(Console(file=io.StringIO(), force_terminal=True), delay=0))
        monkeypatch.setattr(progress, "_shown", bars)
        return bars[-1]

    def shown() -> Console:
        assert [b._display for b in bars] == [None]
        assert [b._timer for b in bars] == [None]
        return console.Output(width=80)

    monkeypatch.setattr(progress, "compile_bar", bar)
    monkeypatch.setattr(console, "console", shown)
    result = call(command[0], linear, *command[1:])
    assert result.exit_code == 0, result.output


def test_a_profile_is_timed_without_a_bar(linear: Path) -> None:
    from monograph.report.commands.execute import RunRequest
    from monograph.report.commands.profile import profile_model

    stages: list[str] = []
    request = RunRequest(linear, "cpu", progress=lambda stage, *_: stages.append(stage))
    profile_model(request, lambda _: None, runs=1, warm_ups=0)
    assert stages[-1] == READY


def test_a_dumb_terminal_gets_plain_lines_of_its_width(linear: Path) -> None:
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "60"}
    arguments = [sys.executable, "-m", "monograph", "profile", str(linear), "--runs", "2"]
    with subprocess.Popen(
        arguments, stdout=child, stderr=child, env=environment, close_fds=True
    ) as process:
        os.close(child)
        text = b""
        while True:
            try:
                read = os.read(parent, 4096)
            except OSError:  # Linux: the other end is closed
                break
            if not read:
                break
            text += read
    os.close(parent)
    assert process.returncode == 0, text
    assert b"\x1b" not in text
    assert max(map(len, text.decode().splitlines())) <= 60


def test_bench_on_the_cpu_does_not_speak_of_graphs(linear: Path, tmp_path: Path) -> None:
    shown = call("bench", linear, "--seconds", "0.1").stdout
    assert "1 launch, " in shown
    assert not re.search(r"captur|replay|rebind", shown)
    split = call("bench", models.save(models.SPLIT, tmp_path), "--seconds", "0.1").stdout
    assert "not one launch" in split
    assert not re.search(r"captur|replay|rebind", split)


@pytest.mark.parametrize("command", ["run", "verify", "generate", "compile"])
def test_narrow_help_names_options_in_full(command: str) -> None:
    environment = {**os.environ, "COLUMNS": "60"}
    arguments = [sys.executable, "-m", "monograph", command, "--help"]
    shown = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    assert "…" not in shown.stdout
    assert "--target" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 60
