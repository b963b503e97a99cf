"""The results of a sequence: an event for each token, and all of it at the end."""

from __future__ import annotations

from dataclasses import dataclass

STOP, LENGTH, CANCELLED, DEADLINE = "stop", "length", "cancelled", "deadline"
"""The reasons why a sequence ended: a stop token or text; no room or enough tokens; `cancel`; its
deadline."""


@dataclass(frozen=True)
class TokenEvent:
    """A generated token of a sequence.

    The last event of a sequence has a finish reason. If the sequence was cancelled or its deadline
    passed, that event has no token.
    """

    id: int | None
    """The token; None in an event that only ends the sequence."""
    text: str = ""
    """The text that is complete with this token; empty without a tokenizer."""
    logprob: float | None = None
    """The logarithm of the token's probability, before penalties and temperature."""
    top_logprobs: tuple[tuple[int, float], ...] = ()
    """The most likely tokens, the first the most likely."""
    finish_reason: str | None = None
    """`"stop"`, `"length"`, `"cancelled"` or `"deadline"` in the last event."""


@dataclass(frozen=True)
class Completion:
    """A whole generated sequence."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    prompt_tokens: int
    reused_tokens: int
    """The tokens of the prompt whose cache rows came from another sequence."""
    events: tuple[TokenEvent, ...]
