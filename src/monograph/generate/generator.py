"""Generator: what users hold to decode with a language model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from monograph.config import make_config
from monograph.errors import ExecutionError, FeedError
from monograph.generate.engine import Engine, Timing
from monograph.generate.folder import find_decoder
from monograph.generate.prompts import (
    changed,
    check_ids,
    choose_length,
    first,
    ids_in,
    integer,
    stop_ids,
    texts_in,
)
from monograph.generate.sampling import Sampling
from monograph.generate.text import Text, TextStream
from monograph.ir import Array
from monograph.runtime.progress import Progress
from monograph.session import Session

Prompt: TypeAlias = "str | Sequence[int] | Sequence[Sequence[int]] | Sequence[str] | Array"
WARM_UPS = 3
"""Tokens of a first generation, whose only purpose is that the next one need not compile."""


class Generator:
    """A decoder that appends tokens to sequences. One thread at a time may use it.

    model: a folder with a decoder, or the path of one.
    target: what runs it, as `monograph.load` has it.
    max_length: how many tokens a sequence may have, prompt included; the cache has room for so
        many from the start. The decoder's context, but at most 2048, unless told.
    stop: tokens that end a sequence: ids, or texts of single tokens. Those that the decoder's
        configuration names, unless told.
    temperature, top_k, top_p, repetition_penalty, seed: how tokens are chosen; the most likely one
        without a temperature. The same seed gives the same tokens, on every target up to rounding.
    buckets: the lengths that prompts are padded to, one or several; powers of two from 16 to 512,
        unless told.
    logits: whether to keep the logits of every step for `get_logits`.
    options: see `monograph.config.Config`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        target: str | None = None,
        *,
        max_length: int | None = None,
        stop: Iterable[int | str] | int | str | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        buckets: Sequence[int] | int | None = None,
        logits: bool = False,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        self._sampling = Sampling(temperature, top_k, top_p, repetition_penalty, seed)
        config = make_config(target=target, **options)
        self._settings = find_decoder(model)
        self.max_length = choose_length(max_length, self._settings.context)
        self._text: Text | None = None
        self._engine = Engine(self._settings, config, self.max_length, buckets, logits, progress)
        self._stop = self._stops(self._settings.stop if stop is None else stop)
        self._defaults = self._stop, self._sampling
        self._begun = self._changes = 0
        """How often all was forgotten, and how often sequences were changed."""
        self._rows: list[list[int]] = []
        self._position = np.zeros(0, np.int64)
        self._done: list[bool] = []
        self._chosen: Array | None = None
        self._latest = np.zeros(0, np.int64)
        self._prompt_length = 0

    def __repr__(self) -> str:
        """What it decodes with: `Generator(model.onnx on cpu, 512 tokens, max_length=64)`."""
        target = self.session.config.target
        return (
            f"Generator({self._settings.model.name} on {target}, {self.vocabulary} tokens,"
            f" max_length={self.max_length})"
        )

    # What there is

    @property
    def session(self) -> Session:
        """What runs the steps, as tokens are chosen now."""
        return self._engine.session

    @property
    def stats(self) -> dict[str, Any]:
        """What was run so far: `Session.stats` of every sampler and of one launch, added up."""
        return self._engine.stats()

    @property
    def engine(self) -> Engine:
        """The steps themselves, and what they took."""
        return self._engine

    @property
    def vocabulary(self) -> int:
        """How many tokens the decoder knows."""
        return self._engine.decoder.vocabulary

    @property
    def context(self) -> int | None:
        """The longest sequence that the decoder was made for, where its configuration says so."""
        return self._settings.context

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """The tokens that end a sequence."""
        return self._stop

    @property
    def tokenizer(self) -> Text:
        """Text to tokens and back; an error that says what is missing where that cannot be."""
        if self._text is None:
            self._text = Text(self._settings.tokenizer, self._settings.model)
        return self._text

    # Step by step

    def append_tokens(self, tokens: Prompt) -> None:
        """Appends tokens to the sequences, and runs the decoder on them.

        One list of ids is one sequence; a list of lists is a batch, whose rows may differ in
        length. The first call decides how many sequences there are.
        """
        rows = self._checked(tokens)
        if self._rows and len(rows) != len(self._rows):
            raise FeedError(
                "tokens are appended to every sequence of a batch",
                expected=f"{len(self._rows)} lists",
                given=len(rows),
                hint="reset() starts new sequences",
            )
        old = self._rows or [[] for _ in rows]
        for have, more in zip(old, rows, strict=True):
            if len(have) + len(more) >= self.max_length:
                raise FeedError(
                    "the prompt is longer than the maximum",
                    expected=f"fewer than {self.max_length} tokens, as one is to come",
                    given=f"{len(have)} + {len(more)}" if have else len(more),
                    hint="raise max_length, or shorten the prompt",
                )
        self._engine.check_lengths([len(a) + len(b) for a, b in zip(old, rows, strict=True)])
        if not self._rows:
            self._engine.start(len(rows), self._sampling)
            self._position = np.zeros(len(rows), np.int64)
            self._rows, self._done = old, [False] * len(rows)
        for have, more in zip(self._rows, rows, strict=True):
            have.extend(more)
        self._prompt_length = len(self._rows[0])
        self._changed()
        self._chosen = self._feed(prompt=True)

    def generate_next_token(self) -> None:
        """Appends one token to every sequence that is not done; to none where all are."""
        if not self._rows:
            raise FeedError("there is nothing to go on from", hint="append_tokens first")
        if all(self._done):
            return
        if self._at_maximum():
            raise ExecutionError(
                "the maximum length is reached",
                expected=f"at most {self.max_length} tokens in a sequence",
                hint="get_sequence has what was generated; make a Generator with more max_length",
            )
        self._changes += 1
        if self._chosen is None:
            self._chosen = self._feed()
        chosen, self._chosen = self._chosen, None
        self._accept(chosen)

    def _accept(self, chosen: Array) -> None:
        """Appends a token to every sequence that is not done."""
        for b, row in enumerate(self._rows):
            if not self._done[b]:
                row.append(int(chosen[b]))
                self._done[b] = row[-1] in self._stop
        self._latest = np.array([row[-1] for row in self._rows], np.int64)

    def is_done(self) -> bool:
        """Whether every sequence ended with a stop token, or some one has no more room."""
        return bool(self._rows) and (all(self._done) or self._at_maximum())

    def finish_reason(self, index: int = 0) -> str | None:
        """Why a sequence cannot go on: "stop", a stop token; "length", no more room; or None."""
        length = len(self.get_sequence(index))
        return "stop" if self._done[index] else "length" if length >= self.max_length else None

    def get_sequence(self, index: int) -> Array:
        """The tokens of a sequence, prompt included."""
        if not -len(self._rows) <= index < len(self._rows):
            expected = f"0..{len(self._rows) - 1}" if self._rows else "append_tokens first"
            raise FeedError("no such sequence", expected=expected, given=index)
        return np.array(self._rows[index], np.int64)

    def get_next_tokens(self) -> Array:
        """The token that each sequence got last; one that is done repeats its own.

        Empty where none was generated since the last append_tokens, rewind_to or reset.
        """
        return self._latest.copy()

    def get_logits(self) -> Array:
        """The logits that the next token is chosen by, [batch, vocabulary]."""
        return self._engine.read_logits()

    @property
    def prompt_length(self) -> int:
        """How many tokens of the first sequence came with the last `append_tokens`, and before."""
        return self._prompt_length

    def token_count(self) -> int:
        """The length of the longest sequence."""
        return max(map(len, self._rows), default=0)

    def rewind_to(self, length: int) -> None:
        """Forgets what lies behind so many tokens of every sequence; 0 starts anew."""
        if not 0 <= length <= min(map(len, self._rows), default=0):
            raise FeedError(
                "sequences are rewound to a length that they have",
                expected=f"0..{min(map(len, self._rows), default=0)}",
                given=length,
            )
        if length == 0:
            self.reset()
            return
        for b, row in enumerate(self._rows):
            del row[length:]
            # The last token is fed again: what comes behind it is to be chosen anew.
            self._position[b] = min(int(self._position[b]), length - 1)
        self._changed()
        self._engine.set_data(self._sampling, self._fed())

    def reset(self) -> None:
        """Forgets all sequences. The memory of the cache stays, for the next ones."""
        self._rows = []
        self._changed()
        self._begun += 1
        self._stop, self._sampling = self._defaults

    def _changed(self) -> None:
        """What was chosen is not what comes next, and no sequence has ended."""
        self._done = [False] * len(self._rows)
        self._chosen, self._latest = None, np.zeros(0, np.int64)
        self._changes += 1
        self._engine.forget()

    # All at once

    def generate(self, prompt: Prompt, max_new_tokens: int | None = None, **wishes: Any) -> Any:
        """The tokens that follow a prompt, of each prompt of a list; texts for texts.

        max_new_tokens: how many; until a stop token or the maximum length, unless told.
        wishes: temperature, top_k, top_p, repetition_penalty, seed and stop, for this time;
            one_launch=True has the target make all tokens behind the first in one launch.

        Where the maximum length is reached before, an ExecutionError says so, and `get_sequence`
        has what was generated.
        """
        texts, stop = texts_in(prompt), self._ending(wishes)
        found: list[list[int]] = []
        for new in self._continued(prompt, max_new_tokens, wishes):
            found = found or [[] for _ in new]
            for row, token in zip(found, new, strict=True):
                row += [] if token is None else [token]
        found = found or [[] for _ in self._rows]
        if texts is None:
            return found if np.ndim(first(prompt)) else found[0]
        made = [self.tokenizer.decode([t for t in row if t not in stop]) for row in found]
        return made[0] if isinstance(prompt, str) else made

    def warm_up(self, length: int, **wishes: Any) -> None:
        """Has everything compiled that a prompt of this length needs; nothing stays of it."""
        length = min(max(length, 1), self.max_length - 1)
        count = min(WARM_UPS, self.max_length - length)
        self.generate([0] * length, count, **{**wishes, "stop": ()})
        self.reset()
        self._engine.timing = Timing()

    def stream(
        self, prompt: Prompt, max_new_tokens: int | None = None, **wishes: Any
    ) -> Iterator[Any]:
        """What follows one prompt, token by token: pieces of text for a text, else ids.

        Takes what `generate` takes.
        """
        texts, stop = texts_in(prompt), self._ending(wishes)
        stream = None if texts is None else TextStream(self.tokenizer)
        for new in self._continued(prompt, max_new_tokens, wishes):
            if len(new) != 1:
                raise FeedError("a stream is of one sequence", given=f"{len(new)} prompts")
            if stream is None:
                yield new[0]
            elif new[0] not in stop and (text := stream.put(new[0])):
                yield text
        if stream is not None and (rest := stream.end()):
            yield rest

    def _at_once(self, turns: int) -> Iterator[list[int | Any]]:
        """As many tokens for each sequence in one launch, handed out turn by turn."""
        for turn in self._engine.loop(turns, self._stop, self._done).T:
            active = [not done for done in self._done]
            # What a row had last was fed in this turn.
            self._position += np.array(active, np.int64)
            self._accept(turn)
            yield [row[-1] if on else None for row, on in zip(self._rows, active, strict=True)]

    def _continued(
        self, prompt: Prompt, count: int | None, wishes: dict[str, Any]
    ) -> Iterator[list[int | Any]]:
        """What each sequence gets, token by token; None for one that is done."""
        if count is not None:
            count = integer("max_new_tokens", count)
        wishes = dict(wishes)
        stop, at_once = wishes.pop("stop", None), wishes.pop("one_launch", False)
        rows = self._checked(prompt)
        ending = self._defaults[0] if stop is None else self._stops(stop)
        sampling = changed(self._defaults[1], wishes)
        self.reset()
        self._stop, self._sampling = ending, sampling
        begun = self._begun
        try:
            self.append_tokens(rows)
            for new in self._tokens(count, at_once):
                changes = self._changes
                yield new
                if self._changes != changes:
                    raise ExecutionError(
                        "the generator was used for something else in between",
                        expected="one generation at a time",
                        hint="take all of a stream before the next call, or make two Generators",
                    )
        finally:
            if self._begun == begun:
                self._stop, self._sampling = self._defaults

    def _tokens(self, count: int | None, at_once: bool) -> Iterator[list[int | Any]]:
        """What each sequence gets behind its prompt, until it ends or has so many."""
        made = 0
        while not all(self._done) and (count is None or made < count):
            if count is None and self._at_maximum():
                break
            if at_once and self._chosen is None and self._engine.can_decode():
                room = self._room()
                turns = room if count is None else min(room, count - made)
                for new in self._at_once(turns) if turns else ():
                    made += 1
                    yield new
                if turns:
                    continue
            active = [not done for done in self._done]
            self.generate_next_token()
            made += 1
            yield [row[-1] if on else None for row, on in zip(self._rows, active, strict=True)]

    # Inside

    def _feed(self, prompt: bool = False) -> Array:
        """Runs the decoder on what the cache does not hold yet; what it chooses, [batch]."""
        pairs = [*zip(self._rows, self._position, strict=True)]
        single = all(len(row) == p + 1 for row, p in pairs) and not any(self._done)
        if self._engine.can_decode() and single:
            chosen = self._engine.decode()
            self._position += 1
            return chosen
        # A row that is done is not fed: its last token is none that something follows.
        rows = [
            row[: int(p)] if done else row for (row, p), done in zip(pairs, self._done, strict=True)
        ]
        return self._engine.feed(rows, self._position, prompt)

    def _fed(self) -> list[list[int]]:
        return [row[: int(p)] for row, p in zip(self._rows, self._position, strict=True)]

    def _at_maximum(self) -> bool:
        return self._room() <= 0

    def _room(self) -> int:
        """How many tokens every sequence that is not done has room for."""
        pairs = zip(self._rows, self._done, strict=True)
        longest = max((len(row) for row, done in pairs if not done), default=0)
        return self.max_length - longest

    def _checked(self, prompt: Prompt) -> list[list[int]]:
        """Prompts as lists of ids that the decoder knows."""
        texts = texts_in(prompt)
        if texts is not None:
            rows = [self.tokenizer.encode(text) for text in texts]
        else:
            rows = ids_in(prompt)
        check_ids(rows, self.vocabulary)
        return rows

    def _ending(self, wishes: Mapping[str, Any]) -> tuple[int, ...]:
        """The stop tokens of this time."""
        given = wishes.get("stop")
        return self._defaults[0] if given is None else self._stops(given)

    def _stops(self, given: Iterable[int | str] | int | str) -> tuple[int, ...]:
        """Stop tokens as ids."""
        several = [given] if isinstance(given, (int, str)) else list(given)
        found = [self.tokenizer.token(stop) if isinstance(stop, str) else stop for stop in several]
        return stop_ids(several, found, self.vocabulary)
