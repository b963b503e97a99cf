"""Sampling of tokens: independent of other rows, and as the overrides say."""

from __future__ import annotations

import gc
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monograph import Generator
from monograph.errors import ConfigError, FeedError
from monograph.generate.engine import samplers
from monograph.generate.prompts import changed
from monograph.generate.rewrite.sampling import Sampling
from tests.generate.decoders import STYLES, opened

PROMPT = [3, 14, 15, 92, 65, 35, 8]


def generator(folder: Path, target: str = "reference", **options: Any) -> Generator:
    return opened(folder, target, **{"max_length": 64, **options})


# Beside others


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("style", STYLES)
def test_a_row_that_has_ended_has_had_its_own_tokens_only(
    folders: dict[str, Path], style: str, target: str
) -> None:
    """In one launch it is fed something all the same, which its penalty does not count."""
    penalty = {"repetition_penalty": 1.5}
    g = generator(folders[style], target, **penalty)
    prompts = [[436, 326, 261, 138, 157], [20, 38, 8]]
    alone = [g.generate(p, 20) for p in prompts]
    stop = next(t for t in alone[1][:6] if t not in alone[0])
    g.generate(prompts, 20, stop=stop, one_launch=True)
    assert len(g.get_sequence(1)) < len(g.get_sequence(0))
    seen = g.engine.state["seen"]
    for row in (0, 1):
        assert set(np.flatnonzero(seen[row])) <= {*g.get_sequence(row).tolist()}
    g.append_tokens([[5], [6]])
    have = [g.get_sequence(row).tolist() for row in (0, 1)]
    for _ in range(12):
        g.generate_next_token()
    found = [g.get_sequence(row)[len(h) :].tolist() for row, h in enumerate(have)]
    assert found == [g.generate(h, 12) for h in have]


@pytest.mark.parametrize("style", STYLES)
def test_draws_do_not_depend_on_the_rows_beside(folders: dict[str, Path], style: str) -> None:
    g = generator(folders[style], temperature=1.0, seed=4)
    first, second = g.generate([PROMPT, [9, 8]], 10), g.generate([PROMPT * 2, [9, 8]], 10)
    assert first[1] == second[1]
    assert first[0] == g.generate(PROMPT, 10)
    assert g.generate([PROMPT, [9, 8]], 10, one_launch=True) == first


# Numbers


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_very_low_temperatures_take_the_most_likely_token(
    folders: dict[str, Path], target: str
) -> None:
    g = generator(folders["genai"], target)
    expected = g.generate(PROMPT, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for temperature in (1e-300, 1e-45, 1e-38, 1e-31, 2e-30, 1e-12):
            for overrides in ({}, {"top_k": 20}, {"top_p": 0.9}):
                assert g.generate(PROMPT, 8, temperature=temperature, **overrides) == expected


@pytest.mark.parametrize("name", ["temperature", "repetition_penalty"])
def test_numbers_that_a_step_cannot_have(name: str) -> None:
    for value in (1e39, float("inf"), float("nan"), -1.0, "1", None, True, np.array([1.0])):
        with pytest.raises(ConfigError, match=f"`{name}` is out of range"):
            Sampling(**{name: value})
    with pytest.raises(ConfigError, match="`repetition_penalty` must be a factor"):
        Sampling(repetition_penalty=1e-45)
    assert getattr(Sampling(**{name: 3e38}), name) == 3e38


def test_numbers_of_numpy() -> None:
    found = Sampling(np.float32(0.5), np.int64(5), np.float16(0.25), np.float64(2), np.uint8(3))
    assert found == Sampling(0.5, 5, 0.25, 2.0, 3)
    assert [type(x) for x in vars(found).values()] == [float, int, float, float, int]
    for value in (1.5, "1", None, True, np.bool_(True), -1):
        with pytest.raises(ConfigError, match="`seed` must be a count"):
            Sampling(seed=value)  # type: ignore[arg-type]


# Arguments of other kinds


def test_stop_tokens_of_other_kinds(folders: dict[str, Path]) -> None:
    g = generator(folders["genai"])
    whole = g.generate(PROMPT, 6)
    for stop in (np.int64(whole[2]), np.array([whole[2]]), {whole[2]}):
        assert g.generate(PROMPT, 6, stop=stop) == whole[:3]
    # What can be read once only is read once: by ids, in one launch, by a stream.
    assert g.generate(PROMPT, 6, stop=iter([whole[2]])) == whole[:3]
    assert g.generate(PROMPT, 6, stop=map(int, [whole[2]]), one_launch=True) == whole[:3]
    assert list(g.stream(PROMPT, 6, stop=(t for t in [whole[2]]))) == whole[:3]
    for stop in (2.5, [2.5], True, [None], b"ab", object()):
        with pytest.raises(ConfigError, match="stop"):
            g.generate(PROMPT, 3, stop=stop)


def test_one_launch_is_yes_or_no(folders: dict[str, Path]) -> None:
    g = generator(folders["genai"])
    expected = g.generate(PROMPT, 3)
    for given in ("maybe", "False", 1, 0, None, [True]):
        for call in (g.generate, g.check, lambda *a, **w: list(g.stream(*a, **w))):
            with pytest.raises(ConfigError, match="`one_launch` must be True or False"):
                call(PROMPT, one_launch=given)  # type: ignore[operator]
        with pytest.raises(ConfigError, match="`one_launch` must be True or False"):
            g.warm_up(4, one_launch=given)
    assert g.get_sequence(0).tolist() == PROMPT + expected  # nothing was lost
    for yes in (True, False, np.bool_(True)):
        assert g.generate(PROMPT, 3, one_launch=yes) == expected


def test_arguments_that_are_no_integers(folders: dict[str, Path]) -> None:
    g = generator(folders["genai"])
    g.generate(PROMPT, 3)
    for length in (2.5, "3", None, True, -1, 11):
        with pytest.raises(FeedError, match="rewound to a length that they have"):
            g.rewind_to(length)  # type: ignore[arg-type]
    for index in ("0", 1.0, None, 1, -2):
        with pytest.raises(FeedError, match="no such sequence"):
            g.get_sequence(index)  # type: ignore[arg-type]
        with pytest.raises(FeedError, match="no such sequence"):
            g.finish_reason(index)  # type: ignore[arg-type]
    for length in ("a", None, 1.5):
        with pytest.raises(ConfigError, match="`length` must be an integer"):
            g.warm_up(length)  # type: ignore[arg-type]
    assert len(g.get_sequence(np.int64(-1))) == len(PROMPT) + 3  # type: ignore[arg-type]
    g.rewind_to(np.int64(4))  # type: ignore[arg-type]
    assert g.token_count() == 4


def test_prompts_of_other_kinds(folders: dict[str, Path]) -> None:
    g = generator(folders["genai"])
    for prompt in ({1: 2}, {0: 1}, {1, 2}, b"abc", bytearray(b"a"), [[1, [2]]], iter([1])):
        with pytest.raises(FeedError, match="a prompt must be a text, or token ids"):
            g.generate(prompt, 2)  # type: ignore[arg-type]
    assert g.generate(range(3), 2) == g.generate(np.arange(3, dtype=np.uint8), 2)


def test_wishes_that_there_are_not_are_answered_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="no such keyword argument") as caught:
        changed(Sampling(), {"one_lunch": True})
    assert "one_launch" in str(caught.value)


# Sessions


def test_samplers_are_kept_and_let_go(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    g = generator(folders["genai"])
    kinds: list[dict[str, Any]] = [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5}]
    made = []
    for overrides in kinds * 2:
        g.generate(PROMPT, 2, **overrides)
        made.append(g.session)
    assert made[:3] == made[3:]
    assert len({*map(id, made)}) == 3
    runs = g.stats["runs"]
    assert runs == 2 * 6
    oldest, made = weakref.ref(made[0]), []
    for top_k in range(6, 6 + samplers.KEPT):
        g.generate(PROMPT, 2, temperature=1.0, top_k=top_k)
    gc.collect()
    assert oldest() is None
    assert g.stats["runs"] == runs + 2 * samplers.KEPT
    # Weights that take much memory are kept for the sampler at hand alone.
    monkeypatch.setattr(samplers, "KEPT_BYTES", 0)
    before = weakref.ref(g.session)
    g.generate(PROMPT, 2)
    gc.collect()
    assert before() is None


def test_warming_up_compiles_what_generating_needs(folders: dict[str, Path]) -> None:
    """However many stop tokens there are, and for as many prompts as told."""
    g = generator(folders["genai"], "cpu", stop=(510, 511), threads=1)
    for batch, prompts in ((1, PROMPT), (2, [PROMPT, [1, 2]])):
        g.warm_up(len(PROMPT), batch=batch, one_launch=True)
        before = g.stats["compiled"]
        g.generate(prompts, 5, one_launch=True)  # type: ignore[arg-type]
        assert g.stats["compiled"] == before
    many = list(range(300, 330))
    g.warm_up(len(PROMPT), one_launch=True, stop=many)
    before = g.stats["compiled"]
    g.generate(PROMPT, 5, one_launch=True, stop=many)
    assert g.stats["compiled"] == before


def test_a_short_maximum_has_a_bucket(folders: dict[str, Path]) -> None:
    g = generator(folders["genai"], max_length=12)
    g.append_tokens(PROMPT)
    assert g.engine.timing.prefill_runs == 1
    assert g.generate(PROMPT, 5) == generator(folders["genai"]).generate(PROMPT, 5)
