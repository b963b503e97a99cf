"""Generator: decoding with a language model."""

from __future__ import annotations

import os
from collections.abc import Generator as Generated
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NoReturn

import numpy as np

from monograph.config import make_config
from monograph.errors import ConfigError, ExecutionError, FeedError
from monograph.generate.discover.folder import find_decoder
from monograph.generate.engine.runner import StepRunner
from monograph.generate.engine.sequences import Prompt, Sequences, alone, alone_in_each
from monograph.generate.prompts import (
    StopTokens,
    changed,
    choose_length,
    first,
    flag,
    integer,
    texts_in,
)
from monograph.generate.rewrite.sampling import Sampling
from monograph.generate.rewrite.step import most_positions
from monograph.generate.stats import Timing
from monograph.generate.text import StopFilter, TextStream, until_stop
from monograph.runtime.progress import Progress, check_progress
from monograph.session import Session

WARM_UPS = 3
"""Tokens that `warm_up` generates, so that later generations need not compile."""


class Generator(Sequences):
    """A decoder that appends tokens to sequences. A second thread at the same time gets an error.

    model: a folder with a decoder, or the path of one.
    target: the target, as for `monograph.load`.
    max_length: the most tokens of a sequence, prompt included; the cache has this size from the
        start. Default: the decoder's context, but at most 2048.
    stop: what ends a sequence: ids, or texts of one or several tokens. Default: those of the
        decoder's configuration.
    temperature, top_k, top_p, repetition_penalty, seed: the sampling; without a temperature the
        most likely token. The same seed gives the same tokens, on every target up to rounding.
    buckets: the lengths that prompts are padded to, one or several. Default: powers of two from
        16 to 512.
    logits: keep the logits of every step for `get_logits`.
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
        sampling = Sampling(temperature, top_k, top_p, repetition_penalty, seed)
        config = make_config(target=target, **options)
        check_progress(progress)
        settings = find_decoder(model)
        context = settings.context
        if max_length is None and context is None:
            context = most_positions(settings)
        length = choose_length(max_length, context)
        engine = StepRunner(settings, config, length, buckets, logits, progress)
        super().__init__(settings, engine, stop, sampling)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ExecutionError(
            "a generator cannot be copied or pickled: it holds native code, caches and threads",
            hint="make another Generator; compiled code is cached",
        )

    def __repr__(self) -> str:
        """For example `Generator(model.onnx on cpu, 512 tokens, max_length=64)`."""
        target = self.session.config.target
        return (
            f"Generator({self._settings.model.name} on {target}, {self.vocabulary} tokens,"
            f" max_length={self.max_length})"
        )

    # Properties

    @property
    def session(self) -> Session:
        """The session that runs the steps, for the current sampling."""
        return self._engine.session

    @property
    def stats(self) -> dict[str, Any]:
        """The sum of `Session.stats` of all samplers and of the one-launch loop."""
        return self._engine.stats()

    @property
    def engine(self) -> StepRunner:
        """The engine that runs the steps, with their timing."""
        return self._engine

    @property
    def context(self) -> int | None:
        """The longest sequence that the decoder supports, if its configuration says so."""
        return self._settings.context

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts of several tokens that end a sequence."""
        return self._stop.texts

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """The tokens that end a sequence."""
        return self._stop

    # Whole generations

    @alone
    def generate(self, prompt: Prompt, max_new_tokens: int | None = None, **overrides: Any) -> Any:
        """Return the tokens that follow a prompt, or each prompt of a list; texts for texts.

        max_new_tokens: the number of tokens; by default until a stop token or the maximum length.
        overrides: temperature, top_k, top_p, repetition_penalty, seed and stop for this call;
            one_launch=True generates all tokens after the first in one launch.

        If the maximum length is reached before, an ExecutionError is raised; `get_sequence`
        returns the generated tokens.
        """
        texts, stop = texts_in(prompt), self._ending(overrides)
        overrides["stop"] = stop  # the argument may be an iterator, which is read once
        found: list[list[int]] = []
        for new in self._continued(prompt, max_new_tokens, overrides):
            found = found or [[] for _ in new]
            for row, token in zip(found, new, strict=True):
                row += [] if token is None else [token]
        found = found or [[] for _ in self._rows]
        if texts is None:
            return found if np.ndim(first(prompt)) else found[0]
        whole = [self.tokenizer.decode([t for t in row if t not in stop]) for row in found]
        made = [until_stop(text, stop.texts) for text in whole]
        return made[0] if isinstance(prompt, str) else made

    @alone
    def warm_up(self, length: int, batch: int = 1, **overrides: Any) -> None:
        """Compile everything that `batch` prompts of this length need with these overrides.

        It generates a few tokens and drops them; other sequences are dropped too.
        """
        length = min(max(integer("length", length), 1), self.max_length - 1)
        batch = max(integer("batch", batch), 1)
        count = min(WARM_UPS, self.max_length - length)
        self._engine.expect_stops(len(self._ending(overrides)))
        self.generate([[0] * length] * batch, count, **{**overrides, "stop": ()})
        self.reset()
        self._engine.timing = Timing()

    def check(self, prompt: Prompt, **overrides: Any) -> None:
        """Raise the errors that `generate` would raise, without running or compiling."""
        self._agreed(prompt, overrides)

    def _agreed(
        self, prompt: Prompt, overrides: Mapping[str, Any]
    ) -> tuple[list[list[int]], StopTokens, Sampling]:
        """Return the ids of valid prompts, the stop tokens and the sampling of this call."""
        rows = self._checked(prompt)
        own = {n: x for n, x in overrides.items() if n not in ("stop", "one_launch")}
        sampling = changed(self._defaults[1], own)
        at_once = flag("one_launch", overrides.get("one_launch", False))
        self._check_room([[] for _ in rows], rows)
        ending = self._ending(overrides)
        if at_once and ending.texts:
            raise ConfigError(
                "one launch ends sequences at stop tokens only",
                expected="ids, or texts of single tokens",
                given=", ".join(map(repr, ending.texts)),
                hint="leave one_launch out: the host looks for texts of several tokens",
            )
        return rows, ending, sampling

    def stream(
        self, prompt: Prompt, max_new_tokens: int | None = None, **overrides: Any
    ) -> Generated[Any]:
        """Yield the tokens that follow one prompt: pieces of text for a text, else ids.

        The arguments are those of `generate`.
        """
        texts, stop = texts_in(prompt), self._ending(overrides)
        overrides["stop"] = stop  # the argument may be an iterator, which is read once
        stream = None if texts is None else TextStream(self.tokenizer)
        ending = StopFilter(stop.texts)
        with closing(self._continued(prompt, max_new_tokens, overrides, most=1)) as tokens:
            for new in alone_in_each(tokens, self._guard):
                if stream is None:
                    yield new[0]
                elif new[0] not in stop and (text := ending.put(stream.put(new[0]))):
                    yield text
        if stream is not None and (rest := ending.put(stream.end()) + ending.end()):
            yield rest

    def _at_once(self, turns: int) -> Iterator[list[int | Any]]:
        """Generate tokens for all sequences in one launch, and yield them step by step.

        All of them are in the cache and in the sequences before the first is yielded.
        """
        made = []
        for turn in self._engine.loop(turns, self._stop, self._done).T:
            active = [not done for done in self._done]
            # The last token of each row was fed in this step.
            self._position += np.array(active, np.int64)
            self._accept(turn)
            made.append(
                [int(token) if on else None for token, on in zip(turn, active, strict=True)]
            )
        yield from made

    def _continued(
        self,
        prompt: Prompt,
        count: int | None,
        overrides: dict[str, Any],
        most: int | None = None,
    ) -> Generated[list[int | Any]]:
        """Yield the new token of each sequence; None for one that is done.

        Errors are raised before the existing sequences are dropped. A stream takes at `most` one
        prompt.
        """
        count = None if count is None else integer("max_new_tokens", count)
        rows, ending, sampling = self._agreed(prompt, overrides)
        at_once = overrides.get("one_launch", False)
        if most is not None and len(rows) > most:
            raise FeedError("a stream takes one prompt", given=f"{len(rows)} prompts")
        self.reset()
        self._stop, self._sampling = ending, sampling
        begun = self._begun
        try:
            self.append_tokens(rows)
            for new in self._tokens(count, at_once):
                changes = self._changes
                self._handed_out = True
                yield new
                if self._begun == begun:  # otherwise it is the flag of a newer stream
                    self._handed_out = False
                if self._changes != changes:
                    raise ExecutionError(
                        "the generator was used for something else in between",
                        expected="one generation at a time",
                        hint="take all of a stream before the next call, or make two Generators",
                    )
        finally:
            if self._begun == begun:
                self._handed_out = False
                self._end_overrides()
                self._engine.settle()  # nothing may run after a generation

    def _tokens(self, count: int | None, at_once: bool) -> Iterator[list[int | Any]]:
        """Yield the tokens of each sequence after its prompt, until it ends or has `count`."""
        made = 0
        while not all(self._done) and (count is None or made < count):
            if count is None and self._at_maximum():
                break
            if at_once and self._chosen is None and self._engine.can_decode():
                room = min(self._room(), self._engine.room())
                turns = room if count is None else min(room, count - made)
                for new in self._at_once(turns) if turns else ():
                    made += 1
                    yield new
                if turns:
                    continue
            active = [not done for done in self._done]
            self._append_next(further=count is None or made + 1 < count)
            made += 1
            yield [row[-1] if on else None for row, on in zip(self._rows, active, strict=True)]

    def _ending(self, overrides: Mapping[str, Any]) -> StopTokens:
        """Return the stop tokens of this call."""
        given = overrides.get("stop")
        return self._defaults[0] if given is None else self._stops(given)
