"""API keys: a file with one key a line; requests name one of them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from monograph.errors import ConfigError
from monograph.serve.failures import Failure, RequestError

SHORTEST = 16
"""The fewest characters of a key: shorter ones could be tried out."""


class ApiKeys:
    """The keys of a file, as digests. Without a file every request is allowed."""

    def __init__(self, path: Path | None) -> None:
        self._digests: list[bytes] | None = None
        if path is not None:
            self._digests = [_digest(key) for key in _read(path)]

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise an error unless the headers name a key (`Authorization: Bearer`, `X-API-Key`)."""
        if self._digests is None:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")
        given = _digest(key.strip())
        # Each key is compared, so that the time tells nothing about which one was near.
        if sum([hmac.compare_digest(given, known) for known in self._digests]) == 0:
            raise RequestError(Failure.UNAUTHENTICATED, "the request needs a valid API key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _read(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"the file of API keys cannot be read: {e}", given=str(path)) from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys or min(map(len, keys)) < SHORTEST:
        raise ConfigError(
            "the file of API keys must hold one key a line",
            expected=f"keys of at least {SHORTEST} characters",
            given=f"{len(keys)} keys in {path}",
        )
    return keys
