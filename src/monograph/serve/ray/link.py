"""The way from a front to replicas: handles of Ray Serve, and the meaning of Ray's errors."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from ray import exceptions
from ray.serve import exceptions as serve_exceptions
from ray.serve.handle import DeploymentHandle

from monograph.serve.failures import Failure, RequestError
from monograph.serve.remote.messages import (
    Description,
    GenerateAttempt,
    InferAttempt,
    InferReply,
    LostError,
    RemoteFailure,
    TokenReply,
)

_LOST = tuple(
    getattr(module, name)
    for module, names in (
        (
            exceptions,
            (
                "RayActorError", "ObjectLostError", "NodeDiedError", "WorkerCrashedError",
                "RaySystemError", "RpcError", "TaskCancelledError",
            ),
        ),
        (serve_exceptions, ("ReplicaUnavailableError", "RequestCancelledError")),
    )
    for name in names
    if hasattr(module, name)
)  # fmt: skip
"""Errors of Ray after which another replica may have the request."""
_PAUSE = 0.5


class RayLink:
    """A link by the handle of a model's deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._streams = handle.options(stream=True)

    async def infer(self, attempt: InferAttempt) -> InferReply:
        """Return the answer of a replica; raise LostError if the replica is lost."""
        response = self._handle.infer.remote(attempt)
        done = False
        try:
            found: InferReply = await response
            done = True
        except Exception as error:
            done = True
            raise _meaning(error) from error
        finally:
            if not done:
                response.cancel()
        return found

    async def generate(self, attempt: GenerateAttempt) -> AsyncGenerator[TokenReply, None]:
        """Yield the tokens of a replica; raise LostError if the replica is lost."""
        response = self._streams.generate.remote(attempt)
        done = False
        try:
            async for reply in response:
                yield reply
            done = True
        except Exception as error:
            done = True
            raise _meaning(error) from error
        finally:
            if not done:
                response.cancel()

    def describe(self, version: str) -> Description | RemoteFailure:
        """Return the description of a version; wait until there is a replica."""
        while True:
            try:
                found: Description | RemoteFailure = self._handle.describe.remote(version).result()
            except Exception as error:
                if not isinstance(_meaning(error), LostError):
                    raise
                time.sleep(_PAUSE)
            else:
                return found


def _meaning(error: Exception) -> Exception:
    """Return an error of Ray as one of ours; others as they are."""
    if isinstance(error, serve_exceptions.BackPressureError):
        return RequestError(Failure.FULL, "too many requests wait for the model")
    if isinstance(error, serve_exceptions.DeploymentUnavailableError):
        return RequestError(Failure.UNAVAILABLE, "the deployment of the model has failed")
    if isinstance(error, _LOST):
        return LostError(_first_line(error))
    return error


def _first_line(error: Any) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
