"""Many sequences at once: each gets the tokens that it gets alone, whoever joins and leaves."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.decoders import build

import monograph
from monograph.errors import ConfigError, ExecutionError, FeedError
from monograph.generate import QueueFullError
from monograph.generate.batching.body import SlotBody
from monograph.generate.batching.engine import Engine
from monograph.generate.batching.slots import Slots, row_buckets, window
from tests.generate.decoders import counting_decoder

SEED = int(os.environ.get("MONOGRAPH_TEST_SEED", "0"))
SIZE = 48
"""The maximum length of these engines."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("decoder"), "tiny-llama")


@pytest.fixture
def engine_on(folder: Path) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(target: str = "reference", where: Path | None = None, **options: Any) -> Engine:
        given = {"slots": 4, "max_length": SIZE, "stop": (), "chunk": 8, **options}
        made.append(Engine(where or folder, target, **given))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


class Manual:
    """An engine whose turns the test takes itself."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        engine._start = lambda: None  # type: ignore[method-assign]
        self.scheduler = engine._scheduler

    def turn(self) -> None:
        self.scheduler.turn()

    def finish(self) -> None:
        for _ in range(2000):
            if not self.scheduler.has_work:
                return
            self.turn()
        raise AssertionError("the engine does not come to an end")


SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9},
    {"temperature": 1.1, "top_k": 7},
    {"temperature": 0.8, "top_p": 0.8, "min_p": 0.02},
    {"repetition_penalty": 1.4},
    {"temperature": 1.0, "presence_penalty": 0.7, "frequency_penalty": 0.2},
    {"logit_bias": {3: 4.0, 5: -100.0}, "logprobs": 2},
)


def requests(draw: np.random.Generator, count: int) -> list[tuple[list[int], dict[str, Any]]]:
    found = []
    for n in range(count):
        length = int(draw.integers(17, 20) if n % 3 == 1 else draw.integers(1, 20))
        prompt = [int(t) for t in draw.integers(0, 500, length)]
        if n % 3 == 2:  # it begins like one before
            prompt = (found[-1][0] + prompt)[:24]
        options = {**SAMPLINGS[int(draw.integers(len(SAMPLINGS)))], "seed": int(draw.integers(99))}
        found.append((prompt, {"max_new_tokens": int(draw.integers(1, 12)), **options}))
    return found


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_sequences_that_join_and_leave_get_the_tokens_they_get_alone(
    engine_on: Callable[..., Engine], target: str
) -> None:
    number = SEED + 7
    draw = np.random.default_rng(number)
    wanted = requests(draw, 10)
    alone = engine_on(target, slots=1)
    right = [alone.generate(p, **o).tokens for p, o in wanted]
    manual = Manual(engine_on(target))
    streams = []
    for prompt, options in wanted:
        streams.append(manual.engine.submit(prompt, **options))
        for _ in range(int(draw.integers(0, 4))):
            manual.turn()
    manual.finish()
    assert [s.result(0).tokens for s in streams] == right, f"seed {number}"
    stats = manual.engine.stats
    assert stats["finished"] == {"length": len(wanted)}
    assert stats["steps"] < stats["generated_tokens"]
    assert stats["reused_tokens"] > 0
    assert stats["active"] == stats["waiting"] == stats["failed"] == 0


def test_greedy_tokens_are_those_of_a_generator(
    folder: Path, engine_on: Callable[..., Engine]
) -> None:
    engine = engine_on()
    generator = monograph.Generator(folder, "reference", max_length=SIZE, stop=())
    for prompt in ([1, 2, 3], [4] * 20):
        assert list(engine.generate(prompt, 9).tokens) == generator.generate(prompt, 9)


@pytest.mark.parametrize("sampling", SAMPLINGS[1:], ids=str)
def test_a_sequence_goes_on_elsewhere_behind_its_tokens(
    engine_on: Callable[..., Engine], sampling: dict[str, Any]
) -> None:
    engine, options = engine_on(), {"seed": 5, **sampling}
    whole = engine.generate([1, 2, 3], 8, **options).tokens
    other = Manual(engine_on())
    for n in range(2):
        other.engine.submit([9 + n], 12, temperature=2.0)
    stream = other.engine.submit([1, 2, 3, *whole[:4]], 4, continued=4, **options)
    other.finish()
    assert stream.result(0).tokens == whole[4:]


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_invariant_steps_give_the_same_bits_in_any_company(
    engine_on: Callable[..., Engine], target: str
) -> None:
    runs: list[list[np.ndarray]] = []
    for company in (0, 3):
        manual = Manual(engine_on(target, batch_invariant=True))
        found: list[np.ndarray] = []
        choose = manual.scheduler._sampler.choose

        def kept(logits: Any, rows: Any, found: Any = found, choose: Any = choose) -> Any:
            row = next((i for i, r in enumerate(rows) if r is not None and r.client == "me"), None)
            if row is not None:
                found.append(np.asarray(logits)[row].copy())
            return choose(logits, rows)

        manual.scheduler._sampler.choose = kept  # type: ignore[method-assign]
        for n in range(company):
            manual.engine.submit([7 + n, 8, 9], 9)
        stream = manual.engine.submit([1, 2, 3, 4, 5], 6, client="me")
        manual.finish()
        assert len(stream.result(0).tokens) == len(found) == 6
        runs.append(found)
    for a, b in zip(*runs, strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_long_prompt_and_steps_take_turns(engine_on: Callable[..., Engine]) -> None:
    manual = Manual(engine_on(chunk=4, buckets=[4]))
    first = manual.engine.submit([1, 2], 20)
    manual.turn()
    long = manual.engine.submit(list(range(1, 33)), 2)
    while not long._all:
        before = len(first._all)
        manual.turn()
        assert len(first._all) == before + 1
    assert manual.engine.stats["prefill_runs"] >= 8


def test_a_prefix_is_taken_over_in_its_slot_or_copied(engine_on: Callable[..., Engine]) -> None:
    manual = Manual(engine_on())
    prompt = list(range(1, 25))
    first = manual.engine.submit(prompt, 4)
    manual.finish()
    again = manual.engine.submit([*prompt, 77], 2)
    manual.finish()
    assert again.reused_tokens == len(prompt)
    assert manual.engine.stats["copied_rows"] == 0
    running = manual.engine.submit([*prompt, 78], 15)
    manual.turn()
    manual.turn()
    beside = manual.engine.submit([*prompt, 79], 2)
    manual.finish()
    assert beside.reused_tokens >= 16
    assert manual.engine.stats["copied_rows"] == beside.reused_tokens
    alone = engine_on(slots=1)
    assert beside.result(0).tokens == alone.generate([*prompt, 79], 2).tokens
    assert first.result(0).tokens == alone.generate(prompt, 4).tokens
    assert running.result(0).tokens == alone.generate([*prompt, 78], 15).tokens


def test_plain_decoders_make_tokens_for_one_sequence_at_a_time(
    tmp_path: Path, engine_on: Callable[..., Engine]
) -> None:
    where = counting_decoder(tmp_path / "model.onnx")
    engine = engine_on(where=where, max_length=32)
    assert not engine.together
    streams = [engine.submit([1 + n, 2], 6) for n in range(3)]
    generator = monograph.Generator(where, "reference", max_length=32, stop=())
    for n, stream in enumerate(streams):
        assert list(stream.result(60).tokens) == generator.generate([1 + n, 2], 6)
    assert engine.stats["step_rows"] == engine.stats["steps"]


def test_stop_tokens_end_and_give_back_the_slot(engine_on: Callable[..., Engine]) -> None:
    engine = engine_on(slots=1)
    tokens = engine.generate([1, 2, 3], 6).tokens
    made = engine.generate([1, 2, 3], 6, stop=[tokens[2]])
    assert made.tokens == tokens[: tokens.index(tokens[2]) + 1]
    assert made.finish_reason == "stop"
    assert engine.generate([1, 2, 3]).finish_reason == "length"


def test_logprobs_are_those_of_the_model(engine_on: Callable[..., Engine]) -> None:
    events = engine_on().generate([1, 2, 3], 3, logprobs=100).events
    for event in events:
        assert event.logprob is not None
        assert event.top_logprobs[0] == (event.id, event.logprob)
        values = [p for _, p in event.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert 0 < sum(np.exp(values)) <= 1 + 1e-9


# Ends


def test_cancel_and_deadline_end_waiting_and_running_sequences(
    engine_on: Callable[..., Engine],
) -> None:
    manual = Manual(engine_on(slots=1))
    now = [0.0]
    manual.scheduler._clock = lambda: now[0]
    running, waiting = manual.engine.submit([1], 30), manual.engine.submit([2], 30)
    manual.turn()
    waiting.cancel()
    running.cancel()
    manual.turn()
    assert (running.finish_reason, waiting.finish_reason) == ("cancelled", "cancelled")
    assert waiting.result(0).tokens == ()
    late = manual.engine.submit([3], 30, deadline=1e6)
    manual.turn()
    now[0] = 1e12
    manual.turn()
    assert late.finish_reason == "deadline"
    assert late.result(0).tokens
    assert manual.scheduler._slots.free == 1


def test_a_full_queue_refuses(engine_on: Callable[..., Engine]) -> None:
    manual = Manual(engine_on(slots=1, queue=2))
    for n in range(2):
        manual.engine.submit([n + 1], 2)
    with pytest.raises(QueueFullError, match="the queue is full"):
        manual.engine.submit([3], 2)
    manual.finish()
    manual.engine.submit([3], 2)


def test_clients_take_turns_for_slots(engine_on: Callable[..., Engine]) -> None:
    manual = Manual(engine_on(slots=1))
    many = [manual.engine.submit([n + 1], 1, client="many") for n in range(3)]
    one = manual.engine.submit([9], 1, client="one")
    order = []
    while manual.scheduler.has_work:
        manual.turn()
        order += [s for s in (*many, one) if s.done and s not in order]
    assert order == [many[0], one, many[1], many[2]]


def test_a_failing_step_fails_its_sequences_only(
    engine_on: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults at every run in turn: no wrong token, no lost slot."""
    wanted = [([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 4), ([11, 12], 5), ([13], 3)]
    alone = engine_on(slots=1)
    right = [alone.generate(p, n).tokens for p, n in wanted]
    run = SlotBody.run
    manual = Manual(engine_on())
    for fault in range(12):
        count = [0]

        def faulty(body: SlotBody, *given: Any, count: Any = count, fault: int = fault) -> Any:
            count[0] += 1
            made = run(body, *given)
            if count[0] == fault + 1:
                raise RuntimeError("injected")
            return made

        with monkeypatch.context() as patch:
            patch.setattr(SlotBody, "run", faulty)
            streams = [manual.engine.submit(p, n) for p, n in wanted]
            manual.finish()
        for stream, tokens in zip(streams, right, strict=True):
            try:
                assert stream.result(0).tokens == tokens
            except RuntimeError:
                got = tuple(e.id for e in stream._all)
                assert got == tokens[: len(got)]
        assert manual.scheduler._slots.free == 4
    assert manual.engine.stats["failed"] > 0


def test_random_events_lose_nothing(engine_on: Callable[..., Engine]) -> None:
    number = SEED + 11
    draw = np.random.default_rng(number)
    wanted = requests(draw, 8)
    alone = engine_on("cpu", slots=1)
    right = [alone.generate(p, **o).tokens for p, o in wanted]
    manual = Manual(engine_on("cpu", queue=6))
    live: list[tuple[int, Any]] = []
    checked = 0
    for _ in range(300):
        event = draw.integers(6)
        if event < 2:
            which = int(draw.integers(len(wanted)))
            prompt, options = wanted[which]
            try:
                live.append((which, manual.engine.submit(prompt, **options)))
            except QueueFullError:
                assert len(manual.scheduler.waiting) == 6
        elif event == 2 and live:
            live[int(draw.integers(len(live)))][1].cancel()
        else:
            manual.turn()
        for which, stream in [x for x in live if x[1].done]:
            made = stream.result(0)
            assert made.tokens == right[which][: len(made.tokens)], f"seed {number}"
            assert made.finish_reason in ("length", "cancelled")
            checked += made.finish_reason == "length"
            live.remove((which, stream))
    manual.finish()
    assert manual.scheduler._slots.free == 4
    assert checked > 10
    assert sum(manual.engine.stats["finished"].values()) == manual.engine.stats["submitted"]


# Readers


def test_readers_of_many_threads_and_of_an_event_loop(engine_on: Callable[..., Engine]) -> None:
    engine = engine_on("cpu")
    right = [engine.generate([n + 1, 5], 6).tokens for n in range(6)]
    found: dict[int, tuple[int, ...]] = {}

    def read(n: int) -> None:
        found[n] = tuple(e.id for e in engine.submit([n + 1, 5], 6) if e.id is not None)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()

    async def several() -> list[tuple[int | None, ...]]:
        async def one(n: int) -> tuple[int | None, ...]:
            async with engine.submit([n + 1, 5], 6) as stream:
                return tuple([e.id async for e in stream])

        return list(await asyncio.gather(*(one(n) for n in range(3, 6))))

    made = asyncio.run(several())
    for thread in threads:
        thread.join(60)
    assert [found[n] for n in range(3)] == right[:3]
    assert made == right[3:]


def test_a_closed_engine_ends_its_sequences(engine_on: Callable[..., Engine]) -> None:
    manual = Manual(engine_on(slots=1))
    streams = [manual.engine.submit([n + 1], 5) for n in range(2)]
    manual.turn()
    manual.engine.close()
    manual.engine.close()
    for stream in streams:
        with pytest.raises(ExecutionError, match="the engine is closed"):
            stream.result(0)
    with pytest.raises(ExecutionError, match="the engine is closed"):
        manual.engine.submit([1])


# Mistakes


def test_caches_that_do_not_fit_are_refused_before_they_exist(folder: Path) -> None:
    with pytest.raises(ConfigError, match="the caches do not fit the memory") as caught:
        Engine(folder, "reference", slots=1 << 33, max_length=SIZE)
    assert "slots" in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "options", "text"),
    [
        ([], {}, "at least one token"),
        ([1, 100000], {}, "out of range"),
        ([1] * SIZE, {}, "longer than the maximum"),
        ([[1], [2]], {}, "one prompt at a time"),
        ([1], {"top_p": 1.5}, "`top_p` is out of range"),
        ([1], {"min_p": -0.1}, "`min_p` is out of range"),
        ([1], {"presence_penalty": float("nan")}, "`presence_penalty` is out of range"),
        ([1], {"logit_bias": {"a": 1.0}}, "`logit_bias` must map"),
        ([1], {"logit_bias": {100000: 1.0}}, "`logit_bias` names tokens"),
        ([1], {"logprobs": 101}, "`logprobs` must be a count"),
        ([1], {"deadline": 0}, "`deadline` must be seconds"),
        ([1], {"max_new_tokens": 0}, "`max_new_tokens` must be at least 1"),
        ([1], {"stop": [-1]}, "no such stop token"),
    ],
)
def test_mistakes_are_refused_at_once(
    engine_on: Callable[..., Engine], prompt: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises((ConfigError, FeedError), match=text):
        engine_on().submit(prompt, **options)


# Slots


def test_windows_hold_all_rows_and_stay_inside() -> None:
    draw = np.random.default_rng(3)
    for slots in (1, 2, 5, 8, 33):
        buckets = row_buckets(slots)
        for _ in range(50):
            count = int(draw.integers(1, slots + 1))
            numbers = sorted(int(n) for n in draw.choice(slots, count, replace=False))
            first, rows = window(numbers, buckets, slots)
            assert rows in buckets
            assert 0 <= first <= numbers[0]
            assert numbers[-1] < first + rows <= slots


def test_new_sequences_keep_together() -> None:
    slots = Slots(4)
    placed = [slots.place([n + 1, 2, 3]) for n in range(4)]
    assert [p.slot.number for p in placed if p is not None] == [0, 1, 2, 3]
    assert slots.place([5]) is None


def test_nothing_is_compiled_after_warm_up(folder: Path) -> None:
    """Steps of 1 to 4 rows, prompts of all lengths, and every kind of sampler."""
    with Engine(folder, "cpu", slots=4, max_length=SIZE, chunk=16) as engine:
        engine.warm_up()
        before = engine.stats["session"]["compiled"]
        samplers = engine._scheduler._sampler._sessions
        known = {kind: made.stats["compiled"] for kind, made in samplers.items()}
        kinds: list[dict[str, float]] = [
            {}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 4},
            {"presence_penalty": 1.0}, {"temperature": 1.0, "min_p": 0.1, "frequency_penalty": 1.0},
        ]  # fmt: skip
        for count in (1, 2, 3, 4):
            for options in kinds:
                streams = [engine.submit([n + 1] * (9 * n + 1), 3, **options) for n in range(count)]
                assert all(len(s.result().tokens) <= 3 for s in streams)
        assert engine.stats["session"]["compiled"] == before
        assert {kind: made.stats["compiled"] for kind, made in samplers.items()} == known
        with pytest.raises(ExecutionError, match="before its first sequence"):
            engine.warm_up()
