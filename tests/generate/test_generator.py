"""The Generator: tokens one by one or at once, state in place, sampling, text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.decoders import build

import monograph
from monograph import Generator
from monograph.errors import ConfigError, ExecutionError, FeedError

PROMPT = [3, 14, 15, 92, 65, 35, 8]
VOCABULARY = 512


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("decoder"), "tiny-llama")


def generator(folder: Path, target: str = "cpu", **options: Any) -> Generator:
    return Generator(folder, target, **{"max_length": 64, "stop": (), **options})


# One by one


def test_step_by_step_is_the_same_as_at_once(folder: Path) -> None:
    g = generator(folder)
    expected = g.generate(PROMPT, 12)
    g.reset()
    g.append_tokens(PROMPT)
    found = []
    for _ in range(12):
        assert not g.is_done()
        g.generate_next_token()
        found.append(int(g.get_next_tokens()[0]))
    assert found == expected
    assert g.get_sequence(0).tolist() == PROMPT + expected
    assert g.token_count() == len(PROMPT) + 12
    assert list(g.stream(PROMPT, 12)) == expected


def test_tokens_may_be_appended_behind_generated_ones(folder: Path) -> None:
    g = generator(folder)
    g.append_tokens(PROMPT)
    for _ in range(3):
        g.generate_next_token()
    g.append_tokens([7, 7, 9])
    g.generate_next_token()
    whole = g.get_sequence(0).tolist()
    assert g.generate(whole[:-1], 1) == whole[-1:]


def test_an_appended_token_takes_the_place_of_the_chosen_one(folder: Path) -> None:
    g = generator(folder)
    for token in PROMPT:
        g.append_tokens([token])
    g.generate_next_token()
    assert g.get_sequence(0).tolist() == PROMPT + g.generate(PROMPT, 1)


def test_rewinding_forgets_what_lies_behind(folder: Path) -> None:
    g = generator(folder)
    g.append_tokens(PROMPT)
    for _ in range(6):
        g.generate_next_token()
    first = g.get_sequence(0).tolist()
    g.rewind_to(len(PROMPT) + 2)
    assert g.get_sequence(0).tolist() == first[: len(PROMPT) + 2]
    for _ in range(4):
        g.generate_next_token()
    assert g.get_sequence(0).tolist() == first
    g.rewind_to(4)
    g.append_tokens(PROMPT[4:])
    for _ in range(6):
        g.generate_next_token()
    assert g.get_sequence(0).tolist() == first
    g.rewind_to(0)
    assert g.token_count() == 0


def test_stop_tokens_end_a_sequence_each(folder: Path) -> None:
    g = generator(folder)
    prompts = [PROMPT, [44, 8]]
    whole = g.generate(prompts, 20)
    stop = whole[0][5]
    cut = [row[: row.index(stop) + 1] if stop in row else row for row in whole]
    assert g.generate(prompts, 20, stop=[stop]) == cut
    assert g.generate(prompts, 20, stop=[stop], one_launch=True) == cut
    assert [len(row) for row in cut] != [20, 20]
    assert generator(folder, stop=stop).generate(PROMPT, 20) == cut[0]


def test_stop_tokens_come_from_the_configuration(folder: Path) -> None:
    assert Generator(folder, "reference", max_length=16).stop_tokens == (1,)


# State


def test_every_step_is_the_same_executable_and_copies_nothing(folder: Path) -> None:
    g = generator(folder, threads=1)
    g.append_tokens(PROMPT)
    g.generate_next_token()
    g.generate_next_token()
    before = g.session.stats
    caches = {name: x.ctypes.data for name, x in g.engine.state.items()}
    for _ in range(20):
        g.generate_next_token()
    after = g.session.stats
    assert after["compiled"] == before["compiled"] == 2
    assert after["runs"] - before["runs"] == 20
    assert after["donation_copies"] == before["donation_copies"] == 0
    assert after["launches_per_run"] == 1
    assert after["host_steps"] == []
    assert {name: x.ctypes.data for name, x in g.engine.state.items()} == caches


def test_memory_of_the_cache_is_used_again(folder: Path) -> None:
    g = generator(folder)
    first = g.generate(PROMPT, 5)
    caches = {name: id(x) for name, x in g.engine.state.items()}
    g.generate([9, 9, 9], 30)
    assert g.generate(PROMPT, 5) == first
    assert {name: id(x) for name, x in g.engine.state.items()} == caches


def test_the_maximum_is_reached_exactly_and_no_further(folder: Path) -> None:
    g = generator(folder, max_length=20)
    longer = generator(folder, max_length=64).generate(PROMPT, 20)
    room = 20 - len(PROMPT)
    assert g.generate(PROMPT, room) == longer[:room]
    assert g.generate(PROMPT) == longer[:room]
    assert g.is_done()
    with pytest.raises(ExecutionError, match="the maximum length is reached"):
        g.generate_next_token()
    for one_launch in (False, True):
        with pytest.raises(ExecutionError, match="the maximum length is reached"):
            g.generate(PROMPT, room + 1, one_launch=one_launch)
        assert g.get_sequence(0).tolist() == PROMPT + longer[:room]


@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_nothing_follows_a_stop_token(style: str, tmp_path: Path) -> None:
    g = generator(build(tmp_path, "tiny-llama", style=style), "reference")
    stop = g.generate(PROMPT, 3)[-1]
    assert g.finish_reason() is None
    g = generator(tmp_path, "reference", stop=stop)
    g.append_tokens(PROMPT)
    while not g.is_done():
        g.generate_next_token()
    whole = g.get_sequence(0).tolist()
    assert whole[-1] == stop
    g.generate_next_token()
    assert g.get_sequence(0).tolist() == whole
    assert g.get_next_tokens().tolist() == [stop]
    assert g.finish_reason() == "stop"


def test_what_was_generated_last_is_forgotten_with_its_sequence(folder: Path) -> None:
    g = generator(folder, "reference")
    changes = (
        g.reset,
        lambda: g.append_tokens([5]),
        lambda: g.rewind_to(len(PROMPT)),
    )
    for change in changes:
        g.reset()
        g.append_tokens(PROMPT)
        assert g.get_next_tokens().size == 0
        g.generate_next_token()
        assert g.get_next_tokens().tolist() == [g.get_sequence(0)[-1]]
        change()
        assert g.get_next_tokens().size == 0


# Several generations


@pytest.mark.parametrize("one_launch", [False, True])
def test_a_stream_ends_when_the_generator_is_used_otherwise(folder: Path, one_launch: bool) -> None:
    g = generator(folder, "reference")
    expected = g.generate([4, 5], 4)
    uses = (
        lambda: g.generate([4, 5], 4),
        lambda: next(g.stream([4, 5], 4)),
        g.generate_next_token,
        lambda: g.append_tokens([7]),
        lambda: g.rewind_to(3),
        g.reset,
    )
    for use in uses:
        stream = g.stream(PROMPT, 20, one_launch=one_launch)
        next(stream), next(stream)
        use()
        before = g.token_count()
        with pytest.raises(ExecutionError, match="used for something else in between"):
            next(stream)
        assert g.token_count() == before
    assert g.generate([4, 5], 4) == expected


def test_wishes_of_a_stream_are_none_of_the_next_generation(folder: Path) -> None:
    g = generator(folder, "reference")
    expected = g.generate([4, 5], 6)
    stream = g.stream(PROMPT, 20, temperature=2.0, seed=5, stop=expected[1])
    next(stream)
    assert g.generate([4, 5], 6) == expected
    stream.close()
    assert g.generate([4, 5], 6) == expected


# One launch


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_a_generation_in_one_launch(folder: Path, target: str) -> None:
    g = generator(folder, target)
    overrides = {"temperature": 0.9, "top_k": 30, "repetition_penalty": 1.3, "seed": 4}
    prompts = [PROMPT, [44, 8], [1, 2, 3]]
    assert g.generate(PROMPT, 30, one_launch=True) == g.generate(PROMPT, 30)
    assert g.generate(prompts, 9, one_launch=True) == g.generate(prompts, 9)
    assert g.generate(prompts, 9, one_launch=True, **overrides) == g.generate(
        prompts, 9, **overrides
    )
    assert g.generate(PROMPT, 1, one_launch=True) == g.generate(PROMPT, 1)


def test_one_launch_is_one_native_call(folder: Path) -> None:
    g = generator(folder)
    g.generate(PROMPT, 30, one_launch=True)
    stats = g.engine.loop_session().stats
    assert (stats["runs"], stats["launches_per_run"]) == (1, 1)
    assert stats["host_steps"] == []
    assert g.engine.timing.decode_launches == 1
    assert g.engine.timing.decode_runs == 29


def test_stats_are_those_of_all_sessions(folder: Path) -> None:
    g = generator(folder)
    g.generate(PROMPT, 6)
    g.generate(PROMPT, 6, one_launch=True)
    g.generate(PROMPT, 6, temperature=1.0)
    assert g.session.stats["runs"] == 6
    stats = g.stats
    assert stats["runs"] == 6 + 2 + 6
    assert stats["launches_per_run"] == 1
    assert set(stats) >= set(g.session.stats)


def test_a_prompt_of_one_token_is_a_prompt(folder: Path) -> None:
    g = generator(folder, "reference")
    g.generate([5], 4)
    timing = g.engine.timing
    assert (timing.prefill_runs, timing.prefill_tokens, timing.decode_runs) == (1, 1, 3)
    assert timing.prefill_seconds > 0
    g.append_tokens([6])
    assert (timing.prefill_runs, timing.decode_runs) == (2, 3)


def test_a_bucket_may_be_one_number(folder: Path) -> None:
    assert generator(folder, "reference", buckets=32).engine.buckets == (1, 32)
    assert generator(folder, "reference", buckets=np.int64(9)).engine.buckets == (1, 9)
    assert generator(folder, "reference", buckets=[8, 4096]).engine.buckets == (1, 8, 64)


# Sampling


def test_a_seed_gives_the_same_tokens_on_every_target(folder: Path) -> None:
    made = {t: generator(folder, t, max_length=32) for t in ("cpu", "reference")}
    for overrides in (
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20},
        {"temperature": 1.5, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.5},
    ):
        tokens = [g.generate(PROMPT, 16, seed=11, **overrides) for g in made.values()]
        assert tokens[0] == tokens[1]
        assert tokens[0] == made["cpu"].generate(PROMPT, 16, seed=11, **overrides)
        assert tokens[0] != made["cpu"].generate(PROMPT, 16, seed=12, **overrides)


def draws(g: Generator, count: int, **overrides: Any) -> np.ndarray[Any, Any]:
    """Return how often each token came first, over many seeds."""
    found = [g.generate(PROMPT, 1, seed=seed, **overrides)[0] for seed in range(count)]
    return np.bincount(found, minlength=VOCABULARY)


def shares(g: Generator) -> np.ndarray[Any, Any]:
    """The probabilities of the first token."""
    g.reset()
    g.append_tokens(PROMPT)
    logits = g.get_logits()[0].astype(np.float64)
    shares = np.exp(logits - logits.max())
    return np.asarray(shares / shares.sum())


def test_tokens_are_drawn_by_their_probability(folder: Path) -> None:
    """The frequencies of the likeliest tokens lie within five deviations of a binomial draw."""
    g = generator(folder, max_length=16, logits=True)
    expected = shares(g)
    expected = expected**0.5 / (expected**0.5).sum()
    count = 1500
    found = draws(g, count, temperature=2.0)
    for token in np.argsort(-expected)[:8]:
        p = expected[token]
        assert abs(found[token] - count * p) <= 5 * np.sqrt(count * p * (1 - p))


def test_top_k_and_top_p_leave_out_the_unlikely(folder: Path) -> None:
    g = generator(folder, max_length=16, logits=True)
    expected = shares(g)
    order = np.argsort(-expected)
    found = draws(g, 200, temperature=3.0, top_k=4)
    assert set(np.flatnonzero(found)) == set(order[:4])
    flat = expected ** (1 / 3)
    flat /= flat.sum()
    before = np.cumsum(flat[order]) - flat[order]
    kept = set(order[before < 0.2])
    found = draws(g, 200, temperature=3.0, top_p=0.2)
    assert set(np.flatnonzero(found)) <= kept
    assert len(np.flatnonzero(found)) > 1
    assert g.generate(PROMPT, 6, temperature=5.0, top_k=1) == g.generate(PROMPT, 6)
    # The most likely token has its share before any other: it is always kept.
    for share in (0.0, 1e-9):
        assert g.generate(PROMPT, 6, temperature=5.0, top_p=share) == g.generate(PROMPT, 6)
    assert g.generate(PROMPT, 6, temperature=5.0, top_p=0.5) != g.generate(PROMPT, 6)


def test_a_penalty_divides_and_multiplies_what_was_there(folder: Path) -> None:
    """Against the arithmetic in numpy, token by token."""
    g = generator(folder, "reference", logits=True)
    penalty = 1.7
    found = g.generate(PROMPT, 12, repetition_penalty=penalty)
    g.reset()
    have = list(PROMPT)
    for token in found:
        g.reset()
        g.append_tokens(have)
        logits = g.get_logits()[0].copy()
        seen = np.unique(have)
        low = logits[seen] < 0
        logits[seen] = np.where(low, logits[seen] * penalty, logits[seen] / penalty)
        assert token == logits.argmax()
        have.append(token)


def test_rows_of_a_batch_draw_apart(folder: Path) -> None:
    g = generator(folder)
    first, second = g.generate([PROMPT, PROMPT], 12, temperature=1.5)
    assert first != second


# Logits


def test_logits_are_there_when_asked_for(folder: Path) -> None:
    g = generator(folder, logits=True)
    g.append_tokens(PROMPT)
    logits = g.get_logits()
    assert logits.shape == (1, VOCABULARY)
    g.generate_next_token()
    assert g.get_next_tokens()[0] == logits[0].argmax()
    plain = generator(folder)
    plain.append_tokens(PROMPT)
    with pytest.raises(ConfigError, match="logits are not available"):
        plain.get_logits()


# Text


def tokenizer(folder: Path) -> None:
    """A tokenizer of words: w0, w1, ..."""
    vocabulary = {f"w{i}": i for i in range(VOCABULARY)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "decoder": None, "model": model,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(whole))


def test_text_goes_in_and_comes_out(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    build(tmp_path, "tiny-llama")
    tokenizer(tmp_path)
    g = generator(tmp_path)
    prompt = " ".join(f"w{t}" for t in PROMPT)
    tokens = g.generate(PROMPT, 6)
    text = " ".join(f"w{t}" for t in tokens)
    assert g.generate(prompt, 6) == text
    assert g.generate([prompt, "w4 w5"], 6)[0] == text
    assert "".join(g.stream(prompt, 6)) == text
    assert g.generate(prompt, 6, stop=f"w{tokens[3]}") == " ".join(f"w{t}" for t in tokens[:3])
    half = "w4 \udcff"  # as Python reads a byte that is no text
    with pytest.raises(FeedError, match="UTF-8"):
        g.generate(half, 6)
    with pytest.raises(ConfigError, match="no such stop token"):
        g.generate(prompt, 6, stop=half)
    assert g.generate(prompt, 6) == text


def test_generator_says_what_it_is(folder: Path) -> None:
    text = repr(generator(folder, "reference"))
    assert text == "Generator(model.onnx on reference, 512 tokens, max_length=64)"


def test_generator_is_a_public_name() -> None:
    assert "Generator" in monograph.__all__
    assert monograph.Generator is Generator


def test_names_that_are_imported_late_are_listed() -> None:
    code = "import monograph; print(*dir(monograph))"
    names = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {*monograph.__all__} <= {*names}
