"""Messages between a front and the replicas of a model. Failures are values: errors of ours would
lose their kind on the way.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from monograph.ir import Array
from monograph.runtime.feeds import Port
from monograph.serve.batches import BatchAxes
from monograph.serve.failures import Failure, RequestError
from monograph.serve.served import GeneratedToken, TokenRequest


class LostError(Exception):
    """A replica was lost before its answer came; another one may have the request."""


@dataclass(frozen=True)
class InferAttempt:
    """A request for outputs."""

    id: str
    """The same for all attempts of a request."""
    version: str
    feeds: Mapping[str, Any]
    seconds: float
    """The time that is left; clocks of machines differ."""


@dataclass(frozen=True)
class GenerateAttempt:
    """A request for the tokens after those that are known."""

    id: str
    number: int
    """The place of this attempt among those of its request; a later one ends earlier ones."""
    version: str
    request: TokenRequest


@dataclass(frozen=True)
class IndexedToken:
    """A token and its place after the prompt."""

    index: int
    token: GeneratedToken


@dataclass(frozen=True)
class RemoteFailure:
    """The failure of a request on a replica."""

    kind: Failure
    message: str

    def error(self) -> RequestError:
        """Return it as the error of the request."""
        return RequestError(self.kind, self.message)


@dataclass(frozen=True)
class TensorDescription:
    """The facts about a model of tensors that protocols tell."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    axes: BatchAxes | None
    unbatched: str
    max_batch: int
    independence: str


@dataclass(frozen=True)
class LanguageDescription:
    """The facts about a language model that protocols tell."""

    created: int
    max_length: int
    vocabulary: int


Description = TensorDescription | LanguageDescription
InferReply = list[Array] | RemoteFailure
TokenReply = IndexedToken | RemoteFailure


class Link(Protocol):
    """The way to the replicas of a model; each call reaches one of them."""

    async def infer(self, attempt: InferAttempt) -> InferReply:
        """Return the answer of a replica; raise LostError if the replica is lost."""

    def generate(self, attempt: GenerateAttempt) -> AsyncGenerator[TokenReply, None]:
        """Yield the tokens of a replica; raise LostError if the replica is lost."""

    def describe(self, version: str) -> Description | RemoteFailure:
        """Return the description of a version; wait until there is a replica."""
