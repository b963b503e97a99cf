"""Calls in any order: a token is what a decoder says that has seen its sequence and no more."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.decoders import build

from monograph import Generator
from tests.generate.queued import Queue

MAXIMUM, VOCABULARY = 40, 512
SEED = int(os.environ.get("MONOGRAPH_TEST_SEED", "7"))
CASES = int(os.environ.get("MONOGRAPH_TEST_CASES", "5"))
LENGTHS = (1, 2, 7, 8, 9, 17, 30, 39)


class _Oracle:
    """The next token of a sequence, found from nothing each time."""

    def __init__(self, folder: Path, penalty: float) -> None:
        options = {"max_length": MAXIMUM + 1, "stop": (), "buckets": [8], "logits": True}
        self._made = Generator(folder, "cpu", threads=1, repetition_penalty=penalty, **options)
        self._known: dict[tuple[int, ...], tuple[int, Any]] = {}

    def behind(self, row: list[int]) -> tuple[int, Any]:
        """The token, and the logits that it is chosen by."""
        key = tuple(row)
        if key not in self._known:
            self._made.reset()
            self._made.append_tokens(row)
            logits = self._made.get_logits()[0]
            self._made.generate_next_token()
            self._known[key] = int(self._made.get_next_tokens()[0]), logits
        return self._known[key]

    def row(self, row: list[int], count: int, stop: set[int]) -> list[int]:
        """A row with so many tokens more, or up to a stop token."""
        row = list(row)
        for _ in range(count):
            row.append(self.behind(row)[0])
            if row[-1] in stop:
                break
        return row


class _Case:
    """A generator that is used at random, beside the rows that it should have."""

    def __init__(
        self, folder: Path, oracle: _Oracle, penalty: float, rng: np.random.Generator
    ) -> None:
        self.rng, self.oracle = rng, oracle
        self.stop = {*rng.integers(0, VOCABULARY, int(rng.integers(0, 30))).tolist()}
        self.g = Generator(
            folder, "cpu", max_length=MAXIMUM, stop=self.stop, buckets=[8], threads=1, logits=True,
            repetition_penalty=penalty,
        )  # fmt: skip
        self.rows: list[list[int]] = []
        self.done: list[bool] = []
        self.log: list[Any] = []

    def drawn(self, lengths: Any) -> list[list[int]]:
        return [self.rng.integers(0, VOCABULARY, int(n)).tolist() for n in lengths]

    def begin(self) -> None:
        """A prompt by itself, a whole generation, or a stream that is broken off."""
        kind = self.rng.integers(0, 3)
        prompts = self.drawn(self.rng.choice(LENGTHS, 1 if kind == 2 else self.rng.integers(1, 4)))
        room = MAXIMUM - max(map(len, prompts))
        count, one_launch = int(self.rng.integers(0, room + 1)), bool(self.rng.integers(0, 2))
        self.log.append((int(kind), prompts, count, one_launch))
        self.rows, self.done = prompts, [False] * len(prompts)
        if kind == 0:
            self.g.reset()
            self.g.append_tokens(prompts)
            return
        if kind == 1:
            self.g.generate(prompts, count, one_launch=one_launch)
        else:
            stream = self.g.stream(prompts, count, one_launch=one_launch)
            taken = [*islice(stream, 3)]
            count = self.g.token_count() - len(prompts[0]) if one_launch else len(taken)
            stream.close()
        self.rows = [self.oracle.row(p, count, self.stop) for p in prompts]
        grown = [len(r) > len(p) for r, p in zip(self.rows, prompts, strict=True)]
        self.done = [n and r[-1] in self.stop for n, r in zip(grown, self.rows, strict=True)]

    def go_on(self) -> None:
        kind = self.rng.integers(0, 4)
        self.log.append(int(kind))
        if kind == 0:
            more = self.drawn(self.rng.integers(1, 10, len(self.rows)))
            if max(len(r) + len(m) for r, m in zip(self.rows, more, strict=True)) < MAXIMUM:
                self.g.append_tokens(more)
                self.rows = [[*r, *m] for r, m in zip(self.rows, more, strict=True)]
                self.done = [False] * len(self.rows)
        elif kind == 1:
            length = int(self.rng.integers(1, min(map(len, self.rows)) + 1))
            self.g.rewind_to(length)
            self.rows, self.done = [r[:length] for r in self.rows], [False] * len(self.rows)
        elif kind == 2:
            found = self.g.get_logits()
            for row, logits in zip(self.rows, found, strict=True):
                expected = self.oracle.behind(row)[1]
                np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
        for _ in range(int(self.rng.integers(0, 6))):
            if self.g.is_done():
                break
            self.g.generate_next_token()
            for b, row in enumerate(self.rows):
                if not self.done[b]:
                    self.rows[b] = self.oracle.row(row, 1, self.stop)
                    self.done[b] = self.rows[b][-1] in self.stop

    def check(self) -> None:
        found = [self.g.get_sequence(b).tolist() for b in range(len(self.rows))]
        assert found == self.rows


@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_calls_in_any_order_that_run_ahead(style: str, tmp_path: Path, queue: Queue) -> None:
    test_calls_in_any_order(style, 1.0, tmp_path)
    assert len(queue.numbers("start")) > 20
    assert queue.numbers("wait")


@pytest.mark.parametrize("penalty", [1.0, 1.4])
@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_calls_in_any_order(style: str, penalty: float, tmp_path: Path) -> None:
    build(tmp_path, "tiny-llama", style=style)
    oracle = _Oracle(tmp_path, penalty)
    for seed in range(SEED, SEED + CASES):
        case = _Case(tmp_path, oracle, penalty, np.random.default_rng(seed))
        try:
            for _ in range(3):
                case.begin()
                case.check()
                for _ in range(4):
                    case.go_on()
                    case.check()
        except BaseException as e:
            e.add_note(f"MONOGRAPH_TEST_SEED={seed} MONOGRAPH_TEST_CASES=1: {case.log}")
            raise
