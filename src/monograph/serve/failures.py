"""Errors of requests, with their status in HTTP and gRPC."""

from __future__ import annotations

from enum import Enum

from monograph.errors import ConfigError, ExecutionError, FeedError, MonographError


class Failure(Enum):
    """The kind of a failed request: the status of HTTP, and the name of the status of gRPC."""

    INVALID = (400, "INVALID_ARGUMENT")
    UNAUTHENTICATED = (401, "UNAUTHENTICATED")
    UNKNOWN = (404, "NOT_FOUND")
    METHOD = (405, "UNIMPLEMENTED")
    SLOW = (408, "DEADLINE_EXCEEDED")
    TOO_LARGE = (413, "RESOURCE_EXHAUSTED")
    FULL = (429, "RESOURCE_EXHAUSTED")
    INTERNAL = (500, "INTERNAL")
    UNIMPLEMENTED = (501, "UNIMPLEMENTED")
    UNAVAILABLE = (503, "UNAVAILABLE")
    EXPIRED = (504, "DEADLINE_EXCEEDED")

    @property
    def status(self) -> int:
        """The status of HTTP."""
        return self.value[0]

    @property
    def code(self) -> str:
        """The name of the status of gRPC."""
        return self.value[1]


class RequestError(MonographError):
    """A request that cannot be answered."""

    def __init__(self, kind: Failure, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


def invalid(message: str) -> RequestError:
    """Return the error of a request that breaks the protocol or does not fit the model."""
    return RequestError(Failure.INVALID, message)


def unimplemented(what: str) -> RequestError:
    """Return the error of a call that the protocol has and this server does not."""
    return RequestError(Failure.UNIMPLEMENTED, f"{what} is not implemented by this server")


def as_request_error(error: BaseException) -> RequestError:
    """Return any error as that of a request; only errors of ours show their text."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, (FeedError, ExecutionError, ConfigError)) and not error.internal:
        return RequestError(Failure.INVALID, str(error))
    if isinstance(error, MemoryError):
        return RequestError(Failure.UNAVAILABLE, "the server has no memory for this request")
    return RequestError(Failure.INTERNAL, "the server failed; its log has the reason")
