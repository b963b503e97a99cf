"""Engine: many sequences at once on one decoder."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn, Self

from monograph.config import make_config
from monograph.errors import ConfigError, ExecutionError, FeedError
from monograph.generate.batching.body import SlotBody
from monograph.generate.batching.events import Completion
from monograph.generate.batching.lookup import MOST_PROPOSED, PromptLookup
from monograph.generate.batching.options import RequestOptions
from monograph.generate.batching.request import Request, TokenStream, closed_error
from monograph.generate.batching.row_sampler import RowSampler
from monograph.generate.batching.scheduler import Scheduler
from monograph.generate.discover.folder import find_decoder
from monograph.generate.prompts import (
    StopTokens,
    check_ids,
    check_room,
    choose_length,
    flag,
    ids_in,
    integer,
    length_limit,
    stop_ids,
    stops_in,
)
from monograph.generate.rewrite.step import most_positions
from monograph.generate.text import Text
from monograph.runtime.progress import Progress, check_progress

CHUNK = 256
"""The tokens of a prompt that are fed between two steps."""


class QueueFullError(ExecutionError):
    """The engine's queue is full: try again later."""


class Engine:
    """A decoder that generates many sequences at once; any thread and any event loop may submit.

    model: a folder with a decoder, or the path of one.
    target: the target, as for `monograph.load`.
    slots: the most sequences at once; the caches have room for all of them from the start.
    max_length: the most tokens of a sequence, prompt included. Default: the decoder's context, but
        at most 2048.
    stop: what ends a sequence: ids, or texts. Default: those of the decoder's configuration.
    queue: the most sequences that wait for a slot; `submit` then raises `QueueFullError`.
    chunk: the most tokens of a prompt that are fed between two steps.
    buckets: the lengths that parts of prompts are padded to.
    batch_invariant: compute every token by the same executable, so that a sequence gets the same
        bits whatever runs beside it. Prompts are then fed token by token.
    lookup: the most tokens that are proposed from the text of a sequence and checked in one step,
        where that measures faster; 0 for none. The tokens are the same.
    options: see `monograph.config.Config`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        target: str | None = None,
        *,
        slots: int = 32,
        max_length: int | None = None,
        stop: Iterable[int | str] | int | str | None = None,
        queue: int = 1024,
        chunk: int = CHUNK,
        buckets: Sequence[int] | int | None = None,
        batch_invariant: bool = False,
        lookup: int = 0,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        config = make_config(target=target, **options)
        check_progress(progress)
        sizes = {"slots": slots, "queue": queue, "chunk": chunk}
        for name, size in sizes.items():
            if integer(name, size) < 1:
                raise ConfigError(f"`{name}` must be at least 1", given=size)
        self._settings = settings = find_decoder(model)
        context = settings.context
        if max_length is None and context is None:
            context = most_positions(settings)
        self.max_length = choose_length(max_length, context)
        self.slots, self._queue = integer("slots", slots), integer("queue", queue)
        invariant = flag("batch_invariant", batch_invariant)
        checking = _lookup(lookup, invariant)
        self._body = SlotBody(settings, config, self.max_length, self.slots, buckets, progress)
        sampler = RowSampler(
            config, self._body.arrays, self._body.vocabulary, self._body.step.directory
        )
        self._scheduler = Scheduler(
            self._body, sampler, chunk=chunk, invariant=invariant, lookup=checking
        )
        self._text: Text | None = None
        if settings.tokenizer is not None:
            self._text = _text_of(settings.tokenizer, settings.model)
        given = settings.stop if stop is None else stop
        self._stop = self._stops(given, settings.stop_source if stop is None else "")
        self._work = threading.Condition(self._scheduler.lock)
        self._closed = False
        self._thread: threading.Thread | None = None

    # Properties

    @property
    def vocabulary(self) -> int:
        """The size of the decoder's vocabulary."""
        return self._body.vocabulary

    @property
    def together(self) -> bool:
        """True if one step makes tokens for many sequences.

        Plain decoders count positions for all rows of a batch alike: they make one token for one
        sequence at a time.
        """
        return self._body.together

    @property
    def cache_bytes(self) -> int:
        """The memory of the caches: slots times `max_length` rows."""
        return self._body.cache_bytes

    @property
    def tokenizer(self) -> Text:
        """The tokenizer; raises an error that names what is missing if there is none."""
        if self._text is None:
            self._text = Text(self._settings.tokenizer, self._settings.model)
        return self._text

    @property
    def stop_tokens(self) -> StopTokens:
        """The ids and texts that end a sequence whose `submit` names none."""
        return self._stop

    @property
    def counts(self) -> dict[str, Any]:
        """Counts since the start: sequences, tokens, steps, reused prefixes."""
        with self._scheduler.lock:
            found = asdict(self._scheduler.counters)
            found |= {"waiting": len(self._scheduler.waiting), "active": self._scheduler.active}
        return found

    @property
    def stats(self) -> dict[str, Any]:
        """The counts, the size of the caches, and under `session` those of the compiled code."""
        found = self.counts
        found |= {"slots": self.slots, "together": self.together, "cache_bytes": self.cache_bytes}
        return {**found, "session": self._body.session.stats}

    # Sequences

    def submit(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int | None = None,
        *,
        stop: Iterable[int | str] | int | str | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        seed: int = 0,
        logprobs: int | None = None,
        deadline: float | None = None,
        client: str = "",
        continued: int = 0,
    ) -> TokenStream:
        """Queue a prompt and return the stream of its tokens at once.

        max_new_tokens: the most generated tokens; by default until a stop token or `max_length`.
        deadline: seconds from now after which the sequence ends, finished or not.
        client: sequences of different clients take turns for slots.
        continued: the tokens at the end of the prompt that an earlier sequence generated; penalties
            count them as generated.
        """
        options = RequestOptions(
            temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
            frequency_penalty, logit_bias or {}, seed, logprobs,
        )  # fmt: skip
        options.check_vocabulary(self.vocabulary)
        tokens = self._prompt(prompt)
        request = Request(
            tokens,
            len(tokens),
            self._most(max_new_tokens, len(tokens)),
            options,
            self._stop if stop is None else self._stops(stop),
            self.vocabulary,
            self._text,
            str(client),
            _deadline(deadline),
            min(integer("continued", continued), len(tokens)),
        )
        request.stream = TokenStream(len(tokens), lambda: self._cancel(request))
        with self._work:
            self._check_open()
            if len(self._scheduler.waiting) >= self._queue:
                raise QueueFullError(
                    "the queue is full",
                    expected=f"at most {self._queue} waiting sequences",
                    hint="submit later, or make an Engine with a larger queue or more slots",
                )
            self._scheduler.submit(request)
            self._start()
            self._work.notify_all()
        return request.stream

    def generate(
        self, prompt: str | Sequence[int], max_new_tokens: int | None = None, **options: Any
    ) -> Completion:
        """Submit a prompt, wait for its end and return everything."""
        stream = self.submit(prompt, max_new_tokens, **options)
        try:
            return stream.result()
        finally:
            stream.cancel()

    def warm_up(self) -> None:
        """Compile everything that sequences can need, before the first is submitted."""
        with self._work:
            self._check_open()
            if self._scheduler.counters.submitted:
                raise ExecutionError("an engine warms up before its first sequence")
        self._scheduler.warm_up()

    def close(self) -> None:
        """End all sequences with an error, and release the caches."""
        with self._work:
            closed, self._closed = self._closed, True
            self._work.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if not closed:
            with self._work:
                self._scheduler.fail_all(closed_error())
            self._body.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ExecutionError(
            "an engine cannot be copied or pickled: it holds native code, caches and a thread",
            hint="make another Engine; compiled code is cached",
        )

    def __repr__(self) -> str:
        """For example `Engine(model.onnx on cpu, 32 slots of 2048 tokens)`."""
        target = self._body.session.config.target
        name = self._settings.model.name
        return f"Engine({name} on {target}, {self.slots} slots of {self.max_length} tokens)"

    # Inside

    def _prompt(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            rows = [self.tokenizer.encode(prompt)]
        else:
            rows = ids_in(prompt)
        if len(rows) != 1:
            raise FeedError(
                "an engine takes one prompt at a time",
                given=f"{len(rows)} prompts",
                hint="submit each; they run together",
            )
        check_ids(rows, self.vocabulary)
        limit = length_limit(self.max_length, self._settings.context, self._body.step.positions)
        check_room([[]], rows, self.max_length, limit)
        return rows[0]

    def _most(self, given: int | None, length: int) -> int:
        room = self.max_length - length
        if given is None:
            return room
        most = integer("max_new_tokens", given)
        if most < 1:
            raise ConfigError("`max_new_tokens` must be at least 1", given=given)
        return min(most, room)

    def _stops(self, given: Iterable[int | str] | int | str, source: str = "") -> StopTokens:
        if isinstance(given, StopTokens):
            return given
        several = stops_in(given)
        found = [self.tokenizer.token(stop) if isinstance(stop, str) else stop for stop in several]
        return stop_ids(several, found, self.vocabulary, source)

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error()

    def _cancel(self, request: Request) -> None:
        with self._work:
            request.cancelled = True
            self._work.notify_all()

    def _start(self) -> None:
        """Start the thread that takes turns, once."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._take_turns, name="monograph-engine", daemon=True
            )
            self._thread.start()

    def _take_turns(self) -> None:
        try:
            while True:
                with self._work:
                    self._work.wait_for(lambda: self._closed or self._scheduler.has_work)
                    if self._closed:
                        return
                self._scheduler.turn()
        except BaseException as error:  # a fault of the scheduler: nobody may wait for ever
            with self._work:
                self._closed = True
                self._scheduler.fail_all(error)
            raise


def _text_of(path: Any, model: Any) -> Text | None:
    """Return the tokenizer; None without its package, which ids do not need."""
    try:
        return Text(path, model)
    except ConfigError:
        return None


def _lookup(given: int, invariant: bool) -> PromptLookup | None:
    count = integer("lookup", given)
    if not 0 <= count <= MOST_PROPOSED:
        raise ConfigError("`lookup` must be a count", expected=f"0..{MOST_PROPOSED}", given=given)
    if count and invariant:
        raise ConfigError(
            "`lookup` and `batch_invariant` exclude each other",
            expected="one executable for every token",
            given=f"lookup={count}, whose checks are another executable",
        )
    return PromptLookup(count) if count else None


def _deadline(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not seconds > 0:
        raise ConfigError("`deadline` must be seconds", expected="> 0", given=repr(seconds))
    return time.monotonic() + seconds
