"""Steps that run ahead: the same tokens, and nothing of a step that was made in vain."""

from __future__ import annotations

import gc
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from monograph import Generator
from monograph.errors import ExecutionError
from monograph.generate.engine import runner
from tests.generate.queued import Queue

PROMPT = [3, 14, 15, 92, 65, 35, 8]
MAXIMUM = 24


def generator(folder: Path, **options: Any) -> Generator:
    return Generator(folder, "cpu", **{"max_length": MAXIMUM, "stop": (), "threads": 1, **options})


@pytest.fixture(scope="module")
def tokens(built: Path) -> list[int]:
    """Return what comes behind the prompt, as long as there is room; without running ahead."""
    found: list[int] = generator(built).generate(PROMPT)
    assert len(found) == MAXIMUM - len(PROMPT)
    return found


def test_the_next_step_is_started_before_this_one_is_waited_for(
    built: Path, tokens: list[int], queue: Queue
) -> None:
    g = generator(built)
    assert g.generate(PROMPT, 5) == tokens[:5]
    # The prompt's own run gives the first token; four steps follow, and none in vain.
    assert queue.log == [
        ("start", 0), ("start", 1), ("wait", 0), ("start", 2), ("wait", 1), ("start", 3),
        ("wait", 2), ("wait", 3),
    ]  # fmt: skip
    assert g.engine.timing.decode_runs == g.engine.timing.decode_launches == 4


def test_no_step_behind_the_maximum_length(built: Path, tokens: list[int], queue: Queue) -> None:
    assert generator(built).generate(PROMPT) == tokens
    assert len(queue.numbers("start")) == len(tokens) - 1
    assert queue.numbers("wait") == queue.numbers("start")


def test_a_step_behind_a_stop_token_is_in_vain(
    built: Path, tokens: list[int], queue: Queue
) -> None:
    end = next(i for i in range(3, len(tokens)) if tokens[i] not in tokens[:i])
    g = generator(built, stop=[tokens[end]])
    assert g.generate(PROMPT) == tokens[: end + 1]
    assert len(queue.numbers("start")) == end + 1
    assert queue.numbers("wait") == queue.numbers("start")
    # What it wrote is written anew when the sequence goes on.
    g.append_tokens([5, 6])
    g.generate_next_token()
    whole = g.get_sequence(0).tolist()
    assert generator(built).generate(whole[:-1], 1) == whole[-1:]


@pytest.mark.parametrize(
    "overrides", [{}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.0, "top_k": 4}]
)
def test_batches_and_sampling(built: Path, overrides: dict[str, Any], queue: Queue) -> None:
    prompts = [PROMPT, PROMPT[:3]]
    single = generator(built, **overrides)
    single.append_tokens(prompts)
    for _ in range(8):
        single.generate_next_token()
    expected = [single.get_sequence(b).tolist()[-8:] for b in range(2)]
    assert not queue.log  # single steps do not run ahead
    assert generator(built, **overrides).generate(prompts, 8) == expected
    assert queue.numbers("wait") == [*range(7)]


def test_a_stream_that_is_left(built: Path, tokens: list[int], queue: Queue) -> None:
    g = generator(built)
    stream = g.stream(PROMPT, 10)
    assert [*islice(stream, 4)] == tokens[:4]
    assert queue.numbers("start") == [0, 1, 2, 3]
    assert queue.numbers("wait") == [0, 1, 2]
    del stream
    gc.collect()
    assert queue.numbers("wait") == [0, 1, 2, 3]
    assert g.generate(PROMPT, 6, temperature=0.0) == tokens[:6]
    assert g.generate(PROMPT[:4], 3) == generator(built).generate(PROMPT[:4], 3)


def test_one_launch_behind_a_step_in_vain(built: Path, tokens: list[int], queue: Queue) -> None:
    g = generator(built)
    g.append_tokens(PROMPT)
    assert g.engine.decode(further=True).tolist() == tokens[1:2]
    assert g.engine.loop(5, (), [False]).tolist() == [tokens[2:7]]
    assert queue.numbers("wait") == [0, 1]


def test_tokens_that_are_marked_as_seen_are_marked_once(built: Path, queue: Queue) -> None:
    generator(built, repetition_penalty=1.3).generate(PROMPT, 6)
    assert queue.log == []


def test_a_step_that_fails_loses_nothing(built: Path, tokens: list[int], queue: Queue) -> None:
    g = generator(built)
    queue.refuse("wait", 3, ExecutionError("the device is tired"))
    with pytest.raises(ExecutionError, match="tired"):
        g.generate(PROMPT, 10)
    # The first token is the prompt's, and three steps have ended.
    assert g.get_sequence(0).tolist() == PROMPT + tokens[:4]
    for _ in range(3):
        g.generate_next_token()
    assert g.get_sequence(0).tolist() == PROMPT + tokens[:7]


def test_an_interrupt_loses_nothing(built: Path, tokens: list[int], queue: Queue) -> None:
    g = generator(built)
    queue.refuse("wait", 2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        g.generate(PROMPT, 10)
    queue.accept()
    assert g.get_sequence(0).tolist() == PROMPT + tokens[:3]
    g.generate_next_token()
    assert g.get_sequence(0).tolist() == PROMPT + tokens[:4]


def test_an_interrupt_while_a_token_is_read_loses_nothing(
    built: Path, tokens: list[int], queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = generator(built)
    stream = g.stream(PROMPT, 10)
    assert [*islice(stream, 3)] == tokens[:3]

    def get(array: Any, mark: Any = None) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(g.engine._arrays, "get", get)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    for _ in range(3):
        g.generate_next_token()
    assert g.get_sequence(0).tolist() == PROMPT + tokens[:6]


def test_rewinding_that_is_interrupted(built: Path, tokens: list[int], queue: Queue) -> None:
    g = generator(built)
    stream = g.stream(PROMPT, 10)
    assert [*islice(stream, 5)] == tokens[:5]
    queue.refuse("wait", 0, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        g.rewind_to(len(PROMPT) + 2)
    queue.accept()
    for _ in range(3):
        g.generate_next_token()
    assert g.get_sequence(0).tolist() == PROMPT + tokens[:5]


def test_a_step_that_cannot_be_started_ahead(built: Path, tokens: list[int], queue: Queue) -> None:
    """The token before it is not lost, and the next call says what is wrong."""
    g = generator(built)
    queue.refuse("start", 2, ExecutionError("out of memory"))
    stream = g.stream(PROMPT, 10)
    assert [*islice(stream, 3)] == tokens[:3]
    with pytest.raises(ExecutionError, match="out of memory"):
        next(stream)
    assert g.get_sequence(0).tolist() == PROMPT + tokens[:3]


class _Clock:
    """A clock for the engine."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(runner, "time", made)
    return made


def test_time_is_from_token_to_token(built: Path, queue: Queue, clock: _Clock) -> None:
    """Work of a caller between two tokens hides a step, and counts: none comes sooner."""
    g = generator(built)
    for _ in g.stream(PROMPT, 6):
        clock.now += 1.0
    # The first step begins when it is asked for, the four behind it with the one before.
    assert g.engine.timing.decode_runs == 5
    assert g.engine.timing.decode_seconds == 4.0


def test_time_behind_a_generation_is_no_steps(built: Path, queue: Queue, clock: _Clock) -> None:
    g = generator(built)
    stream = g.stream(PROMPT, 10)
    assert len([*islice(stream, 3)]) == 3
    stream.close()
    clock.now += 60.0
    g.generate_next_token()
    assert g.engine.timing.decode_runs == 3
    assert g.engine.timing.decode_seconds == 0.0
