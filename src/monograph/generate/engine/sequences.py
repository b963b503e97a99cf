"""Sequences that a decoder appends tokens to, step by step; `generator` has the rest."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from monograph.errors import ExecutionError, FeedError
from monograph.generate.discover.folder import Settings
from monograph.generate.engine.runner import StepRunner
from monograph.generate.prompts import (
    StopTokens,
    check_ids,
    check_room,
    ids_in,
    length_limit,
    place_in,
    stop_ids,
    stops_in,
    texts_in,
)
from monograph.generate.rewrite.sampling import Sampling
from monograph.generate.text import StopFilter, Text, TextStream
from monograph.ir import Array

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")


class Guard:
    """Held by the thread at work; that thread may enter again, others may not."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ExecutionError(
                "another thread is using the generator",
                expected="one thread at a time",
                hint="take turns, or make a Generator for each thread",
            )

    def __exit__(self, *_: Any) -> None:
        self._lock.release()


def alone(method: _F) -> _F:
    """Decorate a method of an object with a `_guard`: one thread at a time may be in it."""

    @functools.wraps(method)
    def guarded(self: Any, *given: Any, **options: Any) -> Any:
        with self._guard:
            return method(self, *given, **options)

    return cast(_F, guarded)


def alone_in_each(items: Iterator[_T], guard: Guard) -> Iterator[_T]:
    """Yield items that are each computed under the guard; between them other threads may enter."""
    while True:
        with guard:
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


Prompt: TypeAlias = "str | Sequence[int] | Sequence[Sequence[int]] | Sequence[str] | Array"


class Sequences:
    """A batch of sequences, their state in the cache, and the next tokens."""

    def __init__(
        self,
        settings: Settings,
        engine: StepRunner,
        stop: Iterable[int | str] | int | str | None,
        sampling: Sampling,
    ) -> None:
        self._guard = Guard()
        self._settings = settings
        self._engine = engine
        self.max_length = engine.maximum
        self._text: Text | None = None
        if stop is None:
            self._stop = self._stops(settings.stop, settings.stop_source)
        else:
            self._stop = self._stops(stop)
        self._engine.expect_stops(len(self._stop))
        self._sampling = sampling
        self._defaults = self._stop, self._sampling
        self._begun = self._changes = 0
        """The number of resets, and the number of changes of sequences."""
        self._handed_out = False
        """True after a generation has yielded a token, while it waits to be resumed."""
        self._rows: list[list[int]] = []
        self._position = np.zeros(0, np.int64)
        self._done: list[bool] = []
        self._endings: dict[int, tuple[TextStream, StopFilter]] = {}
        """The search for stop texts in the tokens that were generated, by sequence."""
        self._chosen: Array | None = None
        self._latest = np.zeros(0, np.int64)
        self._prompt_length = 0

    @property
    def vocabulary(self) -> int:
        """The size of the decoder's vocabulary."""
        return self._engine.decoder.vocabulary

    def more_room(self) -> str:
        """A remedy for a caller that needs longer sequences, or the reason why there is none."""
        return self._limit() or "make a Generator with more max_length"

    @property
    def tokenizer(self) -> Text:
        """The tokenizer; raises an error that names what is missing if there is none."""
        return self._tokenizer()

    def _tokenizer(self, **said: str) -> Text:
        if self._text is None:
            self._text = Text(self._settings.tokenizer, self._settings.model, **said)
        return self._text

    @alone
    def append_tokens(self, tokens: Prompt) -> None:
        """Append tokens to the sequences, and run the decoder on them.

        One list of ids is one sequence; a list of lists is a batch, whose rows may differ in
        length. The first call decides the number of sequences.
        """
        rows = self._checked(tokens)
        if self._rows and len(rows) != len(self._rows):
            raise FeedError(
                "tokens must be given for every sequence of the batch",
                expected=f"{len(self._rows)} lists",
                given=len(rows),
                hint="reset() starts new sequences",
            )
        old = self._rows or [[] for _ in rows]
        self._check_room(old, rows)
        self._leave_stream()
        if not self._rows:
            self._engine.start(len(rows), self._sampling)
            self._position = np.zeros(len(rows), np.int64)
            self._rows, self._done, self._endings = old, [False] * len(rows), {}
        for have, more in zip(self._rows, rows, strict=True):
            have.extend(more)
        self._prompt_length = len(self._rows[0])
        self._changed()
        self._chosen = self._feed(prompt=True)

    @alone
    def generate_next_token(self) -> None:
        """Append one token to every sequence that is not done."""
        self._leave_stream()
        self._append_next()

    def _append_next(self, further: bool = False) -> None:
        """Append one token to every sequence; `further`: another one will follow."""
        self._check_begun()
        if all(self._done):
            return
        if self._at_maximum():
            raise ExecutionError(
                "the maximum length is reached",
                expected=f"at most {self.max_length} tokens in a sequence",
                hint=f"get_sequence has what was generated; {self.more_room()}",
            )
        self._changes += 1
        if self._chosen is None:
            self._chosen = self._feed(further=further)
        chosen, self._chosen = self._chosen, None
        self._accept(chosen)

    def _accept(self, chosen: Array) -> None:
        """Append a token to every sequence that is not done."""
        for b, row in enumerate(self._rows):
            if not self._done[b]:
                row.append(int(chosen[b]))
                self._engine.logits.drop(b)
                self._done[b] = row[-1] in self._stop or self._ends_by_text(b)
        self._latest = np.array([row[-1] for row in self._rows], np.int64)

    def _ends_by_text(self, index: int) -> bool:
        """Return True if the last token of a sequence completes a stop text."""
        if not self._stop.texts:
            return False
        if index not in self._endings:
            self._endings[index] = TextStream(self._tokenizer()), StopFilter(self._stop.texts)
        stream, ending = self._endings[index]
        ending.put(stream.put(self._rows[index][-1]))
        return ending.ended

    def is_done(self) -> bool:
        """Return True if every sequence ended with a stop token, or one has no more room."""
        return bool(self._rows) and (all(self._done) or self._at_maximum())

    def finish_reason(self, index: int = 0) -> str | None:
        """Return why a sequence cannot go on: "stop" (a stop token), "length" (no room) or None."""
        place = place_in(index, len(self._rows))
        if self._done[place]:
            return "stop"
        return "length" if len(self._rows[place]) >= self.max_length else None

    def get_sequence(self, index: int) -> Array:
        """Return the tokens of a sequence, prompt included."""
        return np.array(self._rows[place_in(index, len(self._rows))], np.int64)

    def get_next_tokens(self) -> Array:
        """Return the last token of each sequence; one that is done repeats its own.

        Empty if none was generated since the last append_tokens, rewind_to or reset.
        """
        return self._latest.copy()

    @alone
    def get_logits(self) -> Array:
        """Return the logits of the next token, [batch, vocabulary].

        They are the decoder's output after the last token of each sequence, before temperature and
        penalty. If that token was not fed yet, it is fed now, and the next token is chosen by it.
        """
        self._engine.logits.check()
        self._check_begun()
        if self._chosen is None:
            self._chosen = self._feed(ended=True)
        return self._engine.read_logits()

    @property
    def prompt_length(self) -> int:
        """The length of the first sequence at the last `append_tokens`."""
        return self._prompt_length

    def token_count(self) -> int:
        """Return the length of the longest sequence."""
        return max(map(len, self._rows), default=0)

    @alone
    def rewind_to(self, length: int) -> None:
        """Drop all tokens after the first `length` of every sequence; 0 starts anew."""
        most = min(map(len, self._rows), default=0)
        length = place_in(length, most + 1, "sequences are rewound to a length that they have", 0)
        self._leave_stream()
        if length == 0:
            self.reset()
            return
        for b, row in enumerate(self._rows):
            del row[length:]
            # The last token is fed again, to choose a new one after it.
            self._position[b] = min(int(self._position[b]), length - 1)
        self._engine.sampling = None  # the seen tokens change, also if this is interrupted
        self._changed()
        self._engine.set_data(self._sampling, self._fed())

    @alone
    def reset(self) -> None:
        """Drop all sequences. The memory of the cache stays, for the next ones."""
        self._rows = []
        self._changed()
        self._begun += 1
        self._handed_out = False
        self._stop, self._sampling = self._defaults

    def _changed(self) -> None:
        """Drop the generated tokens, and mark no sequence as done."""
        self._done, self._endings = [False] * len(self._rows), {}
        self._chosen, self._latest = None, np.zeros(0, np.int64)
        self._changes += 1
        self._engine.forget()

    # Inside

    def _leave_stream(self) -> None:
        """End the overrides of a running stream: another caller has its own."""
        if self._handed_out:
            self._handed_out = False
            self._end_overrides()

    def _end_overrides(self) -> None:
        """Restore the sampling and stop tokens of the generator."""
        stale = self._chosen is not None and self._sampling != self._defaults[1]
        self._stop, self._sampling = self._defaults
        if stale:
            self._chosen = None
            self._engine.forget()

    def _feed(self, prompt: bool = False, ended: bool = False, further: bool = False) -> Array:
        """Run the decoder on tokens that are not in the cache; return the generated ones, [batch].

        Rows that are done are left out unless requested: nothing follows their last token.
        `further` tokens will follow the generated one.
        """
        if self._engine.sampling != self._sampling:
            self._engine.set_data(self._sampling, self._fed())
        single = all(len(row) == p + 1 for row, p in zip(self._rows, self._position, strict=True))
        if single and self._engine.can_decode() and not any(self._done):
            # The generated token takes one position, and a step after it another.
            chosen = self._engine.decode(further and min(self._room(), self._engine.room()) > 1)
            self._position += 1
            return chosen
        lengths = {len(row) for row in self._rows}
        ended = ended and not (self._engine.counts and len(lengths) > 1)
        rows = []
        for b, row in enumerate(self._rows):
            if self._done[b] and (not ended or self._engine.logits.has(b)):
                rows.append(row[: int(self._position[b])])
                continue
            # The token after a row that is entirely in the cache is no longer known.
            self._position[b] = min(int(self._position[b]), len(row) - 1)
            rows.append(row)
        return self._engine.feed(rows, self._position, prompt)

    def _fed(self) -> list[list[int]]:
        return [row[: int(p)] for row, p in zip(self._rows, self._position, strict=True)]

    def _at_maximum(self) -> bool:
        return self._room() <= 0

    def _room(self) -> int:
        """Return the number of tokens that every sequence that is not done has room for."""
        pairs = zip(self._rows, self._done, strict=True)
        longest = max((len(row) for row, done in pairs if not done), default=0)
        return self.max_length - longest

    def _limit(self) -> str | None:
        """Return why sequences cannot be longer, if the decoder is the reason."""
        return length_limit(self.max_length, self._settings.context, self._engine.step.positions)

    def _check_begun(self) -> None:
        if not self._rows:
            raise FeedError("there are no sequences to continue", hint="append_tokens first")

    def _check_room(self, old: list[list[int]], new: list[list[int]]) -> None:
        """Raise an error for tokens that do not fit, or that make sequences unequal."""
        lengths = check_room(old, new, self.max_length, self._limit())
        self._engine.check_lengths(lengths)

    def _checked(self, prompt: Prompt) -> list[list[int]]:
        """Return prompts as lists of ids of the vocabulary."""
        texts = texts_in(prompt)
        if texts is not None:
            rows = [self.tokenizer.encode(text) for text in texts]
        else:
            rows = ids_in(prompt)
        check_ids(rows, self.vocabulary)
        return rows

    def _stops(self, given: Iterable[int | str] | int | str, source: str = "") -> StopTokens:
        """Return stop tokens; `source` is the file that lists them, if any."""
        if isinstance(given, StopTokens):
            return given
        several = stops_in(given)
        found = [
            self._tokenizer(instead="give stop tokens as ids").token(stop)
            if isinstance(stop, str)
            else stop
            for stop in several
        ]
        return stop_ids(several, found, self.vocabulary, source)
