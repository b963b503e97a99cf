"""Models that are served, as protocols see them: in this process or on another machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monograph.generate.batching.options import RequestOptions
from monograph.generate.text import Text
from monograph.ir import Array
from monograph.runtime.feeds import Port
from monograph.serve.batches import BatchAxes
from monograph.serve.failures import Failure, RequestError, invalid
from monograph.serve.settings import Limits
from monograph.serve.statistics import ModelStatistics

if TYPE_CHECKING:
    from monograph.serve.language.chat import ChatTemplate


class ServedTensors(ABC):
    """A model that maps tensors to tensors."""

    name: str
    version: str
    platform: str
    statistics: ModelStatistics
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    axes: BatchAxes | None
    """The batch axes; None if requests do not share runs, for the reason in `unbatched`."""
    unbatched: str

    @property
    @abstractmethod
    def max_batch(self) -> int:
        """The most rows of a batch; 0 if requests do not share runs."""

    @property
    @abstractmethod
    def independence(self) -> str:
        """Return "bits" if a row of a batch has the bits of its run alone, else "tolerance"."""

    @property
    @abstractmethod
    def short(self) -> bool:
        """True if runs are so short that nobody looks whether their client is still there."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """The number of requests that wait or run."""

    @property
    def memory(self) -> Mapping[str, int]:
        """The bytes of the model by their use; nothing for a model elsewhere."""
        return {}

    @property
    def counts(self) -> Mapping[str, Any]:
        """Nothing: the model makes no tokens."""
        return {}

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """The runs that did not use the code prepared for them, by reason."""
        return self.statistics.fallbacks

    @abstractmethod
    async def infer(self, feeds: Mapping[str, Any], deadline: float) -> list[Array]:
        """Return the outputs for the inputs of a request, in model order."""

    @abstractmethod
    def close(self) -> None:
        """Refuse what waits, and release code and memory."""


@dataclass(frozen=True)
class TokenRequest:
    """A request for the tokens after a prompt."""

    prompt: tuple[int, ...]
    most: int
    """The most tokens after the prompt, `continued` included."""
    sampling: RequestOptions = field(default_factory=RequestOptions)
    stops: tuple[str, ...] = ()
    top: int | None = None
    """The number of likeliest tokens whose probabilities are told; None for no probabilities."""
    continued: tuple[int, ...] = ()
    """Tokens after the prompt that a broken stream has given; the next ones follow them."""
    client: str = ""
    """Requests of different clients take turns."""


@dataclass(frozen=True)
class GeneratedToken:
    """A token, the text that is known by it, and probabilities where they are wanted."""

    token: int
    text: str
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    finish: str | None = None
    """Set for the last one: "stop" or "length"."""


class Generation:
    """A sequence that was submitted: its tokens as they come, and its end."""

    def __init__(
        self, tokens: AsyncGenerator[GeneratedToken, None], end: Callable[[], None] | None = None
    ) -> None:
        self.tokens = tokens
        self._end = end

    def end(self) -> None:
        """End the work for the sequence, also if nobody has asked for its tokens."""
        if self._end is not None:
            self._end()


class ServedLanguage(ABC):
    """A language model, which generates tokens."""

    name: str
    version: str
    platform: str
    statistics: ModelStatistics
    created: int
    tokenizer: Text
    max_length: int
    vocabulary: int
    template: ChatTemplate | None

    @property
    @abstractmethod
    def pending(self) -> int:
        """The number of requests that wait or run."""

    @abstractmethod
    def generate(self, request: TokenRequest) -> AsyncGenerator[GeneratedToken, None]:
        """Yield tokens as they are generated; the work ends when the caller does."""

    @property
    def memory(self) -> Mapping[str, int]:
        """The bytes of the model by their use; nothing for a model elsewhere."""
        return {}

    @property
    def counts(self) -> Mapping[str, Any]:
        """Counts of sequences, slots and steps; nothing for a model elsewhere."""
        return {}

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """The runs that did not use the code prepared for them, by reason."""
        return self.statistics.fallbacks

    def submit(self, requests: Sequence[TokenRequest]) -> list[Generation]:
        """Begin several requests, all or none; raise the error of one that cannot be taken."""
        for request in requests:
            self.check(request)
        return [Generation(self.generate(request)) for request in requests]

    @abstractmethod
    def close(self) -> None:
        """End after the requests that wait; those that take too long are cut off."""

    def token_text(self, token: int) -> str:
        """Return the text of one token."""
        return self.tokenizer.decode([token])

    def check(self, request: TokenRequest) -> None:
        """Raise the error of a request that the model cannot take."""
        if not request.prompt:
            raise invalid("the prompt must have at least one token")
        if len(request.prompt) >= self.max_length:
            raise invalid(
                f"the prompt has {len(request.prompt)} tokens; with an answer at most "
                f"{self.max_length} fit"
            )
        if bad := [t for t in request.prompt if not 0 <= t < self.vocabulary]:
            raise invalid(f"token {bad[0]} is not in the vocabulary of {self.vocabulary}")


def check_queue(count: int, limits: Limits) -> None:
    """Raise an error if as many requests wait for a model as may."""
    if count >= limits.queue:
        raise RequestError(Failure.FULL, f"{count} requests wait for the model")
