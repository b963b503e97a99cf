"""`monograph generate`, and `monograph bench` of a folder with a decoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.decoders import build
from typer.testing import CliRunner

from monograph import Generator
from monograph.cli import app

PROMPT = "3,14,15,92"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("decoder"), "tiny-llama")


def run(*arguments: object, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_tokens_are_streamed_and_figures_follow(folder: Path) -> None:
    expected = Generator(folder, "reference", max_length=64).generate([3, 14, 15, 92], 8)
    out, figures = run("generate", folder, "--tokens", PROMPT, "-n", 8, "--max-length", 64)
    assert [int(t) for t in out.split()] == expected
    for text in ("prompt: 4 tokens", "8 tokens", "1 launches a token", "is the floor"):
        assert text in figures


@pytest.mark.parametrize("options", [[], ["--one-launch"], ["--temperature", "1", "--top-k", "9"]])
def test_json_is_one_object(folder: Path, options: list[str]) -> None:
    arguments = ["--tokens", PROMPT, "-n", 8, "--max-length", 64, "--json", *options]
    found = json.loads(run("generate", folder, *arguments)[0])
    assert found["ok"]
    assert len(found["tokens"]) == found["new_tokens"] == 8
    assert found["prompt_tokens"] == 4
    assert found["launches_per_token"] == (1 / 7 if "--one-launch" in options else 1.0)
    # Two layers of an f32 decoder: all matrices but the table of embeddings, and the norms.
    weights = 2 * (128 * (2 * 128 + 2 * 64) + 3 * 128 * 256) + 128 * 512 + 5 * 128
    cache = 2 * 2 * 2 * 32 * 8
    assert found["bytes_per_token"] == 4 * (weights + cache)
    assert found["of_floor"] > 0


def test_decode_steps_at_positions(folder: Path) -> None:
    found = json.loads(run("bench", folder, "--positions", "16,100", "--json")[0])
    assert [p["position"] for p in found["positions"]] == [16, 100]
    assert found["launches_per_token"] == 1.0
    more = [p["bytes"] for p in found["positions"]]
    assert more[1] - more[0] == 84 * 2 * 2 * 2 * 32 * 4
    assert "of the floor" in run("bench", folder, "--positions", "16")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is one prompt"),
        (["--tokens", "1,x"], "--tokens are numbers"),
        (["--tokens", "1,900"], "token ids are out of range"),
        (["--tokens", "1", "--prompt", "a"], "there is one prompt"),
        (["--tokens", "1", "--stop", "900"], "no such stop token"),
        (["--prompt", "a"], "text needs a tokenizer"),
    ],
)
def test_bad_usage(folder: Path, arguments: list[str], message: str) -> None:
    assert message in run("generate", folder, *arguments, code=2)[1]


def test_what_was_generated_is_shown_before_an_error(folder: Path) -> None:
    out, error = run(
        "generate", folder, "--tokens", PROMPT, "-n", 30, "--max-length", 12, code=2
    )  # fmt: skip
    assert len(out.split()) == 8
    assert "the maximum length is reached" in error


def test_a_folder_without_a_decoder(tmp_path: Path) -> None:
    for command in (["generate", tmp_path, "--tokens", "1"], ["bench", tmp_path]):
        assert "there is no decoder in the folder" in run(*command, code=2)[1]
