"""Takes turns: admits sequences into slots, feeds a part of one prompt, makes a token for the rest.

A turn runs at most one part of a prompt and one step, so that a stream waits at most that long for
its next token. Nothing here knows threads: the engine's thread calls `turn`, and callers only
change what the lock guards.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from monograph.generate.batching.body import SlotBody
from monograph.generate.batching.events import CANCELLED, DEADLINE, LENGTH, STOP, TokenEvent
from monograph.generate.batching.lookup import PromptLookup
from monograph.generate.batching.request import Request, ended_event
from monograph.generate.batching.row_sampler import RowSampler
from monograph.generate.batching.slots import Slot, Slots, window
from monograph.generate.batching.waiting import BatchCounters, RequestQueue
from monograph.ir import Array

Clock = Callable[[], float]


class Scheduler:
    """Sequences in slots, those that wait, and the turns that run them."""

    def __init__(
        self,
        body: SlotBody,
        sampler: RowSampler,
        *,
        chunk: int,
        invariant: bool = False,
        clock: Clock = time.monotonic,
        lookup: PromptLookup | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self.waiting = RequestQueue()
        self.counters = BatchCounters()
        self._body, self._sampler = body, sampler
        self._chunk, self._invariant, self._clock = chunk, invariant, clock
        self._lookup = None if invariant or body.single else lookup
        self._slots = Slots(body.slots)
        self._active: list[Request] = []
        """Sequences in slots; the one whose prompt was fed last comes last."""

    # Called by any thread, under the lock

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def has_work(self) -> bool:
        return bool(self._active) or len(self.waiting) > 0

    def submit(self, request: Request) -> None:
        self.waiting.put(request)
        self.counters.submitted += 1

    def fail_all(self, error: BaseException) -> None:
        """End every sequence with an error."""
        for request in [*self._active, *self.waiting.remove(lambda r: True)]:
            self._fail(request, error)

    # Called by one thread

    def warm_up(self) -> None:
        """Run every executable of steps and prompts on empty slots, and every sampler."""
        body, one = self._body, np.ones(1, np.int64)
        if not self._invariant:
            for size in {body.bucket(n, body.maximum) for n in range(1, self._chunk + 1)}:
                tokens = np.zeros((1, size), np.int64)
                self._sampler.warm_up(body.run(0, tokens, np.zeros(1, np.int64), one))
        whole = self._invariant and body.together
        for rows in (body.slots,) if whole else body.row_buckets:
            places, count = np.zeros(rows, np.int64), np.ones(rows, np.int64)
            self._sampler.warm_up(body.run(0, np.zeros((rows, 1), np.int64), places, count))
            size = 1 if self._lookup is None else 1 + self._lookup.count
            if 1 < size <= body.maximum:
                body.check(0, np.zeros((rows, size), np.int64), places)

    def turn(self) -> None:
        """End what is over, admit what fits, and run at most one part of a prompt and one step."""
        with self.lock:
            self._end_cancelled()
            placed = self._admit()
        for request, source, rows in placed:
            self._copy(request, source, rows)
        if not self._invariant:
            self._feed_prompt()
        self._step()

    def _end_cancelled(self) -> None:
        now = self._clock()

        def reason(r: Request) -> str | None:
            if r.cancelled:
                return CANCELLED
            return DEADLINE if r.deadline is not None and now >= r.deadline else None

        over = self.waiting.remove(lambda r: reason(r) is not None)
        for request in [*over, *(r for r in self._active if reason(r) is not None)]:
            found = reason(request)
            assert found is not None
            self._end(request, ended_event(found))

    def _admit(self) -> list[tuple[Request, Slot, int]]:
        """Give slots to waiting sequences; return the rows to copy between slots."""
        copies = []
        while (request := self.waiting.first()) is not None:
            placement = self._slots.place(request.tokens)
            if placement is None:
                break
            self.waiting.take()
            request.slot, request.filled = placement.slot, placement.reused
            request.stream.reused_tokens = placement.reused
            self._active.append(request)
            c = self.counters
            c.prompt_tokens += request.prompt
            c.reused_tokens += placement.reused
            c.prefix_hits += placement.reused > 0
            if placement.copied_from is not None:
                copies.append((request, placement.copied_from, placement.reused))
        return copies

    def _copy(self, request: Request, source: Slot, rows: int) -> None:
        assert request.slot is not None
        try:
            self._body.copy(source.number, request.slot.number, rows)
            self.counters.copied_rows += rows
        except Exception as error:
            with self.lock:
                self._fail(request, error)

    # Prompts

    def _feed_prompt(self) -> None:
        """Feed a part of the prompt that has waited longest."""
        request = next((r for r in self._active if r.left > 1), None)
        if request is None:
            return
        # The others' turn comes first next time.
        self._active.remove(request)
        self._active.append(request)
        assert request.slot is not None
        left = request.tokens[request.filled :]
        room = self._body.maximum - request.filled
        size = self._body.bucket(min(len(left), self._chunk), room)
        part = left[:size]
        # Padding repeats a token; it writes after the last real row.
        tokens = np.array([part + [part[-1]] * (size - len(part))], np.int64)
        places, count = np.array([request.filled]), np.array([len(part)])
        wanted = [request if len(part) == len(left) else None]

        def run() -> Any:
            return self._body.run(request.slot.number, tokens, places, count)  # type: ignore[union-attr]

        self.counters.prefill_runs += 1
        self.counters.prefill_tokens += len(part)
        self._run([request], run, wanted, [len(part)])

    # Steps

    def _step(self) -> None:
        """Make a token for every sequence whose prompt is in the cache but for its last token."""
        ready = [r for r in self._active if r.left == 1 or self._invariant]
        groups = [ready] if self._body.together else [[r] for r in ready]
        for group in groups:
            if group:
                self._step_together(group)

    def _step_together(self, group: Sequence[Request]) -> None:
        numbers = {r.slot.number: r for r in group if r.slot is not None}
        first, rows = window([*numbers], self._body.row_buckets, self._body.slots)
        if self._invariant and self._body.together:
            first, rows = 0, self._body.slots  # one executable computes every row
        guesses = self._guesses(group)
        if self._lookup is not None and self._checks(first, rows, guesses):
            self._check_together(first, rows, guesses)
            return
        tokens, places = np.zeros((rows, 1), np.int64), np.zeros(rows, np.int64)
        wanted: list[Request | None] = [None] * rows
        for row in range(rows):
            request = numbers.get(first + row)
            if request is None:
                places[row] = self._harmless(self._slots.all[first + row])
                continue
            tokens[row], places[row] = request.tokens[request.filled], request.filled
            wanted[row] = request if request.left == 1 else None
        self.counters.steps += 1
        self.counters.step_rows += rows
        self.counters.idle_rows += rows - len(numbers)
        count, began = np.ones(rows, np.int64), self._now()
        self._run(
            [*numbers.values()],
            lambda: self._body.run(first, tokens, places, count),
            wanted,
            [1] * len(numbers),
        )
        if self._lookup is not None:
            self._lookup.add_time(rows, 1, self._now() - began)
            for request, guess in guesses.items():
                if guess and request.tokens[request.filled :]:
                    request.repeats.observe(guess[0] == request.tokens[request.filled])

    def _now(self) -> float:
        return 0.0 if self._lookup is None else self._lookup.clock()

    # Proposed tokens

    def _guesses(self, group: Sequence[Request]) -> dict[Request, list[int]]:
        """Return the tokens that the text of each sequence proposes."""
        if self._lookup is None:
            return {}
        count = self._lookup.count
        return {r: r.repeats.proposals(r.tokens, min(count, r.most - r.made - 1)) for r in group}

    def _checks(self, first: int, rows: int, guesses: Mapping[Request, list[int]]) -> bool:
        """Return True if a check pays, and every row has room for it."""
        assert self._lookup is not None
        size = 1 + self._lookup.count
        if any(r.filled + size > self._body.maximum for r in self._within(first, rows).values()):
            return False
        own = {r.repeats: guess for r, guess in guesses.items()}
        return self._lookup.pays(rows, len(guesses), own)

    def _within(self, first: int, rows: int) -> dict[int, Request]:
        """Return the sequences that have slots in a range, by slot."""
        active = {r.slot.number: r for r in self._active if r.slot is not None}
        return {n: r for n, r in active.items() if first <= n < first + rows}

    def _check_together(self, first: int, rows: int, guesses: Mapping[Request, list[int]]) -> None:
        """Make tokens for all sequences: one each, and one for each proposal that is right."""
        assert self._lookup is not None
        size, owners = 1 + self._lookup.count, self._within(first, rows)
        tokens, places = np.zeros((rows, size), np.int64), np.zeros(rows, np.int64)
        wanted: list[Request | None] = [owners.get(first + b) for b in range(rows)]
        for b, request in enumerate(wanted):
            if request is None or request not in guesses:
                wanted[b] = None
                places[b] = self._harmless(self._slots.all[first + b], size)
                continue
            part = [request.tokens[request.filled], *guesses[request]]
            tokens[b], places[b] = (part + [part[-1]] * size)[:size], request.filled
        self.counters.steps += 1
        self.counters.checks += 1
        self.counters.step_rows += rows
        self.counters.idle_rows += rows - len(guesses)
        began = self._now()
        try:
            for j, logits in enumerate(self._body.check(first, tokens, places)):
                if not any(wanted):
                    break
                chosen, told = self._chosen(logits, wanted)
                wanted = self._accept_checked(j, chosen, told, wanted, guesses)
        except Exception as error:
            with self.lock:
                for request in guesses:
                    self._fail(request, error)
            return
        self._lookup.add_time(rows, size, self._now() - began)

    def _accept_checked(
        self,
        j: int,
        chosen: Sequence[int],
        told: Sequence[Array | None],
        wanted: Sequence[Request | None],
        guesses: Mapping[Request, list[int]],
    ) -> list[Request | None]:
        """Accept the token after proposal j of each row; return the rows that go on."""
        going: list[Request | None] = [None] * len(wanted)
        with self.lock:
            for row, request in enumerate(wanted):
                if request is None or request.slot is None:
                    continue
                request.slot.tokens.append(request.tokens[request.filled])
                request.filled += 1
                self._accept(request, chosen[row], told[row])
                if j >= len(guesses[request]):
                    continue
                right = guesses[request][j] == chosen[row]
                request.repeats.observe(right)
                self.counters.checked_tokens += 1
                self.counters.accepted_tokens += right
                if right and not request.ended:
                    going[row] = request
        return going

    def _harmless(self, slot: Slot, size: int = 1) -> int:
        """Return where a step may write rows in a slot that it does not make a token for."""
        owner = next((r for r in self._active if r.slot is slot), None)
        filled = len(slot.tokens) if owner is None else owner.filled
        place = min(filled, self._body.maximum - size)
        del slot.tokens[place:]
        return place

    def _run(
        self,
        fed: Sequence[Request],
        run: Callable[[], Any],
        wanted: Sequence[Request | None],
        counts: Sequence[int],
    ) -> None:
        """Run the decoder, count the rows it wrote, and choose tokens for the wanted rows."""
        try:
            logits = run()
            chosen, told = self._chosen(logits, wanted)
        except Exception as error:
            with self.lock:
                for request in fed:
                    self._fail(request, error)
            return
        with self.lock:
            for request, count in zip(fed, counts, strict=True):
                if request.slot is not None:
                    old = request.filled
                    request.filled += count
                    request.slot.tokens += request.tokens[old : request.filled]
            for row, owner in enumerate(wanted):
                if owner is not None:
                    self._accept(owner, chosen[row], told[row])

    def _chosen(
        self, logits: Any, wanted: Sequence[Request | None]
    ) -> tuple[list[int], list[Array | None]]:
        """Return a token for each row, and the logits of rows that report them."""
        if not any(wanted):
            return [0] * len(wanted), [None] * len(wanted)
        chosen = self._sampler.choose(logits, wanted)
        told: list[Array | None] = [None] * len(wanted)
        if any(r is not None and r.options.logprobs is not None for r in wanted):
            data = self._body.arrays.get(logits)
            for row, r in enumerate(wanted):
                if r is not None and r.options.logprobs is not None:
                    told[row] = data[row]
        return chosen, told

    # Events

    def _accept(self, request: Request, token: int, logits: Array | None) -> None:
        """Append a token to a sequence and tell its reader."""
        if request.ended:
            return
        request.append(token)
        self.counters.generated_tokens += 1
        text, stopped = request.shown(token)
        reason = None
        if token in request.stop or stopped:
            reason = STOP
        elif request.made >= request.most or len(request.tokens) >= self._body.maximum:
            reason = LENGTH
        if reason is not None:
            text += request.rest()
        logprob, top = _logprobs(logits, token, request.options.logprobs)
        event = TokenEvent(token, text, logprob, top, reason)
        if reason is None:
            request.stream.add_event(event)
        else:
            self._end(request, event)

    def _end(self, request: Request, event: TokenEvent) -> None:
        reason = event.finish_reason or ""
        self.counters.finished[reason] = self.counters.finished.get(reason, 0) + 1
        self._leave(request, valid=True)
        request.stream.add_event(event)

    def _fail(self, request: Request, error: BaseException) -> None:
        if not request.ended:
            self.counters.failed += 1
            self._leave(request, valid=False)
            request.stream.fail(error)

    def _leave(self, request: Request, valid: bool) -> None:
        request.ended = True
        if request.slot is not None:
            self._active.remove(request)
            self._slots.release(request.slot, valid)
            request.slot = None


def _logprobs(
    logits: Array | None, token: int, count: int | None
) -> tuple[float | None, tuple[tuple[int, float], ...]]:
    """Return the logarithm of a token's probability, and the most likely tokens with theirs."""
    if logits is None or count is None:
        return None, ()
    wide = logits.astype(np.float64)
    most = float(wide.max())
    logs = wide - most - math.log(float(np.exp(wide - most).sum()))
    count = min(count, len(logs))
    best = np.argsort(-logs, kind="stable")[:count]
    return float(logs[token]), tuple((int(t), float(logs[t])) for t in best)
