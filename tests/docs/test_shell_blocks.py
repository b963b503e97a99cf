"""Commands that the pages name exist with their options, and the cheap ones run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from monograph.cli.main import app
from tests.docs.pages import PAGES, ROOT, Block, blocks, is_missing

PROGRAM: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = PROGRAM.commands
GUIDES = [page for page in PAGES if page.name != "CHANGELOG.md"]
SHELL = [b for page in GUIDES for b in blocks(page, "sh")]
_INLINE = re.compile(r"`(monograph [a-z][^`]*)`", re.DOTALL)
MAKE = re.compile(r"\bmake ((?:[A-Z]+=\S+ )*)([a-z][a-z-]*)")


def _lines(block: Block) -> list[str]:
    joined = block.text.replace("\\\n", " ")
    return [line.split(" #")[0].strip() for line in joined.splitlines()]


def _commands(block: Block) -> list[str]:
    return [line for line in _lines(block) if line.startswith("monograph ")]


def _named(page: Path) -> list[str]:
    """Every command line that a page names, in blocks or in a sentence."""
    inline = [" ".join(text.split()) for text in _INLINE.findall(page.read_text())]
    return [c for b in blocks(page, "sh") for c in _commands(b)] + inline


def _words(command: str) -> list[str]:
    return shlex.split(command.split(" > ")[0].split(" | ")[0])[1:]


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_and_options_exist(page: Path) -> None:
    for command in _named(page):
        words = _words(command)
        if words[0] == "COMMAND":
            continue
        of_program = words[0].startswith("-")
        assert of_program or words[0] in COMMANDS, f"{page.name}: {command}"
        parameters = (PROGRAM if of_program else COMMANDS[words[0]]).params
        known = {o for p in parameters for o in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}
        given = {w.split("=")[0] for w in words if re.match(r"--?[a-z]", w)}
        assert given <= known, f"{page.name}: {command} has no {given - known}"


def test_pages_name_every_command() -> None:
    named = {_words(c)[0] for page in GUIDES for c in _named(page)}
    assert named >= set(COMMANDS)


def test_every_option_of_a_command_is_documented() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text()
    for name, command in COMMANDS.items():
        for parameter in command.params:
            longest = max(parameter.opts, key=len)
            if longest.startswith("-") and not parameter.hidden:
                assert re.search(rf"`(-\w, )?{longest}[` /]", text), f"{name} {longest}"


RUN = [b for b in SHELL if not b.not_run and b.needs != "server" and _commands(b)]


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize("block", RUN, ids=str)
def test_commands_run(block: Block) -> None:
    if is_missing(block):
        pytest.skip(f"{block} needs {block.needs}")
    for command in _commands(block):
        done = CliRunner().invoke(app, [*_words(command), *block.shortened.split()])
        assert done.exit_code == 0, f"{command}\n{done.output}"
        _, redirected, file = command.partition(" > ")
        if redirected:
            Path(file).write_text(done.stdout)


def test_no_line_of_a_block_is_left_out_unnoticed() -> None:
    """`test_migration.py` runs the program; `diff` only shows two files that other lines write."""
    run = [b for b in SHELL if not b.not_run and b.needs != "server"]
    other = {x for b in run for x in _lines(b) if x and not x.startswith("monograph ")}
    assert other == {
        "python -m monograph.onnxruntime program.py model.onnx",
        "diff before.txt after.txt",
    }


def test_make_targets_exist() -> None:
    known = set(re.findall(r"^([a-z][a-z-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"test", "bench-gpu", "bench-decode-cpu"} <= known
    seen: set[str] = set()
    for page in GUIDES:
        code = [line for b in blocks(page, "sh") for line in _lines(b)]
        code += re.findall(r"`(make [^`]+)`", page.read_text())
        named = {m[2] for line in code for m in MAKE.finditer(" ".join(line.split()))}
        assert named <= known, f"{page.name} names {named - known}"
        seen |= named
    assert {"test", "bench-gpu"} <= seen, "the pattern cuts names short"
