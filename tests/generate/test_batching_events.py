"""Random events on an engine's scheduler: no wrong token, no lost slot, no growth.

The decoder is a stand-in: its next token is a hash of the cached tokens before it, so that a row
that is missing, stale or of another sequence gives a wrong token. `MONOGRAPH_TEST_EVENTS` sets the
number of events, 10,000 takes about half a minute.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from monograph.generate.batching.events import LENGTH, TokenEvent
from monograph.generate.batching.lookup import PromptLookup
from monograph.generate.batching.options import RequestOptions
from monograph.generate.batching.request import Request, TokenStream
from monograph.generate.batching.scheduler import Scheduler
from monograph.generate.batching.slots import row_buckets
from monograph.generate.engine.arrays import HostArrays
from monograph.generate.prompts import StopTokens

SEED = int(os.environ.get("MONOGRAPH_TEST_SEED", "0"))
EVENTS = int(os.environ.get("MONOGRAPH_TEST_EVENTS", "2000"))
VOCABULARY = 13
"""Few tokens, so that texts repeat themselves and lookup finds proposals."""


def next_token(tokens: Sequence[int]) -> int:
    """Return the token after others: often one that continues an earlier text."""
    last = tokens[-1:] if zlib.crc32(bytes(tokens)) % 8 else tokens
    return zlib.crc32(bytes(last)) % VOCABULARY


def right_tokens(prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class InjectedError(Exception):
    """A fault of the stand-in."""


@dataclass
class StandIn:
    """A decoder whose cache holds tokens; it fails before or after a run writes."""

    slots: int
    maximum: int
    draw: np.random.Generator
    faults: float
    together: bool = True
    single: bool = False
    arrays: HostArrays = field(default_factory=HostArrays)
    raised: int = 0

    def __post_init__(self) -> None:
        self.cells = np.full((self.slots, self.maximum), 99, np.int64)
        self.row_buckets = row_buckets(self.slots)

    def fault(self) -> None:
        if self.draw.random() < self.faults:
            self.raised += 1
            raise InjectedError("injected")

    def _write(self, first: int, tokens: Any, position: Any) -> None:
        self.fault()
        for b, (row, at) in enumerate(zip(tokens, position, strict=True)):
            assert at + len(row) <= self.maximum
            self.cells[first + b, at : at + len(row)] = row
        self.fault()

    def _logits(self, slot: int, length: int) -> Any:
        made = np.zeros(VOCABULARY, np.float32)
        made[next_token(self.cells[slot, :length].tolist())] = 1
        return made

    def run(self, first: int, tokens: Any, position: Any, count: Any) -> Any:
        self._write(first, tokens, position)
        pairs = zip(position, count, strict=True)
        return np.stack([self._logits(first + b, p + n) for b, (p, n) in enumerate(pairs)])

    def check(self, first: int, tokens: Any, position: Any) -> list[Any]:
        self._write(first, tokens, position)
        return [
            np.stack([self._logits(first + b, p + j + 1) for b, p in enumerate(position)])
            for j in range(tokens.shape[1])
        ]

    def copy(self, source: int, target: int, rows: int) -> None:
        self.fault()
        self.cells[target, :rows] = self.cells[source, :rows]

    def bucket(self, wanted: int, room: int) -> int:
        return min(wanted + int(self.draw.integers(3)), room)


class BestTokens:
    """A sampler that takes the most likely tokens, and fails like the decoder."""

    def __init__(self, body: StandIn) -> None:
        self.body = body

    def choose(self, logits: Any, rows: Any) -> list[int]:
        self.body.fault()
        return [int(t) for t in np.argmax(logits, 1)]


class Events:
    """Submits, cancels, deadlines and turns at random."""

    def __init__(self, seed: int, lookup: int, faults: float, invariant: bool = False) -> None:
        self.draw = draw = np.random.default_rng(seed)
        self.body = StandIn(6, 40, draw, faults)
        self.now = 0.0
        self.lookup = PromptLookup(lookup, lambda: self.now) if lookup else None
        self.scheduler = Scheduler(
            self.body,  # type: ignore[arg-type]
            BestTokens(self.body),  # type: ignore[arg-type]
            chunk=8,
            invariant=invariant,
            clock=lambda: self.now,
            lookup=self.lookup,
        )
        self.live: list[Request] = []
        self.ends: Counter[str] = Counter()

    def submit(self) -> None:
        begun = [r.tokens for r in self.live if self.draw.random() < 0.3]
        prompt = [int(t) for t in self.draw.integers(0, VOCABULARY, self.draw.integers(1, 20))]
        prompt = [*begun[0][:24], *prompt][:36] if begun else prompt
        most = min(int(self.draw.integers(1, 20)), self.body.maximum - len(prompt))
        late = self.now + int(self.draw.integers(1, 30)) if self.draw.random() < 0.2 else None
        request = Request(
            prompt, len(prompt), most, RequestOptions(), StopTokens(()), VOCABULARY, None,
            str(self.draw.integers(3)), late,
        )  # fmt: skip
        request.stream = TokenStream(len(prompt), lambda: None)
        self.scheduler.submit(request)
        self.live.append(request)

    def step(self) -> None:
        event = self.draw.random()
        self.now += 1
        if event < 0.2 and len(self.live) < 20:
            self.submit()
        elif event < 0.25 and self.live:
            self.live[int(self.draw.integers(len(self.live)))].cancelled = True
        else:
            self.scheduler.turn()
        self.look()

    def look(self) -> None:
        """Compare what ended, and count slots."""
        for request in [r for r in self.live if r.stream.done]:
            self.live.remove(request)
            self._ended(request)
        slots, active = self.scheduler._slots, self.scheduler._active
        held = [r.slot.number for r in active if r.slot is not None]
        assert len(held) == len(active) == len(set(held))
        assert slots.free == self.body.slots - len(held)
        assert all(len(s.tokens) <= self.body.maximum for s in slots.all)
        assert self.scheduler.active + len(self.scheduler.waiting) == len(self.live)

    def _ended(self, request: Request) -> None:
        events: list[TokenEvent] = request.stream._all
        made = [e.id for e in events if e.id is not None]
        right = right_tokens(request.tokens[: request.prompt], request.most)
        assert made == right[: len(made)]
        reason = request.stream.finish_reason
        if reason == LENGTH:
            assert made == right
        self.ends[reason or "failed"] += 1


@pytest.mark.parametrize(("lookup", "invariant"), [(0, False), (0, True), (4, False)])
def test_random_events_with_faults(lookup: int, invariant: bool) -> None:
    events = Events(SEED + 5, lookup, 0.01, invariant)
    for _ in range(EVENTS):
        events.step()
    events.body.faults = 0.0
    for _ in range(1000):
        if not events.live:
            break
        events.now += 1
        events.scheduler.turn()
        events.look()
    assert not events.live
    assert events.body.raised > 0
    assert {"length", "cancelled", "deadline", "failed"} <= set(events.ends), f"seed {SEED + 5}"
    counters = events.scheduler.counters
    assert counters.submitted == sum(events.ends.values())
    assert counters.failed == events.ends["failed"]
    if lookup:
        assert counters.checked_tokens > counters.accepted_tokens > 0


@pytest.mark.parametrize("lookup", [0, 4])
def test_a_fault_at_every_step_in_turn(lookup: int) -> None:
    """The same submits with the n-th call failing: sequences beside it get their tokens."""
    for fault in range(40):
        events = Events(SEED + 9, lookup, 0.0)
        for _ in range(8):
            events.submit()
        calls = [0]

        def failing(calls: list[int] = calls, fault: int = fault) -> None:
            calls[0] += 1
            if calls[0] == fault:
                raise InjectedError("injected")

        events.body.fault = failing  # type: ignore[method-assign]
        for _ in range(200):
            events.scheduler.turn()
            events.look()
        assert not events.live
        assert events.ends["length"] >= 1
