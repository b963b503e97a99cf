"""Continuation after broken streams, ended overrides, errors and full caches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monograph import Generator
from monograph.errors import ConfigError, ExecutionError, FeedError, MonographError
from tests.generate.decoders import STYLES, counting_decoder, opened

PROMPT = [3, 14, 15, 92, 65, 35, 8]


def generator(folder: Path, target: str = "reference", **options: Any) -> Generator:
    return opened(folder, target, **{"max_length": 64, **options})


def more(g: Generator, count: int, row: int = 0) -> list[int]:
    """Return what comes next, step by step."""
    for _ in range(count):
        g.generate_next_token()
    return [int(t) for t in g.get_sequence(row)[-count:]]


# Streams that are broken off


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("one_launch", [False, True])
def test_a_broken_stream_goes_on_where_its_sequence_ends(
    folders: dict[str, Path], style: str, one_launch: bool
) -> None:
    g = generator(folders[style])
    expected = g.generate(PROMPT, 30)
    stream = g.stream(PROMPT, 20, one_launch=one_launch)
    assert [next(stream) for _ in range(5)] == expected[:5]
    stream.close()
    made = g.token_count() - len(PROMPT)
    assert made == (20 if one_launch else 5)
    assert g.get_sequence(0).tolist() == PROMPT + expected[:made]
    assert more(g, 8) == expected[made : made + 8]


# Wishes


@pytest.mark.parametrize("count", [0, 4])
def test_wishes_end_with_their_generation(folders: dict[str, Path], count: int) -> None:
    """Also for a token that was chosen by them and not taken."""
    g, plain = generator(folders["genai"]), generator(folders["genai"])
    for overrides in ({"temperature": 50.0, "seed": 3}, {"repetition_penalty": 30.0}):
        g.generate(PROMPT, count, **overrides)
        have = g.get_sequence(0).tolist()
        expected = plain.generate(have, 6)
        assert more(g, 6) == expected
        g.generate(PROMPT, count, **overrides)
        g.append_tokens([7])
        assert more(g, 4) == plain.generate([*have, 7], 4)


@pytest.mark.parametrize("kind", ["append", "next", "rewind"])
def test_wishes_end_with_a_stream_that_is_left(folders: dict[str, Path], kind: str) -> None:
    """Though somebody still holds it."""
    g, plain = generator(folders["genai"]), generator(folders["genai"])
    expected = plain.generate(PROMPT, 6)
    stream = g.stream(PROMPT, 20, temperature=50.0, seed=3, stop=[expected[5]])
    for _ in range(3):
        next(stream)
    if kind == "append":
        g.append_tokens([7])
    elif kind == "rewind":
        g.rewind_to(len(PROMPT))
    have = g.get_sequence(0).tolist()
    assert more(g, 6) == plain.generate(have, 6)  # past what was a stop token of the stream
    with pytest.raises(ExecutionError, match="something else in between"):
        next(stream)
    assert more(g, 2) == plain.generate(g.get_sequence(0).tolist()[:-2], 2)
    # And those of the next generation hold, whatever became of the one before.
    stream = g.stream(PROMPT, 20, temperature=50.0, seed=3)
    next(stream)
    assert g.generate(PROMPT, 4, temperature=50.0, seed=5) == plain.generate(
        PROMPT, 4, temperature=50.0, seed=5
    )


@pytest.mark.parametrize("ended", ["asked", "closed"])
def test_a_stream_that_has_ended_leaves_the_wishes_of_a_newer_one_alone(
    folders: dict[str, Path], ended: str
) -> None:
    """Those of the newer one still end when somebody calls in between."""
    g, plain = generator(folders["genai"]), generator(folders["genai"])
    overrides = {"temperature": 50.0, "seed": 3}
    for count in (1, 5):
        old = g.stream(PROMPT, 20)
        next(old)
        new = g.stream([4, 5], 20, **overrides)
        made = [next(new)]
        if ended == "closed":
            old.close()
        else:
            with pytest.raises(ExecutionError, match="something else in between"):
                next(old)
        made += [next(new) for _ in range(count - 1)]
        assert made == plain.generate([4, 5], count, **overrides)
        assert more(g, 6) == plain.generate([4, 5, *made], 6)


def test_a_penalty_of_the_generator_knows_what_others_generated(folders: dict[str, Path]) -> None:
    g = generator(folders["genai"], repetition_penalty=1.6)
    g.generate(PROMPT, 6, repetition_penalty=1.0)
    have = g.get_sequence(0).tolist()
    assert more(g, 8) == generator(folders["genai"], repetition_penalty=1.6).generate(have, 8)


# Refusals


def test_what_is_refused_loses_nothing(folders: dict[str, Path]) -> None:
    g = generator(folders["genai"])
    expected = g.generate(PROMPT, 9)
    g.generate(PROMPT, 5)
    refusals: tuple[tuple[type[MonographError], Callable[[], Any]], ...] = (
        (FeedError, lambda: g.generate([1] * 64, 1)),
        (FeedError, lambda: list(g.stream([[1, 2], [3]], 3))),
        (FeedError, lambda: list(g.stream([1] * 64, 3))),
        (ConfigError, lambda: g.generate(PROMPT, 3, temperature=-1)),
    )
    for kind, refused in refusals:
        with pytest.raises(kind):
            refused()
        assert g.get_sequence(0).tolist() == PROMPT + expected[:5]
    assert more(g, 4) == expected[5:]


def test_unequal_prompts_that_are_refused_lose_nothing(tmp_path: Path) -> None:
    g = generator(counting_decoder(tmp_path / "model.onnx"), max_length=32)
    made = g.generate([5, 9], 3)
    with pytest.raises(FeedError, match="equally long"):
        g.generate([[5, 9], [7]], 3)
    assert g.get_sequence(0).tolist() == [5, 9, *made]


# The room of a cache


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("one_launch", [False, True])
def test_rows_that_have_ended_take_no_room_from_others(
    folders: dict[str, Path], style: str, one_launch: bool
) -> None:
    """In plain decoders a short row has padding in front, as long as the longest row wants it."""
    g = generator(folders[style], max_length=40)
    long, short = list(range(100, 130)), [9, 8]
    alone = [g.generate(long, 5), g.generate(short, 38)]
    stop = alone[0][1]
    assert stop not in alone[1]
    g = generator(folders[style], max_length=40, stop=stop)
    found = g.generate([long, short], 38, one_launch=one_launch)
    assert found == [alone[0][:2], alone[1]]
    assert [g.finish_reason(row) for row in (0, 1)] == ["stop", "length"]
    with pytest.raises(ExecutionError, match="the maximum length is reached"):
        g.generate([long, short], 39, one_launch=one_launch)
    assert g.get_sequence(1).tolist() == short + alone[1]
    # The row that left the cache comes back to it.
    g.rewind_to(2)
    g.append_tokens([long[2:], short])
    assert more(g, 2)[0] == alone[0][0]


@pytest.mark.parametrize("style", STYLES)
def test_a_run_that_fails_leaves_no_token_unchosen(
    folders: dict[str, Path], style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row was at its end in the run before the one that failed: its token is chosen anew."""
    prompts = [list(range(20)), [9, 8, 7]]
    expected = generator(folders[style]).generate(prompts, 3)
    g = generator(folders[style], buckets=[8])
    run, fails = g.session.run, [False, True]

    def failing(*given: Any, **options: Any) -> Any:
        if fails and fails.pop(0):
            raise MemoryError
        return run(*given, **options)

    monkeypatch.setattr(g.session, "run", failing)
    with pytest.raises(MemoryError):
        g.append_tokens(prompts)
    assert [more(g, 3), g.get_sequence(1)[-3:].tolist()] == expected


# Logits


def logits_behind(g: Generator, row: list[int]) -> Any:
    g.reset()
    g.append_tokens(row)
    return g.get_logits()[0]


@pytest.mark.parametrize("style", STYLES)
def test_logits_are_what_the_next_token_is_chosen_by(folders: dict[str, Path], style: str) -> None:
    g, alone = (generator(folders[style], logits=True, buckets=[8]) for _ in range(2))
    prompts = [PROMPT * 3, PROMPT[:2]]

    def check() -> None:
        for row in (0, 1):
            expected = logits_behind(alone, g.get_sequence(row).tolist())
            np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-4)

    g.append_tokens(prompts)
    found = g.get_logits()  # in several runs, of which the short row has only one
    check()
    for _ in range(3):
        g.generate_next_token()
        assert g.get_next_tokens().tolist() == found.argmax(1).tolist()
        found = g.get_logits()
        check()
        assert np.array_equal(found, g.get_logits())
    g.rewind_to(5)
    found = g.get_logits()
    check()
    g.generate(prompts, 5, one_launch=True)
    found = g.get_logits()
    check()
    g.reset()
    with pytest.raises(FeedError, match="there are no sequences to continue"):
        g.get_logits()


@pytest.mark.parametrize("style", STYLES)
def test_logits_behind_sequences_that_have_ended(folders: dict[str, Path], style: str) -> None:
    g = generator(folders[style])
    prompts = [PROMPT, [44, 8]]
    whole = g.generate(prompts, 8)
    stop = whole[0][2]
    assert stop not in whole[1]
    g = generator(folders[style], logits=True, stop=stop, max_length=10)
    alone = generator(folders[style], logits=True)
    g.append_tokens(prompts)
    for turn in range(8):
        g.generate_next_token()
        if turn in (0, 4, 5, 7):
            found = g.get_logits()
            for row in (0, 1):
                expected = logits_behind(alone, g.get_sequence(row).tolist())
                np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-4)
    assert g.get_sequence(0).tolist() == PROMPT + whole[0][:3]  # as long as the cache
    assert g.get_sequence(1).tolist() == prompts[1] + whole[1]
    assert g.is_done()


def test_logits_of_an_ended_row_that_cannot_be_fed_beside_others(tmp_path: Path) -> None:
    path = counting_decoder(tmp_path / "model.onnx")
    prompts = [[5, 9], [7, 1]]
    whole = generator(path, max_length=32).generate(prompts, 6)
    stop = whole[0][1]
    assert stop not in whole[1]
    g = generator(path, max_length=32, logits=True, stop=stop)
    g.generate(prompts, 5)
    found = g.get_logits()
    assert np.isnan(found[0]).all()
    assert found[1].argmax() == whole[1][5]


# Threads


def test_other_threads_are_refused_while_one_generates(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    g = generator(folders["genai"])
    expected = g.generate(PROMPT, 4)
    run = g.session.run
    inside, go = threading.Event(), threading.Event()

    def waiting(*given: Any, **options: Any) -> Any:
        inside.set()
        assert go.wait(60)
        return run(*given, **options)

    monkeypatch.setattr(g.session, "run", waiting)
    stream = g.stream([1, 2], 3)
    with ThreadPoolExecutor(1) as other:
        made = other.submit(g.generate, PROMPT, 4)
        assert inside.wait(60)
        uses: tuple[Callable[[], Any], ...] = (
            lambda: g.generate([1], 2),
            lambda: next(stream),
            lambda: g.append_tokens([1]),
            g.generate_next_token,
            lambda: g.rewind_to(1),
            g.reset,
            lambda: g.warm_up(3),
        )
        try:
            for use in uses:
                with pytest.raises(ExecutionError, match="another thread is using the generator"):
                    use()
        finally:
            go.set()
        assert made.result() == expected
    assert g.get_sequence(0).tolist() == PROMPT + expected
    assert g.generate(PROMPT, 4) == expected


# Interrupts


@pytest.mark.parametrize("style", STYLES)
def test_a_loop_that_was_interrupted_has_made_nothing(
    folders: dict[str, Path], style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt is raised when the run returns: what it marked as seen, no sequence has."""
    options = {"repetition_penalty": 1.4}
    expected = generator(folders[style], **options).generate(PROMPT, 20)
    g = generator(folders[style], **options)
    g.warm_up(len(PROMPT), one_launch=True)
    session = g.engine.loop_session()
    run = session.run

    def interrupted(*given: Any, **options: Any) -> Any:
        run(*given, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        g.generate(PROMPT, 15, one_launch=True)
    monkeypatch.undo()
    had = len(g.get_sequence(0)) - len(PROMPT)
    assert [int(t) for t in g.get_sequence(0)[len(PROMPT) :]] == expected[:had]
    assert more(g, 20 - had) == expected[had:]


@pytest.mark.parametrize(
    ("length", "hint"),
    [(16, "make a Generator with more max_length"), (512, "the decoder's context is 512 tokens")],
)
def test_what_to_do_about_a_full_cache(folders: dict[str, Path], length: int, hint: str) -> None:
    g = generator(folders["genai"], "cpu", max_length=length)
    g.append_tokens([5] * (length - 1))
    g.generate_next_token()
    with pytest.raises(ExecutionError, match="the maximum length is reached") as error:
        g.generate_next_token()
    assert error.value.hint is not None
    assert error.value.hint.endswith(hint)
    with pytest.raises(FeedError, match="the prompt is longer than the maximum") as error:
        g.generate([5] * length, 1)
    expected = f"shorten the prompt: {hint}" if length == 512 else "raise max_length, or shorten"
    assert str(error.value.hint).startswith(expected)
