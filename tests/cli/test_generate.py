"""`monograph generate`, and `monograph bench` of a folder with a decoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.decoders import build

from monograph import Generator
from monograph.report.commands import bench
from monograph.report.commands.decode import Decoding, bandwidth, decoding_lines, measured
from tests.cli.calls import call

PROMPT = "3,14,15,92"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("decoder"), "tiny-llama")


def run(*arguments: object, code: int = 0) -> tuple[str, str]:
    result = call(*arguments)
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_tokens_are_streamed_and_figures_follow(folder: Path) -> None:
    expected = Generator(folder, "reference", max_length=64).generate([3, 14, 15, 92], 8)
    out, figures = run("generate", folder, "--tokens", PROMPT, "-n", 8, "--max-length", 64)
    assert [int(t) for t in out.split()] == expected
    for text in ("prompt: 4 tokens", "8 tokens", "1 launch a token", "is the floor"):
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


def test_why_it_stopped(folder: Path) -> None:
    cases = [
        (["-n", 5], "at the limit of 5 new tokens", ("max_new_tokens", None)),
        (["-n", 1], "at the limit of 1 new token", ("max_new_tokens", None)),
        (["-n", 8, "--stop"], "at stop token", ("stop_token", 0)),
        (["--max-length", 20], "at the maximum length, 20 tokens", ("max_length", None)),
    ]
    tokens = Generator(folder, "reference", max_length=64, stop=()).generate([9], 3)
    for options, text, (stopped, token) in cases:
        if "--stop" in options:
            options, token = [*options, tokens[-1]], tokens[-1]
        arguments = ["--tokens", "9", "--target", "reference", *options]
        assert f"stopped: {text}" in run("generate", folder, *arguments)[1]
        found = json.loads(run("generate", folder, *arguments, "--json")[0])
        assert (found["stopped"], found["stop_token"]) == (stopped, token)


def test_a_short_generation_has_figures_of_its_own(folder: Path) -> None:
    arguments = ["--tokens", "9", "-n", 1, "--target", "reference"]
    found = json.loads(run("generate", folder, *arguments, "--json")[0])
    assert found["prefill_seconds"] > 0
    assert found["tokens_per_second"] is found["of_floor"] is None
    figures = run("generate", folder, *arguments)[1]
    assert "prompt: 1 token in" in figures
    assert "decode: 1 token\n" in figures


def test_more_than_the_floor_is_explained() -> None:
    def lines(bandwidth: float) -> str:
        found = Decoding("cpu", 4, 8, 0.1, 0.7, 7, 1.0, 1000, bandwidth, "max_new_tokens", None)
        return "\n".join(decoding_lines(found))

    assert "50% of it\n" in lines(20_000.0)
    assert "200% of it (over 100%: it was read from caches" in lines(5_000.0)


def test_the_floor_is_read_without_a_pause(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is slow behind a rest gives all it has after half a second."""
    now = rested = 0.0

    class Reads:
        def __init__(self, *_: Any) -> None:
            nonlocal rested
            rested = now

        def run(self, _: Any) -> None:
            nonlocal now
            now += 0.02 if now - rested < 0.5 else 0.01

    monkeypatch.setattr(bench, "compile_graph", Reads)
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: now))
    generator = Generator(folder, "reference", max_length=32)
    assert bandwidth(generator) == pytest.approx((1 << 26) / 0.01)


def test_usual_positions_are_those_that_fit(folder: Path) -> None:
    found = run("bench", folder, "--json")
    assert [p["position"] for p in json.loads(found[0])["positions"]] == [16, 477]
    assert "note: --positions 16,477: 512 tokens have no room for more" in found[1]
    assert "expected: 0..508" in run("bench", folder, "--positions", "509", code=2)[1]
    error = run("bench", folder, "--positions", 100, "--max-length", 64, code=2)[1]
    assert "what to do: raise --max-length" in error
    run("bench", folder, "--positions", 8, "--max-length", 64, "--target", "reference")
    error = run("bench", folder, "--max-length", 3, code=2)[1]
    assert "the cache must have room for the timed steps" in error
    assert "expected: room for 4 tokens at least" in error


def test_positions_that_a_decoder_without_a_configuration_has_tables_for(tmp_path: Path) -> None:
    plain = build(tmp_path, "tiny-gpt2", style="optimum")
    for file in plain.glob("*.json"):
        file.unlink()
    found = run("bench", plain, "--json")
    assert [p["position"] for p in json.loads(found[0])["positions"]] == [16, 477]
    assert "512 tokens have no room for more" in found[1]
    error = run("bench", plain, "--positions", 600, "--target", "reference", code=2)[1]
    assert "what to do: the decoder has positions for 512 tokens\n" in error
    error = run("bench", plain, "--positions", 600, "--max-length", 64, code=2)[1]
    assert "what to do: raise --max-length\n" in error


@pytest.mark.parametrize(
    "option",
    [["--against", "onnxruntime"], ["--dim", "a=1"], ["--seconds", "5"], ["--seed", "3"]],
)
def test_options_that_change_nothing_are_refused(folder: Path, option: list[str]) -> None:
    error = run("bench", folder, *option, code=2)[1]
    assert f"`bench` of a folder does not take {option[0]}" in error
    for useless in (["--positions", "5"], ["--max-length", "64"]):
        error = run("bench", folder / "model.onnx", *useless, code=2)[1]
        assert f"`bench` of a model file does not take {useless[0]}" in error


@pytest.mark.parametrize("command", ["inspect", "run", "verify", "profile", "explain"])
def test_a_folder_is_no_model(folder: Path, command: str) -> None:
    error = run(command, folder, code=2)[1]
    assert f"give the file itself, {folder / 'model.onnx'}" in error
    assert "monograph generate" in error


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
        ([], "give one prompt"),
        (["--tokens", "1,x"], "`--tokens` must be comma-separated integers"),
        (["--tokens", "1,900"], "token ids are out of range"),
        (["--tokens", "1,-1"], "token ids are out of range"),
        (["--tokens", "1", "--prompt", "a"], "give one prompt"),
        (["--tokens", "1", "--stop", "900"], "no such stop token"),
        (["--tokens", "1", "--stop=-5"], "expected: an id in 0..511"),
        (["--prompt", "a"], "text needs a tokenizer"),
    ],
)
def test_bad_usage(folder: Path, arguments: list[str], message: str) -> None:
    assert message in run("generate", folder, *arguments, code=2)[1]


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ("-4", "`--positions` must be 0 or more"),
        ("16,x", "`--positions` must be comma-separated integers"),
    ],
)
def test_positions_that_are_none(folder: Path, positions: str, message: str) -> None:
    assert message in run("bench", folder, "--positions", positions, code=2)[1]


def test_what_was_generated_is_shown_before_an_error(folder: Path) -> None:
    out, error = run(
        "generate", folder, "--tokens", PROMPT, "-n", 30, "--max-length", 12, code=2
    )  # fmt: skip
    assert len(out.split()) == 8
    assert "the maximum length is reached" in error
    assert "what to do: raise --max-length\n" in error
    error = run("generate", folder, "--tokens", PROMPT, "--max-length", 4, code=2)[1]
    assert "raise --max-length, or shorten the prompt" in error


def test_json_of_an_error_has_what_was_generated(folder: Path) -> None:
    arguments = ["--tokens", PROMPT, "-n", 30, "--max-length", 12, "--json"]
    expected = Generator(folder, "reference", max_length=12).generate([3, 14, 15, 92])
    out, error = run("generate", folder, *arguments, code=2)
    found = json.loads(out)
    assert not found["ok"]
    assert found["tokens"] == expected
    assert "the maximum length is reached" in found["error"]
    assert "raise --max-length" in found["error"]
    assert error == f"error: {found['error']}\n"


def test_what_is_refused_is_refused_before_anything_is_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(Generator, "warm_up", never)
    for arguments, message in (
        (["--tokens", "1,900"], "token ids are out of range"),
        (["--tokens", "1", "--stop", "900"], "no such stop token"),
        (["--tokens", PROMPT, "--max-length", 4], "the prompt is longer than the maximum"),
    ):
        assert message in run("generate", folder, *arguments, code=2)[1]


@pytest.mark.parametrize(("target", "launches"), [("reference", 0), ("cpu", 1)])
def test_launches_of_one_launch_are_those_of_its_session(
    folder: Path, target: str, launches: int
) -> None:
    generator = Generator(folder, target, max_length=32, stop=())
    generator.generate([3, 14], 9, one_launch=True)
    assert generator.engine.loop_session().stats["launches_per_run"] == launches
    found = measured(generator, 2, 9, 9)
    assert found.launches_per_token == launches / 8
    text = "0.125 launches a token" if launches else "nothing is launched"
    assert text in decoding_lines(found)[1]


def test_more_than_the_tables_have_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    config = json.loads((copy / "genai_config.json").read_text())
    config["model"]["context_length"] = 100_000
    (copy / "genai_config.json").write_text(json.dumps(config))
    error = run("generate", copy, "--tokens", PROMPT, "--target", "reference", code=2)[1]
    assert "what to do: give --max-length 512, or less" in error


def test_a_folder_without_a_decoder(tmp_path: Path) -> None:
    for command in (["generate", tmp_path, "--tokens", "1"], ["bench", tmp_path]):
        assert "there is no decoder in the folder" in run(*command, code=2)[1]
