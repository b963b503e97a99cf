"""Blocks of settings and data: the server reads its settings, and the rest parses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monograph.errors import ConfigError
from monograph.serve.settings import read_settings
from tests.docs.pages import PAGES, Block, blocks


def found(language: str) -> list[Block]:
    return [b for page in PAGES for b in blocks(page, language)]


@pytest.mark.parametrize("block", found("toml"), ids=str)
def test_settings_are_read_by_the_server(block: Block, tmp_path: Path) -> None:
    (tmp_path / "monograph.toml").write_text(block.text)
    read_settings(tmp_path)
    (tmp_path / "monograph.toml").write_text(f"{block.text}\n[unknown]\n")
    with pytest.raises(ConfigError):
        read_settings(tmp_path)


@pytest.mark.parametrize("block", found("json"), ids=str)
def test_json_parses(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", found("yaml"), ids=str)
def test_yaml_parses_and_its_arguments_are_options_of_the_server(block: Block) -> None:
    yaml = pytest.importorskip("yaml")
    import typer.main

    from monograph.cli.main import app

    content = yaml.safe_load(block.text)
    assert isinstance(content, dict)
    if content.get("kind") != "Deployment":
        return
    (container,) = content["spec"]["template"]["spec"]["containers"]
    command, *arguments = container["args"]
    program: Any = typer.main.get_command(app)
    program.commands[command].make_context(command, arguments)
