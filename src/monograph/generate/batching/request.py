"""A submitted sequence: its state for the scheduler, and the stream that its caller reads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np

from monograph.errors import ExecutionError
from monograph.generate.batching.events import CANCELLED, Completion, TokenEvent
from monograph.generate.batching.lookup import Repeats
from monograph.generate.batching.options import RequestOptions
from monograph.generate.batching.slots import Slot
from monograph.generate.prompts import StopTokens
from monograph.generate.text import StopFilter, Text, TextStream
from monograph.ir import Array


class TokenStream:
    """The events of a submitted sequence, for one reader: `for`, `async for` or `result`.

    Leave a `with` or `async with` block, or call `cancel`, to end a sequence early.
    """

    def __init__(self, prompt_tokens: int, cancel: Callable[[], None]) -> None:
        self.prompt_tokens = prompt_tokens
        self.reused_tokens = 0
        self._cancel = cancel
        self._changed = threading.Condition()
        self._waiting: deque[TokenEvent] = deque()
        self._all: list[TokenEvent] = []
        self._error: BaseException | None = None
        self._ended = False
        self._readers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    # The reader's side

    @property
    def finish_reason(self) -> str | None:
        """Return why the sequence ended; None while it runs, or if it failed."""
        with self._changed:
            return self._all[-1].finish_reason if self._all else None

    @property
    def done(self) -> bool:
        """True if no event will be added."""
        return self._ended

    def cancel(self) -> None:
        """End the sequence; its last event has the finish reason "cancelled"."""
        if not self._ended:
            self._cancel()

    def __iter__(self) -> Iterator[TokenEvent]:
        return self

    def __next__(self) -> TokenEvent:
        with self._changed:
            while not self._waiting and not self._ended:
                self._changed.wait()
            return self._taken(StopIteration)

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        while True:
            with self._changed:
                if self._waiting or self._ended:
                    return self._taken(StopAsyncIteration)
                loop = asyncio.get_running_loop()
                change = loop.create_future()
                self._readers.append((loop, change))
            await change

    def _taken(self, end: type[Exception]) -> TokenEvent:
        if self._waiting:
            return self._waiting.popleft()
        if self._error is not None:
            raise self._error
        raise end

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the end and return everything; raise TimeoutError after some seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, timeout):
                raise TimeoutError(f"the sequence has not ended after {timeout} seconds")
            if self._error is not None:
                raise self._error
            events = tuple(self._all)
        tokens = tuple(e.id for e in events if e.id is not None)
        text, reason = "".join(e.text for e in events), events[-1].finish_reason
        return Completion(
            tokens, text, reason or "", self.prompt_tokens, self.reused_tokens, events
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    # The scheduler's side

    def add_event(self, event: TokenEvent) -> None:
        """Add an event; called by the engine."""
        with self._changed:
            self._all.append(event)
            self._waiting.append(event)
            self._ended = event.finish_reason is not None
            self._wake()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error; called by the engine."""
        with self._changed:
            if not self._ended:
                self._error, self._ended = error, True
                self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        readers, self._readers = self._readers, []
        for loop, change in readers:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, change)


def _settle(change: asyncio.Future[None]) -> None:
    if not change.done():
        change.set_result(None)


@dataclass(eq=False)
class Request:
    """The state of a sequence. Only the scheduler's thread changes it, but for `cancelled`."""

    tokens: list[int]
    """The prompt and the generated tokens."""
    prompt: int
    """The length of the prompt."""
    most: int
    """The most tokens that are generated."""
    options: RequestOptions
    stop: StopTokens
    vocabulary: int
    text: Text | None
    client: str
    deadline: float | None
    """The time when it ends at the latest."""
    continued: int = 0
    """The tokens at the end of the prompt that count as generated."""
    slot: Slot | None = None
    filled: int = 0
    """The tokens whose rows are in the cache."""
    cancelled: bool = False
    ended: bool = False
    repeats: Repeats = field(default_factory=Repeats)
    """The proposals of its own text."""
    stream: TokenStream = field(init=False)

    @property
    def length(self) -> int:
        """The tokens before the one to choose."""
        return len(self.tokens)

    @property
    def made(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def left(self) -> int:
        """The tokens that are not in the cache."""
        return len(self.tokens) - self.filled

    # Penalties

    @cached_property
    def seen(self) -> Array:
        found = np.zeros(self.vocabulary, np.uint8)
        found[self.tokens] = 1
        return found

    @cached_property
    def bias(self) -> Array:
        found = np.zeros(self.vocabulary, np.float32)
        for token, bias in self.options.logit_bias.items():
            found[token] = bias
        self._generated: set[int] = set()
        for token in self.tokens[self.prompt - self.continued :]:
            self._penalise(found, token)
        return found

    def _penalise(self, bias: Array, token: int) -> None:
        if token not in self._generated:
            self._generated.add(token)
            bias[token] -= self.options.presence_penalty
        bias[token] -= self.options.frequency_penalty

    def append(self, token: int) -> None:
        """Append a generated token."""
        self.tokens.append(token)
        if "seen" in self.__dict__:
            self.seen[token] = 1
        if "bias" in self.__dict__:
            self._penalise(self.bias, token)

    # Text

    @cached_property
    def _texts(self) -> tuple[TextStream, StopFilter] | None:
        if self.text is None:
            return None
        stream, ending = TextStream(self.text), StopFilter(self.stop.texts)
        for token in self.tokens[self.prompt - self.continued : self.prompt]:
            ending.put(stream.put(token))  # an earlier sequence has shown this text
        return stream, ending

    def shown(self, token: int) -> tuple[str, bool]:
        """Return the text that a token completes, and whether a stop text ended it."""
        if self._texts is None or token in self.stop:
            return "", False
        stream, ending = self._texts
        made = ending.put(stream.put(token))
        return made, ending.ended

    def rest(self) -> str:
        """Return the text that was held."""
        if self._texts is None:
            return ""
        stream, ending = self._texts
        return ending.put(stream.end()) + ending.end()


def closed_error() -> ExecutionError:
    return ExecutionError("the engine is closed", hint="make another Engine")


def ended_event(reason: str, text: str = "") -> TokenEvent:
    """Return an event that only ends a sequence."""
    assert reason != CANCELLED or not text
    return TokenEvent(None, text, finish_reason=reason)
