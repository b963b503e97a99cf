"""A language model of a server: its engine, and the tokens of requests as they come."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from typing import Any

from monograph.errors import ExecutionError
from monograph.generate import Engine, QueueFullError, TokenEvent, TokenStream
from monograph.generate.batching.events import CANCELLED
from monograph.generate.prompts import StopTokens
from monograph.serve.failures import Failure, RequestError, as_request_error
from monograph.serve.folder import Found
from monograph.serve.language.chat import find_template
from monograph.serve.served import GeneratedToken, Generation, ServedLanguage, TokenRequest
from monograph.serve.settings import Limits, ModelSettings
from monograph.serve.statistics import ModelStatistics, fallbacks_of, memory_of
from monograph.serve.tracing import CURRENT

_POLL = 0.02


class LanguageModel(ServedLanguage):
    """One version of a language model, ready to answer requests."""

    platform = "monograph_decoder"

    def __init__(self, found: Found, settings: ModelSettings, limits: Limits) -> None:
        self.name, self.version = found.name, found.version
        self.created = int(found.path.stat().st_mtime)
        self.statistics = ModelStatistics()
        self._limits = limits
        self.engine = Engine(
            found.path, settings.target, slots=settings.slots, max_length=settings.max_length,
            queue=limits.queue, batch_invariant=settings.batch_invariant, threads=settings.threads,
        )  # fmt: skip
        self.tokenizer = self.engine.tokenizer
        self.max_length = self.engine.max_length
        self.vocabulary = self.engine.vocabulary
        folder = found.path if found.path.is_dir() else found.path.parent
        self.template = find_template(folder)
        self._count = 0
        """The sequences that wait or run."""
        self._closed = False
        self.engine.warm_up()
        self._compiled = int(self.engine.stats["session"]["compiled"])

    @property
    def pending(self) -> int:
        """The number of sequences that wait or run."""
        return self._count

    @property
    def memory(self) -> dict[str, int]:
        """The bytes of the model by their use."""
        return {**memory_of(self.engine.stats["session"]), "cache": self.engine.cache_bytes}

    @property
    def counts(self) -> dict[str, Any]:
        """Counts of sequences, slots and steps."""
        compiled = self.engine.stats["session"]["compiled"] - self._compiled
        return {**self.engine.counts, "slots": self.engine.slots, "compiled": compiled}

    @property
    def fallbacks(self) -> dict[str, int]:
        """The runs that did not use the code prepared for them, by reason."""
        return fallbacks_of(self.engine.stats["session"], self.statistics.fallbacks)

    async def generate(self, request: TokenRequest) -> AsyncGenerator[GeneratedToken, None]:
        """Yield tokens as they are generated; the work ends when the caller does."""
        (made,) = self.submit([request])
        try:
            async with aclosing(made.tokens) as tokens:
                async for token in tokens:
                    yield token
        finally:
            made.end()

    def submit(self, requests: Sequence[TokenRequest]) -> list[Generation]:
        """Begin several requests, all or none; raise the error of one that cannot be taken."""
        for request in requests:
            self.check(request)
        made: list[_Sequence] = []
        try:
            for request in requests:
                made.append(_Sequence(self, self._stream(request)))
        except ExecutionError as error:
            for sequence in made:
                sequence.stream.cancel()
            if not isinstance(error, QueueFullError):
                raise self.failure(error) from error
            self.statistics.failed(Failure.FULL.name.lower(), 0.0)
            raise RequestError(Failure.FULL, f"the queue of the model is full: {error}") from None
        self._count += len(made)
        return [Generation(sequence.tokens(), sequence.end) for sequence in made]

    def ended(self) -> None:
        """Count one sequence less."""
        self._count -= 1

    def close(self) -> None:
        """End after the requests that wait; those that take too long are cut off."""
        end = time.monotonic() + self._limits.drain_seconds
        while self._count and time.monotonic() < end:
            time.sleep(_POLL)
        self._closed = True
        self.engine.close()

    def check(self, request: TokenRequest) -> None:
        """Raise the error of a request that the model cannot take."""
        if self._closed:
            raise RequestError(Failure.UNAVAILABLE, "the model is being unloaded")
        super().check(request)

    def failure(self, error: ExecutionError) -> RequestError:
        """Return an error of the engine as that of a request."""
        if self._closed:
            return RequestError(Failure.UNAVAILABLE, "the model is being unloaded")
        return as_request_error(error)

    def _stream(self, request: TokenRequest) -> TokenStream:
        own = self.engine.stop_tokens
        options = replace(request.sampling, logprobs=request.top)
        room = self.max_length - len(request.prompt)
        return self.engine.submit(
            [*request.prompt, *request.continued],
            min(request.most, room) - len(request.continued),
            stop=StopTokens(own, (*own.texts, *request.stops)),
            **{f.name: getattr(options, f.name) for f in fields(options)},
            deadline=self._limits.generation_seconds,
            client=request.client,
            continued=len(request.continued),
        )


class _Sequence:
    """One sequence of a request: its tokens as they come, and its end."""

    def __init__(self, model: LanguageModel, stream: TokenStream) -> None:
        self._model, self.stream = model, stream
        self._arrived = time.monotonic()
        self._begun = 0.0
        self._made = 0
        self._ended = False
        self._span = CURRENT.get()

    async def tokens(self) -> AsyncGenerator[GeneratedToken, None]:
        """Yield the tokens; the slot of the sequence is free when this ends."""
        last, first = self._arrived, True
        try:
            async for event in self.stream:
                if event.id is None and event.finish_reason == CANCELLED:
                    return
                if event.id is None:
                    raise RequestError(Failure.EXPIRED, "the time for generation has passed")
                now = time.monotonic()
                self._model.statistics.tokens(now - last, first, now - self._arrived)
                if first:
                    self._begun = now
                self._made += 1
                first, last = False, now
                if event.finish_reason is not None:
                    self._end("")
                yield self._token(event.id, event)
        except RequestError as error:
            self._end(error.kind.name.lower())
            raise
        except ExecutionError as error:
            found = self._model.failure(error)
            self._end(found.kind.name.lower())
            raise found from error
        finally:
            self._end(CANCELLED)

    def end(self) -> None:
        """End the work for the sequence, once."""
        self._end(CANCELLED)

    def _end(self, failure: str) -> None:
        if self._ended:
            return
        self._ended = True
        self.stream.cancel()
        self._model.ended()
        now = time.monotonic()
        took = now - self._arrived
        if self._span is not None:
            self._span.step("first token", self._arrived, self._begun or now)
            if self._begun:
                self._span.step("tokens", self._begun, now, tokens=self._made)
        if failure:
            self._model.statistics.failed(failure, took)
        else:
            self._model.statistics.succeeded(took)

    def _token(self, token: int, event: TokenEvent) -> GeneratedToken:
        """Return a token; one that only ends the text has no probability."""
        if token in self._model.engine.stop_tokens:
            return GeneratedToken(token, event.text, finish=event.finish_reason)
        return GeneratedToken(
            token, event.text, event.logprob, event.top_logprobs, event.finish_reason
        )
