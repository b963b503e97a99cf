"""The front's end of a model that runs elsewhere: requests are sent to a replica, and again to
another one if that is lost.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from monograph.generate.batching.events import CANCELLED
from monograph.generate.discover.folder import find_decoder
from monograph.generate.text import Text
from monograph.ir import Array
from monograph.serve.failures import Failure, RequestError, as_request_error
from monograph.serve.folder import Found
from monograph.serve.language.chat import find_template
from monograph.serve.remote.messages import (
    GenerateAttempt,
    IndexedToken,
    InferAttempt,
    LanguageDescription,
    Link,
    LostError,
    RemoteFailure,
    TensorDescription,
)
from monograph.serve.remote.retries import Retries, expired
from monograph.serve.served import (
    GeneratedToken,
    ServedLanguage,
    ServedTensors,
    TokenRequest,
    check_queue,
)
from monograph.serve.settings import Limits
from monograph.serve.statistics import ModelStatistics


class RemoteTensorModel(ServedTensors):
    """A model of tensors on other machines."""

    platform = "monograph_onnx"
    short = False

    def __init__(
        self, found: Found, about: TensorDescription, link: Link, limits: Limits, retries: int
    ) -> None:
        self.name, self.version = found.name, found.version
        self.statistics = ModelStatistics()
        self.inputs, self.outputs = about.inputs, about.outputs
        self.axes, self.unbatched = about.axes, about.unbatched
        self._about = about
        self._link = link
        self._limits = limits
        self._retries = retries
        self._count = 0

    @property
    def max_batch(self) -> int:
        """The most rows of a batch; 0 if requests do not share runs."""
        return self._about.max_batch

    @property
    def independence(self) -> str:
        """Return "bits" or "tolerance", as the replica did that described the model."""
        return self._about.independence

    @property
    def pending(self) -> int:
        """The requests of this front that wait or run."""
        return self._count

    async def infer(self, feeds: Mapping[str, Any], deadline: float) -> list[Array]:
        """Return the outputs for the inputs of a request, in model order."""
        check_queue(self._count, self._limits)
        started = time.monotonic()
        self._count += 1
        try:
            found = await self._infer(feeds, deadline)
        except Exception as error:
            kind = as_request_error(error).kind.name.lower()
            self.statistics.failed(kind, time.monotonic() - started)
            raise
        finally:
            self._count -= 1
        self.statistics.succeeded(time.monotonic() - started)
        return found

    async def _infer(self, feeds: Mapping[str, Any], deadline: float) -> list[Array]:
        retries = Retries(deadline, self._retries, self.statistics.retries)
        id_ = secrets.token_hex(16)
        while True:
            attempt = InferAttempt(id_, self.version, feeds, retries.left())
            failed: LostError | RequestError
            try:
                async with asyncio.timeout(attempt.seconds):
                    reply = await self._link.infer(attempt)
            except TimeoutError:
                raise expired() from None
            except LostError as error:
                failed = error
            else:
                if not isinstance(reply, RemoteFailure):
                    return reply
                failed = reply.error()
            await retries.pause(failed)

    def close(self) -> None:
        """Do nothing: replicas end by themselves."""


class RemoteLanguageModel(ServedLanguage):
    """A language model on other machines; texts are read and templates rendered here."""

    platform = "monograph_decoder"

    def __init__(
        self, found: Found, about: LanguageDescription, link: Link, limits: Limits, retries: int
    ) -> None:
        self.name, self.version = found.name, found.version
        self.statistics = ModelStatistics()
        self.created, self.max_length = about.created, about.max_length
        self.vocabulary = about.vocabulary
        settings = find_decoder(found.path)
        self.tokenizer = Text(settings.tokenizer, settings.model)
        self.template = find_template(found.path if found.path.is_dir() else found.path.parent)
        self._link = link
        self._limits = limits
        self._retries = retries
        self._count = 0

    @property
    def pending(self) -> int:
        """The requests of this front that wait or run."""
        return self._count

    def check(self, request: TokenRequest) -> None:
        """Raise the error of a request that the model cannot take."""
        check_queue(self._count, self._limits)
        super().check(request)

    async def generate(self, request: TokenRequest) -> AsyncGenerator[GeneratedToken, None]:
        """Yield each token once; after the loss of a replica, another one goes on from there."""
        self.check(request)
        started = last = time.monotonic()
        self._count += 1
        first, ended = True, False
        try:
            async with aclosing(self._tokens(request)) as tokens:
                async for token in tokens:
                    now = time.monotonic()
                    self.statistics.tokens(now - last, first, now - started)
                    last, first = now, False
                    if token.finish is not None:  # the caller may stop to read here
                        self.statistics.succeeded(now - started)
                        ended = True
                    yield token
        except Exception as error:
            kind = as_request_error(error).kind.name.lower()
            self.statistics.failed(kind, time.monotonic() - started)
            ended = True
            raise
        finally:
            self._count -= 1
            if not ended:
                self.statistics.failed(CANCELLED, time.monotonic() - started)

    async def _tokens(self, request: TokenRequest) -> AsyncGenerator[GeneratedToken, None]:
        deadline = time.monotonic() + self._limits.generation_seconds
        retries = Retries(deadline, self._retries, self.statistics.retries)
        id_ = secrets.token_hex(16)
        known = [*request.continued]
        while True:
            wanted = _continued(request, known)
            attempt = GenerateAttempt(id_, retries.made, self.version, wanted)
            failed: LostError | RequestError | None = None
            async with aclosing(self._link.generate(attempt)) as replies:
                while failed is None:
                    try:
                        async with asyncio.timeout(retries.left()):
                            reply = await anext(replies)
                    except TimeoutError:
                        raise expired() from None
                    except StopAsyncIteration:
                        failed = LostError("the replica ended the stream without its last token")
                    except LostError as error:
                        failed = error
                    else:
                        if isinstance(reply, RemoteFailure):
                            failed = reply.error()
                        elif (token := _next(reply, len(known))) is not None:
                            known.append(token.token)
                            yield token
                            if token.finish is not None:
                                return
            begun = len(known) > len(request.continued)
            await retries.pause(failed, "continued" if begun else "lost")

    def close(self) -> None:
        """Do nothing: replicas end by themselves."""


def _continued(request: TokenRequest, known: list[int]) -> TokenRequest:
    return replace(request, continued=tuple(known))


def _next(reply: IndexedToken, index: int) -> GeneratedToken | None:
    """Return the token for a place; None for one that the caller has already."""
    if reply.index < index:
        return None
    if reply.index > index:
        raise RequestError(
            Failure.INTERNAL, f"token {reply.index} came where token {index} was expected"
        )
    return reply.token
