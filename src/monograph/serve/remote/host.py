"""The replica's end of a model: it loads all its versions, and answers attempts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from monograph.errors import MonographError
from monograph.serve.failures import Failure, RequestError, as_request_error
from monograph.serve.remote.messages import (
    Description,
    GenerateAttempt,
    IndexedToken,
    InferAttempt,
    InferReply,
    LanguageDescription,
    RemoteFailure,
    TensorDescription,
    TokenReply,
)
from monograph.serve.repository import Repository
from monograph.serve.served import ServedLanguage, ServedTensors
from monograph.serve.settings import ServerSettings

_log = logging.getLogger("monograph.serve")


class ModelHost:
    """One replica of a model, with all its versions."""

    def __init__(self, settings: ServerSettings, name: str) -> None:
        self._name = name
        self._repository = Repository(settings)
        try:
            self._repository.load(name)
        except MonographError as error:  # the reason is in the description
            _log.error("model %s was not loaded: %s", name, error)
        self._once = _Once()
        self._streams: dict[str, int] = {}
        """The newest attempt of each stream that runs here."""

    def describe(self, version: str) -> Description | RemoteFailure:
        """Return the facts about a version, or the reason why it was not loaded."""
        try:
            entry = self._repository.entry(self._name, version)
        except RequestError as error:
            return _failure(error)
        model = entry.model
        if model is None:
            return RemoteFailure(Failure.UNAVAILABLE, entry.reason or "the model was not loaded")
        if isinstance(model, ServedLanguage):
            return LanguageDescription(model.created, model.max_length, model.vocabulary)
        assert isinstance(model, ServedTensors)
        return TensorDescription(
            tuple(model.inputs), tuple(model.outputs), model.axes, model.unbatched,
            model.max_batch, model.independence,
        )  # fmt: skip

    async def infer(self, attempt: InferAttempt) -> InferReply:
        """Return the outputs; attempts of one request that meet here share a run."""
        try:
            found: InferReply = await self._once.run(attempt.id, lambda: self._infer(attempt))
            return found
        except Exception as error:
            return _failure(error)

    async def _infer(self, attempt: InferAttempt) -> InferReply:
        model = self._repository.get(self._name, attempt.version)
        if not isinstance(model, ServedTensors):
            raise RequestError(Failure.INVALID, f"model {self._name!r} generates text")
        return await model.infer(attempt.feeds, time.monotonic() + attempt.seconds)

    async def generate(self, attempt: GenerateAttempt) -> AsyncGenerator[TokenReply, None]:
        """Yield tokens with their places; a later attempt of the request ends this one."""
        if self._streams.get(attempt.id, -1) > attempt.number:
            return
        self._streams[attempt.id] = attempt.number
        index = len(attempt.request.continued)
        try:
            model = self._repository.get(self._name, attempt.version)
            if not isinstance(model, ServedLanguage):
                raise RequestError(Failure.INVALID, f"model {self._name!r} maps tensors")
            async with aclosing(model.generate(attempt.request)) as tokens:
                async for token in tokens:
                    if self._streams.get(attempt.id) != attempt.number:
                        return
                    yield IndexedToken(index, token)
                    index += 1
        except Exception as error:
            yield _failure(error)
        finally:
            if self._streams.get(attempt.id) == attempt.number:
                del self._streams[attempt.id]

    def close(self) -> None:
        """End the models after the requests that they have."""
        self._repository.close()


@dataclass
class _Shared:
    task: asyncio.Task[Any]
    waiting: int = 0


class _Once:
    """Work that runs once for each id, while any caller waits for it."""

    def __init__(self) -> None:
        self._running: dict[str, _Shared] = {}

    async def run(self, id_: str, work: Callable[[], Coroutine[Any, Any, InferReply]]) -> Any:
        shared = self._running.get(id_)
        if shared is None:
            shared = self._running[id_] = _Shared(asyncio.create_task(work()))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                self._running.pop(id_, None)
                shared.task.cancel()


def _failure(error: Exception) -> RemoteFailure:
    found = as_request_error(error)
    if found.kind is Failure.INTERNAL:
        _log.exception("a request failed", exc_info=error)
    return RemoteFailure(found.kind, str(found))
