"""The hierarchy of errors.

An error can name the ONNX node, the op, the broken rule, both values and a remedy. Known facts are
printed, one per line.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable
from typing import Any

MAX_FACT = 2000
"""The most characters of a fact that are printed: a hostile file may state very long ones."""
MAX_LISTED = 3
"""The most names that a line lists."""
MAX_LOOKED_UP = 8
"""The most unknown names to suggest similar names for: each is compared with every known name."""


def _shortened(fact: Any) -> str:
    text = str(fact)
    return text if len(text) <= MAX_FACT else f"{text[:MAX_FACT]}... ({len(text)} characters)"


def unforeseen(error: Exception) -> dict[str, Any]:
    """Return the facts of an error that wraps an unexpected Python exception."""
    return {
        "given": f"{type(error).__name__}: {error}",
        "hint": "this is a fault of Monograph: please report it with the model",
        "internal": True,
    }


def some_of(names: Iterable[str]) -> str:
    """List the first few names, and count the rest."""
    every = list(names)
    more = f" and {len(every) - MAX_LISTED} more" if len(every) > MAX_LISTED else ""
    return ", ".join(every[:MAX_LISTED]) + more


def did_you_mean(given: Iterable[str], known: Iterable[str]) -> str | None:
    """Suggest known names that look like the given ones; None if none does."""
    known = list(known)
    looked_up = itertools.islice(given, MAX_LOOKED_UP)
    found = [m for g in looked_up for m in difflib.get_close_matches(g[:200], known, n=1)]
    return f"did you mean {', '.join(dict.fromkeys(found))}?" if found else None


class MonographError(Exception):
    """The base of every error that Monograph raises on purpose."""

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        op: str | None = None,
        expected: Any = None,
        given: Any = None,
        hint: str | None = None,
        internal: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.op = op
        self.expected = expected
        self.given = given
        self.hint = hint
        self.internal = internal
        """True if the error wraps an unexpected Python exception: a fault of Monograph."""

    def __str__(self) -> str:
        lines = [self.message]
        facts = [
            ("node", self.node),
            ("op", self.op),
            ("expected", self.expected),
            ("given", self.given),
            ("what to do", self.hint),
        ]
        lines += [f"  {label}: {_shortened(fact)}" for label, fact in facts if fact is not None]
        return "\n".join(lines)

    def at(self, node: str | None = None, op: str | None = None) -> MonographError:
        """Return this error, with node and op filled in if they were not known yet."""
        self.node = self.node or node
        self.op = self.op or op
        return self


class ModelError(MonographError):
    """The model file is malformed, contradictory, unsafe or too large."""


class InferError(ModelError):
    """An op does not accept the types or attributes it was given."""


class UnknownRankError(InferError):
    """An op needs the rank of a tensor, and the model does not determine it before run time."""


class UnsupportedError(ModelError):
    """The model needs operators that Monograph does not implement."""


class VerifyError(MonographError):
    """A graph breaks a rule of the IR."""


class TextError(MonographError):
    """The text form of a graph does not parse."""


class FeedError(MonographError):
    """The inputs of a run do not fit the model."""


class ConfigError(MonographError):
    """An option has an invalid value."""


class ExecutionError(MonographError):
    """A run failed on its data: an index out of range, a size that is too large."""


class CodegenError(MonographError):
    """Generated code does not compile or load: a fault of Monograph, not of the model."""


class InternalError(MonographError):
    """Monograph contradicts itself, as by an address outside of its buffer. Please report it."""

    def __init__(self, message: str, **facts: Any) -> None:
        facts.setdefault("hint", "this is a fault of Monograph: please report it with the model")
        super().__init__(message, **{"internal": True, **facts})
