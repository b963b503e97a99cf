"""Answers to requests that failed: status, headers, and the error in the form of its protocol."""

from __future__ import annotations

import logging
from typing import Any

from starlette.responses import Response

from monograph.serve.failures import Failure, RequestError, as_request_error
from monograph.serve.http.routing import as_json
from monograph.serve.language.fields import FieldError

RETRY_AFTER = {Failure.FULL: "1", Failure.UNAVAILABLE: "1"}
_log = logging.getLogger("monograph.serve")


def failed_response(error: Exception, first: str = "v2") -> Response:
    """Return the answer to a request that failed; first: the first part of its path."""
    found = as_request_error(error)
    if found.kind is Failure.INTERNAL:
        _log.exception("a request failed", exc_info=error)
    headers = {"retry-after": RETRY_AFTER[found.kind]} if found.kind in RETRY_AFTER else {}
    if found.kind in (Failure.TOO_LARGE, Failure.SLOW):
        headers["connection"] = "close"  # the rest of the body is not read
    body = openai_error(found) if first == "v1" else {"error": str(found)}
    return as_json(body, found.kind.status, headers)


def openai_error(error: RequestError) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    client = error.kind.status < 500
    return {
        "error": {
            "message": str(error),
            "type": "invalid_request_error" if client else "server_error",
            "param": error.field if isinstance(error, FieldError) else None,
            "code": error.kind.name.lower(),
        }
    }
