"""A language model of a server: requests wait in a queue and give tokens one by one.

The decoder is behind `TokenSource`, which `Generator` satisfies: one sequence at a time.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Sequence
from collections.abc import Generator as Generated
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from monograph.generate import Generator
from monograph.generate.text import StopFilter, TextStream
from monograph.ir import Array
from monograph.serve.failures import Failure, RequestError, as_request_error
from monograph.serve.folder import Found
from monograph.serve.language.chat import find_template
from monograph.serve.language.host_sampling import choose_token, log_probabilities
from monograph.serve.served import GeneratedToken, ServedLanguage, TokenRequest, check_queue
from monograph.serve.settings import Limits, ModelSettings
from monograph.serve.statistics import ModelStatistics

_log = logging.getLogger("monograph.serve")


class TokenSource(Protocol):
    """The parts of a decoder that a server uses."""

    def append_tokens(self, tokens: Sequence[int]) -> None:
        """Run the decoder on tokens, behind those that it has."""

    def get_logits(self) -> Array:
        """Return the logits of the next token, [1, vocabulary]."""

    def stream(self, prompt: Sequence[int], max_new_tokens: int) -> Any:
        """Yield the most likely tokens after a prompt."""

    def reset(self) -> None:
        """Drop the sequence."""


@dataclass
class _Job:
    request: TokenRequest
    loop: AbstractEventLoop
    found: asyncio.Queue[GeneratedToken | RequestError]
    arrived: float
    deadline: float
    cancelled: threading.Event = field(default_factory=threading.Event)


class LanguageModel(ServedLanguage):
    """One version of a language model, ready to answer requests."""

    platform = "monograph_decoder"

    def __init__(self, found: Found, settings: ModelSettings, limits: Limits) -> None:
        self.name, self.version = found.name, found.version
        self.created = int(found.path.stat().st_mtime)
        self.statistics = ModelStatistics()
        self._limits = limits
        self._generator = Generator(
            found.path, settings.target, max_length=settings.max_length, logits=True,
            temperature=0.0, threads=settings.threads,
        )  # fmt: skip
        self.tokenizer = self._generator.tokenizer
        self.max_length = self._generator.max_length
        self.vocabulary = self._generator.vocabulary
        folder = found.path if found.path.is_dir() else found.path.parent
        self.template = find_template(folder)
        self._stops = frozenset(self._generator.stop_tokens)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._count = 0
        """The number of requests that wait or run."""
        self._closed = False
        self._prepare()
        self._thread = threading.Thread(target=self._work, name=f"run {self.name}", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """The number of requests that wait or run."""
        return self._count

    async def generate(self, request: TokenRequest) -> AsyncGenerator[GeneratedToken, None]:
        """Yield tokens as they are generated; the work ends when the caller does."""
        self.check(request)
        now = time.monotonic()
        job = _Job(
            request, asyncio.get_running_loop(), asyncio.Queue(), now,
            now + self._limits.generation_seconds,
        )  # fmt: skip
        self._count += 1
        self._jobs.put(job)
        try:
            while True:
                found = await job.found.get()
                if isinstance(found, RequestError):
                    raise found
                yield found
                if found.finish is not None:
                    return
        finally:
            job.cancelled.set()

    def close(self) -> None:
        """End after the requests that wait; those that take too long are cut off."""
        end = time.monotonic() + self._limits.drain_seconds
        while self._count and time.monotonic() < end:
            time.sleep(0.02)
        self._closed = True
        self._jobs.put(None)
        self._thread.join(self._limits.drain_seconds)

    def check(self, request: TokenRequest) -> None:
        """Raise the error of a request that the model cannot take."""
        if self._closed:
            raise RequestError(Failure.UNAVAILABLE, "the model is being unloaded")
        check_queue(self._count, self._limits)
        super().check(request)

    def _prepare(self) -> None:
        """Compile for all lengths of prompts."""
        room = self.max_length - 4
        for length in sorted({min(b, room) for b in self._generator.engine.buckets if b <= room}):
            self._generator.warm_up(max(length, 1))
        self._generator.append_tokens([0])
        self._generator.append_tokens([0])
        self._generator.get_logits()
        self._generator.reset()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            started = time.monotonic()
            self.statistics.queue.add(started - job.arrived)
            try:
                self._run(job)
                self.statistics.succeeded(time.monotonic() - job.arrived)
            except Exception as error:
                found = as_request_error(error)
                if found.kind is Failure.INTERNAL:
                    _log.exception("a generation failed", exc_info=error)
                self.statistics.failed(found.kind.name.lower(), time.monotonic() - job.arrived)
                self._put(job, found)
            finally:
                self._count -= 1

    def _run(self, job: _Job) -> None:
        """Generate the tokens of a request until it ends or nobody waits for it."""
        request = job.request
        most = min(request.most, self.max_length - len(request.prompt))
        text, ending = TextStream(self.tokenizer), StopFilter(request.stops)
        for token in request.continued:
            ending.put(text.put(token))
        count, last = len(request.continued), time.perf_counter()
        with closing(self._tokens(request, most)) as tokens:
            for made in tokens:
                if job.cancelled.is_set():
                    return
                if time.monotonic() > job.deadline:
                    raise RequestError(Failure.EXPIRED, "the time for generation has passed")
                count += 1
                now = time.perf_counter()
                first = count == len(request.continued) + 1
                self.statistics.tokens(now - last, first, time.monotonic() - job.arrived)
                last = now
                if made.token in self._stops:
                    rest = ending.put(text.end()) + ending.end()
                    self._put(job, GeneratedToken(made.token, rest, finish="stop"))
                    return
                piece = ending.put(text.put(made.token))
                finish = "stop" if ending.ended else None
                if finish is None and count == most:
                    piece += ending.put(text.end()) + ending.end()
                    finish = "length"
                done = GeneratedToken(made.token, piece, made.logprob, made.top, finish)
                self._put(job, done)
                if finish is not None:
                    return

    def _tokens(self, request: TokenRequest, most: int) -> Generated[GeneratedToken]:
        """Yield tokens without their text: chosen by the step, or on the host from its logits."""
        source: TokenSource = self._generator
        if request.sampling.plain and request.top is None:
            known = (*request.prompt, *request.continued)
            with closing(source.stream(known, most - len(request.continued))) as tokens:
                yield from (GeneratedToken(int(token), "") for token in tokens)
            return
        source.reset()
        generated = [*request.continued]
        source.append_tokens(request.prompt)
        for token in generated:  # one by one, as they were generated: the same code, the same bits
            source.append_tokens([token])
        while True:
            logits = source.get_logits()[0]
            token = choose_token(logits, request.sampling, request.prompt, generated)
            generated.append(token)
            yield self._with_probabilities(token, logits, request.top)
            if len(generated) == most:
                return
            source.append_tokens([token])

    def _with_probabilities(self, token: int, logits: Array, top: int | None) -> GeneratedToken:
        if top is None:
            return GeneratedToken(token, "")
        found = log_probabilities(logits)
        order = np.lexsort((np.arange(len(found)), -found))[:top]
        likely = tuple((int(t), float(found[t])) for t in order)
        return GeneratedToken(token, "", float(found[token]), likely)

    def _put(self, job: _Job, found: GeneratedToken | RequestError) -> None:
        if not job.loop.is_closed():
            job.loop.call_soon_threadsafe(job.found.put_nowait, found)
