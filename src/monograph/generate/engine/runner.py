"""Runs decoding steps: feeds tokens in buckets, keeps the cache, and returns generated tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from onnx import helper

from monograph.config import Config
from monograph.errors import FeedError, MonographError
from monograph.generate.discover.decoder import Decoder
from monograph.generate.discover.folder import Settings
from monograph.generate.engine.arrays import Arrays, Logits, arrays_of
from monograph.generate.engine.samplers import PipelinedStep, Samplers
from monograph.generate.prompts import check_buckets, choose_bucket, make_buckets
from monograph.generate.rewrite.loop import LoopModel
from monograph.generate.rewrite.sampling import SEEN, SamplerShape, Sampling
from monograph.generate.rewrite.step import (
    COUNT,
    LOGITS,
    NEXT,
    NEXT_POSITION,
    POSITION,
    START,
    TOKENS,
    DecodeStep,
)
from monograph.generate.stats import Timing, cache_row_bytes, weight_bytes
from monograph.ir import Array
from monograph.runtime.progress import Progress
from monograph.session import Session

_FLOATS = {"temperature", "top_p", "penalty"}
_STOPS = 8
"""The least room for stop tokens: their number is no shape of its own."""


class StepRunner:
    """A decoder on a target, with room for a batch of sequences."""

    def __init__(
        self,
        settings: Settings,
        config: Config,
        maximum: int,
        buckets: Sequence[int] | int | None,
        logits: bool,
        progress: Progress | None,
    ) -> None:
        lengths = check_buckets(buckets)
        self._samplers = Samplers(settings, config, maximum, logits, progress)
        self.maximum = maximum
        self.logits = Logits(logits)
        self.timing = Timing()
        self.sampling: Sampling | None = Sampling()
        """The sampling of the steps."""
        self.step: DecodeStep
        self.session: Session
        self.choose(SamplerShape())
        self._arrays: Arrays = arrays_of(self.session)
        """The state arrays of all sessions."""
        self.decoder: Decoder = self.step.decoder
        self.buckets = make_buckets(lengths, maximum, self.decoder.single)
        self.state: dict[str, Any] = {}
        self.batch = 0
        self._data: dict[str, Any] = {}
        self._next: Any = None
        self._position: Any = None
        self._ones: Any = None
        self._ahead: PipelinedStep | None = None
        """A step that was started before it is requested."""
        self._ended = 0.0
        """The time when the step before it ended."""
        self._runs = 0
        self._filled = 0
        self._start: list[int] = []
        """Of aligned rows: the filled length of the cache, and the start of each row."""
        self._started: Any = None
        self._last: list[int] = []
        """The last token of each row, which pads rows without further tokens."""
        self._stops = _STOPS
        self._made_logits: Any = None
        self.last_feeds: dict[str, Any] = {}
        """The feeds of the last run; its caches hold the state after that run."""

    def choose(self, shape: SamplerShape) -> None:
        """Select the session that samples tokens in this way."""
        self._sampler = self._samplers.choose(shape)
        self.step, self.session = self._sampler.step, self._sampler.session

    def stats(self) -> dict[str, Any]:
        """The sum of the statistics of all sessions, as `Session.stats`."""
        return self._samplers.stats()

    def start(self, batch: int, sampling: Sampling) -> None:
        """Prepare for a batch of new sequences; existing memory is used again."""
        self.choose(sampling.shape)
        if batch != self.batch or not self.state:
            self.state = {
                c.past: self._arrays.zeros(
                    (batch, c.heads, self.maximum, c.size),
                    np.dtype(helper.tensor_dtype_to_np_dtype(c.dtype)),
                )
                for c in self.decoder.caches
            }
            self._ones = self._arrays.put(np.ones(batch, np.int64))
        self.batch = batch
        self._last = [0] * batch
        self._start, self._filled = [0] * batch, 0
        self._started = self._arrays.put(np.zeros(batch, np.int64))
        self._position = None
        self.forget()
        self.set_data(sampling, [[] for _ in range(batch)])

    def set_data(self, sampling: Sampling, fed: Sequence[Sequence[int]]) -> None:
        """Set the sampler's data, including the tokens in the cache."""
        self.choose(sampling.shape)
        self.sampling = sampling
        self._data = {
            name: self._arrays.put(np.array([x], np.float32 if name in _FLOATS else np.int64))
            for name, x in sampling.data().items()
        }
        self.state.pop(SEEN, None)
        if sampling.shape.penalised:
            seen = np.zeros((self.batch, self.decoder.vocabulary), np.uint8)
            for row, tokens in zip(seen, fed, strict=True):
                row[list(tokens)] = 1
            self.state[SEEN] = self._arrays.put(seen)

    def decode(self, further: bool = False) -> Array:
        """Feed the tokens of the last run; return the generated tokens, [batch].

        `further`: another step will follow, and the cache has room for it. On a GPU it is started
        before the engine waits for this one.
        """
        assert self._next is not None
        began = time.perf_counter()
        self.logits.forget(self.batch)
        step = self._ahead
        if step is not None and step.follows(self.session, self._next, self._data):
            self._ahead, began = None, self._ended
        elif further and self._can_run_ahead():
            step = self._begin(self._next, self._position)
        else:
            step = None
        if step is None:
            chosen = self._run(self._next, self._position, self._ones)
        else:
            chosen = self._finish(step, further)
        self._filled += 1
        self.logits.keep(self._made_logits, range(self.batch))
        self._ended = time.perf_counter()
        self.timing.decode_seconds += self._ended - began
        self.timing.decode_runs += 1
        self.timing.decode_launches += 1
        return chosen

    def _can_run_ahead(self) -> bool:
        """Return True if a step may run in vain: not if it marks tokens as seen."""
        return self.session.gpu is not None and SEEN not in self.state

    def _begin(self, tokens: Any, position: Any) -> PipelinedStep:
        """Start a step without waiting."""
        self.settle()
        feeds, places = self._given(tokens, position, self._ones)
        pending = self.session.run_async(feeds, out=places)
        return PipelinedStep(self.session, tokens, self._data, pending, self._arrays.mark())

    def _finish(self, step: PipelinedStep, further: bool) -> Array:
        """Wait for a started step, after the next one is started too."""
        self._next = self._made_logits = None  # unknown until the run ends
        made = step.enqueued() if further else None
        if made is not None:
            # If the next step cannot start, the next call raises the error: this step has its
            # token.
            with suppress(MonographError):
                self._ahead = self._begin(made[NEXT], made[NEXT_POSITION])
        return self._made(step.result(), step.mark)

    def settle(self) -> None:
        """Wait for a step that ran ahead and whose token is not needed."""
        step, self._ahead = self._ahead, None
        if step is not None:
            step.settle()

    def loop(self, turns: int, stop: Sequence[int], ended: Sequence[bool]) -> Array:
        """Generate several tokens in one launch; return them as [batch, turns].

        The loop ends after `turns` iterations, or when every row has had a stop token; rows that
        have `ended` before do not change.
        """
        assert self._next is not None
        loop, session = self._samplers.loop(self._sampler)
        self.expect_stops(len(stop))
        began = time.perf_counter()
        put = self._arrays.put
        feeds = {
            "first.tokens": self._next,
            "first.position": self._position,
            "first.ended": put(np.array(ended, np.bool_)),
            "first.made": self._arrays.zeros((self.batch, self.maximum), np.dtype(np.int64)),
            "turns": put(np.array([turns], np.int64)),
            "stop": put(np.array([*stop, *[-1] * (self._stops - len(stop))], np.int64)),
            **{outer: self.state[name] for outer, name in loop.state.items()},
            **self._data,
        }
        if self.step.aligned:
            feeds[START] = self._started
        places = {new: feeds[old] for new, old in loop.donate.items()}
        outputs = [p.name for p in session.outputs]
        self.forget()
        # If the wait is interrupted, the run has marked tokens as seen that no row has.
        sampling, self.sampling = self.sampling, None
        found = dict(zip(outputs, session.run(feeds, out=places), strict=True))
        count = int(self._arrays.get(found["made_turns"])[0])
        made = self._arrays.get(found["all_made"])[:, :count].copy()
        self.sampling = sampling
        self._next, self._position = found["last.tokens"], found["last.position"]
        self._filled += count
        self.timing.decode_seconds += time.perf_counter() - began
        self.timing.decode_runs += count
        self.timing.decode_launches += 1
        return made

    @property
    def _loop(self) -> tuple[LoopModel, Session] | None:
        return self._sampler.loop

    def loop_session(self) -> Session:
        """The session that generates several tokens in one launch."""
        return self._samplers.loop(self._sampler)[1]

    def expect_stops(self, count: int) -> None:
        """Make room for this many stop tokens in one launch; more need a new compilation."""
        while self._stops < count:
            self._stops *= 2

    def room(self) -> int:
        """Return the number of steps that the cache has room for."""
        return self.maximum - self._filled if self.step.aligned else self.maximum

    def can_decode(self) -> bool:
        """Return True if the last run generated a token for every row, and one more fits."""
        return self._next is not None and self.room() > 0

    def forget(self) -> None:
        """Drop the generated tokens: they are not the next ones."""
        self._next = None
        self.logits.forget(self.batch)
        self.settle()  # last, so that all is dropped if the wait is interrupted

    @property
    def counts(self) -> bool:
        """True if padding before rows would change them, so that all must be equally long."""
        return self.step.aligned and (self.step.uniform or self.decoder.positions is None)

    def check_lengths(self, lengths: Sequence[int]) -> None:
        """Raise an error for sequences of unequal lengths if the decoder cannot tell them apart."""
        if self.step.uniform and len(set(lengths)) > 1:
            raise FeedError(
                "sequences of a batch must be equally long: the decoder has no position input",
                expected="as many tokens in each",
                given=list(lengths),
                hint="run the prompts one by one, or export the decoder with position_ids",
            )

    def feed(self, rows: Sequence[Sequence[int]], position: Array, prompt: bool = False) -> Array:
        """Feed each row from a position on, and advance the positions.

        A row is a whole sequence; tokens before its position are in the cache. A row with its
        position at the end does not change. Return the token generated after each row that was fed.
        `prompt` counts the feed as a prompt, whatever its length.
        """
        began = time.perf_counter()
        left = [list(row[int(p) :]) for row, p in zip(rows, position, strict=True)]
        fed, runs = sum(map(len, left)), self._runs
        if not fed:
            return np.zeros(self.batch, np.int64)
        for b, row in enumerate(left):
            if row:
                self.logits.drop(b)
        if self.step.aligned:
            chosen = self._feed_aligned(rows, left, position)
        else:
            chosen = self._feed_free(left, position)
        runs = self._runs - runs
        seconds = time.perf_counter() - began
        if prompt or fed > self.batch:
            self.timing.prefill_seconds += seconds
            self.timing.prefill_runs += runs
            self.timing.prefill_tokens += fed
        else:
            self.timing.decode_seconds += seconds
            self.timing.decode_runs += runs
            self.timing.decode_launches += runs
        return chosen

    def _feed_free(self, left: list[list[int]], position: Array) -> Array:
        """Feed rows with positions of their own, and padding after them."""
        chosen = np.zeros(self.batch, np.int64)
        done = [0] * self.batch
        put, runs = self._arrays.put, self._runs
        while going := [b for b in range(self.batch) if done[b] < len(left[b])]:
            rest = [row[n:] for n, row in zip(done, left, strict=True)]
            size = self.bucket(max(map(len, rest)), self.maximum - int(position[going].max()))
            count = np.array([min(len(row), size) for row in rest], np.int64)
            tokens = np.zeros((self.batch, size), np.int64)
            for b, row in enumerate(rest):
                # Padding repeats a token of the row itself, so that no other token is marked as
                # seen.
                tokens[b] = (row[:size] + [row[0]] * size)[:size] if row else self._last[b]
                if row:
                    self._last[b] = row[count[b] - 1]
                else:
                    # A row without tokens writes all the same, so the write has to fit.
                    position[b] = min(int(position[b]), self.maximum - size)
            made = self._run(put(tokens), put(position), put(count))
            whole = [b for b in going if len(rest[b]) <= size]
            self.logits.keep(self._made_logits, whole)
            for b in going:
                chosen[b] = made[b]
                position[b] += count[b]
                done[b] += int(count[b])
        if position.max() >= self.maximum:
            self._next = None  # the row has no room for a write
        elif self._runs - runs > 1:
            self._next, self._position = put(chosen[:, None]), put(position)
        return chosen

    def _feed_aligned(
        self, rows: Sequence[Sequence[int]], left: list[list[int]], position: Array
    ) -> Array:
        """Feed rows that are all at one position, with padding before short ones.

        If they are not, because some ended before others, or if padding has left no room, all are
        fed again.
        """
        going = held = [b for b, row in enumerate(left) if row]
        places = {(int(position[b]) + self._start[b], len(left[b])) for b in going}
        place, length = max(places)
        if len(places) == 1 and place <= self._filled and place + length <= self.maximum:
            self._filled = place  # less than before if sequences were rewound
        else:
            left, held = self._aligned(rows, going)
            position[:] = 0  # if a run fails, the cache holds nothing valid
            self._filled, length = 0, max(map(len, left))
        table = np.array([row or [self._last[b]] * length for b, row in enumerate(left)], np.int64)
        made = np.zeros(self.batch, np.int64)
        put = self._arrays.put
        self._started = put(np.array(self._start, np.int64))
        while table.shape[1]:
            size = self.bucket(table.shape[1], self.maximum - self._filled)
            count = min(size, table.shape[1])
            padding = np.repeat(table[:, :1], size - count, 1)
            tokens = np.concatenate([table[:, :count], padding], 1)
            places_ = np.full(self.batch, self._filled, np.int64)
            made = self._run(put(tokens), put(places_), put(np.full(self.batch, count, np.int64)))
            self._filled += count
            self._last = [int(t) for t in table[:, count - 1]]
            table = table[:, count:]
        self.logits.keep(self._made_logits, going)
        for b in held:
            position[b] = len(rows[b])
        return made

    def _aligned(
        self, rows: Sequence[Sequence[int]], going: list[int]
    ) -> tuple[list[list[int]], list[int]]:
        """Return rows padded at the front to the longest active one, and their starts.

        A row that has ended is left out (as empty) if it is longer than that, or if the decoder
        cannot distinguish padding from tokens.
        """
        longest = max(len(rows[b]) for b in going)
        least = longest if self.counts else 1
        held = [b for b, row in enumerate(rows) if least <= len(row) <= longest]
        self._start = [longest - len(row) if b in held else 0 for b, row in enumerate(rows)]
        left: list[list[int]] = [[] for _ in rows]
        for b in held:
            left[b] = [rows[b][0]] * self._start[b] + list(rows[b])
        return left, held

    def bucket(self, wanted: int, room: int) -> int:
        """Return the number of tokens to feed at once: all of them if a bucket has room."""
        return choose_bucket(self.buckets, wanted, room)

    def _run(self, tokens: Any, position: Any, count: Any) -> Array:
        self.settle()
        feeds, places = self._given(tokens, position, count)
        self._next = self._made_logits = None  # unknown until the run ends
        found = self.session.run(feeds, out=places)
        return self._made(dict(zip(self._outputs, found, strict=True)))

    def _given(
        self, tokens: Any, position: Any, count: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the feeds of a step, and the arrays that it writes its state to."""
        feeds = {TOKENS: tokens, POSITION: position, COUNT: count, **self.state, **self._data}
        if self.step.aligned:
            feeds[START] = self._started
        self.last_feeds = feeds
        return feeds, {present: self.state[past] for present, past in self.step.donate.items()}

    def _made(self, made: dict[str, Any], mark: Any = None) -> Array:
        """Keep the state for the next step; return generated tokens, [batch], after the mark."""
        # First: if the read is interrupted, there is no generated token.
        chosen = self._arrays.get(made[NEXT], mark).reshape(-1).copy()
        self._runs += 1
        self._made_logits = made.get(LOGITS)
        self._next, self._position = made[NEXT], made[NEXT_POSITION]
        return chosen

    @property
    def _outputs(self) -> list[str]:
        return [p.name for p in self.session.outputs]

    def read_logits(self) -> Array:
        """Return the logits after each row, [batch, vocabulary]; NaN where they are unknown."""
        return self.logits.read(self._arrays.get, self.decoder.vocabulary)

    def place(self, position: int) -> None:
        """Set the position as if this many tokens were in the cache; for measurements."""
        self._next = self._arrays.put(np.zeros((self.batch, 1), np.int64))
        self._position = self._arrays.put(np.full(self.batch, position, np.int64))
        self._filled = position

    def weight_bytes(self) -> int:
        """Return the bytes of the weights that a step reads whole, without lookup tables."""
        return weight_bytes(self.step.model)

    def cache_bytes(self, position: int) -> int:
        """Return the bytes of the cache that attention reads at this position."""
        return cache_row_bytes(self.decoder.caches) * position * self.batch
