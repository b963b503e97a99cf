"""Prompts, lengths and wishes as a Generator takes them: checked, in one form."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from monograph.errors import ConfigError, FeedError
from monograph.generate.rewrite.sampling import Sampling

DEFAULT_LENGTH = 2048
"""The maximum length where neither the caller nor a shorter context says otherwise."""


def choose_length(given: int | None, context: int | None) -> int:
    """How many tokens a sequence may have."""
    if given is None:
        return min(context or DEFAULT_LENGTH, DEFAULT_LENGTH)
    given = integer("max_length", given)
    if given < 2 or (context is not None and given > context):
        raise ConfigError(
            "max_length is out of range",
            expected=f"2..{context}, the decoder's context" if context else "at least 2",
            given=given,
        )
    return given


def length_limit(maximum: int, context: int | None, positions: int | None) -> str | None:
    """Why no sequence can be longer than the maximum; None where a caller may just raise it.

    context: what the decoder's configuration says; positions: what its tables have rows for.
    """
    if context is not None and maximum >= context:
        return f"the decoder's context is {context} tokens"
    if positions is not None and maximum >= positions:
        return f"the decoder has positions for {positions} tokens"
    return None


def changed(sampling: Sampling, wishes: dict[str, Any]) -> Sampling:
    """Sampling with some wishes of this time."""
    known = Sampling.__dataclass_fields__
    if unknown := sorted(set(wishes) - set(known)):
        raise ConfigError(
            "no such wish for sampling",
            expected=", ".join((*known, "stop", "one_launch")),
            given=", ".join(unknown),
        )
    return Sampling(**{**{n: getattr(sampling, n) for n in known}, **wishes})


def flag(name: str, given: Any) -> bool:
    """Yes or no, from bools only: a word would be taken for yes, whatever it says."""
    if not isinstance(given, (bool, np.bool_)):
        raise ConfigError(f"{name} is True or False", given=repr(given)[:80])
    return bool(given)


def integer(name: str, given: Any) -> int:
    """A count, from any kind of integer."""
    try:
        if isinstance(given, bool):
            raise TypeError
        value = operator.index(given)
    except TypeError:
        raise ConfigError(f"{name} is an integer", given=repr(given)) from None
    if value < 0:
        raise ConfigError(f"{name} is not negative", given=value)
    return value


def first(prompt: Any) -> Any:
    """The first token of a prompt, or the first prompt of several."""
    return prompt[0] if len(prompt) else ()


def texts_in(prompt: Any) -> list[str] | None:
    """Prompts that are text; None where they are ids."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, (list, tuple)) and prompt and all(isinstance(p, str) for p in prompt):
        return list(prompt)
    return None


def ids_in(prompt: Any) -> list[list[int]]:
    """Prompts that are ids, as lists of them."""
    try:
        if isinstance(prompt, (bytes, bytearray, memoryview, Mapping)):
            raise TypeError
        rows = [prompt] if not len(prompt) or np.ndim(prompt[0]) == 0 else list(prompt)
        return [[token_id(t) for t in row] for row in rows]
    except (TypeError, ValueError, LookupError):
        raise FeedError(
            "a prompt is a text, or ids of tokens", expected="[1, 2, 3]", given=repr(prompt)[:80]
        ) from None


def token_id(given: Any) -> int:
    """An id, from any kind of integer."""
    if isinstance(given, (bool, np.bool_)):
        raise TypeError
    return operator.index(given)


def check_ids(rows: list[list[int]], vocabulary: int) -> None:
    """Refuses prompts that are empty, and ids that the decoder does not know."""
    if not rows:
        raise FeedError("there is no prompt", given=repr(rows))
    for row in rows:
        if not row:
            given = repr(row) if len(rows) == 1 else f"{len(rows)} prompts, one of them empty"
            raise FeedError("a prompt has at least one token", given=given)
        if bad := [t for t in row if not 0 <= t < vocabulary]:
            raise FeedError(
                "token ids are out of range", expected=f"0..{vocabulary - 1}", given=bad[:8]
            )


def check_room(
    old: list[list[int]], new: list[list[int]], maximum: int, limit: str | None = None
) -> list[int]:
    """The lengths of sequences with what is appended to them, where one more token fits.

    limit: why the maximum cannot be raised, where it cannot.
    """
    for have, more in zip(old, new, strict=True):
        if len(have) + len(more) >= maximum:
            raise FeedError(
                "the sequence would be longer than the maximum"
                if have
                else "the prompt is longer than the maximum",
                expected=f"fewer than {maximum} tokens, as one is to come",
                given=f"{len(have)} + {len(more)}" if have else len(more),
                hint=_shorter(bool(have), limit),
            )
    return [len(have) + len(more) for have, more in zip(old, new, strict=True)]


def _shorter(goes_on: bool, limit: str | None) -> str:
    """What to do where tokens have no room."""
    way = "make room by rewind_to or reset" if goes_on else "shorten the prompt"
    return f"{way}: {limit}" if limit else f"raise max_length, or {way}"


def place_in(
    given: Any, count: int, message: str = "no such sequence", least: int | None = None
) -> int:
    """The index of one of so many things; from their end too, unless told the `least` one."""
    least = -count if least is None else least
    try:
        if isinstance(given, (bool, np.bool_)):
            raise TypeError
        place = operator.index(given)
    except TypeError:
        raise FeedError(message, expected="an integer", given=repr(given)) from None
    if not least <= place < count:
        expected = f"0..{count - 1}" if count else "append_tokens first"
        raise FeedError(message, expected=expected, given=place)
    return place


def stops_in(given: Any) -> list[Any]:
    """Stop tokens as a list, of one or of several."""
    if isinstance(given, (int, str, np.integer)):
        return [given]
    try:
        if isinstance(given, (bytes, bytearray, memoryview)):
            raise TypeError
        return list(given)
    except TypeError:
        raise ConfigError(
            "stop tokens are ids, or texts of single tokens", given=repr(given)[:80]
        ) from None


def stop_ids(
    given: list[Any], found: list[Any], vocabulary: int, source: str = ""
) -> tuple[int, ...]:
    """Stop tokens, each found by its text (None where there is none) or given as an id.

    source: the file that names them, where it is not the caller.
    """
    made = []
    for stop, token in zip(given, found, strict=True):
        # Whatever is negative is no id; of other kinds of things `integer` says what they are.
        negative = isinstance(token, (int, np.integer)) and token < 0
        if token is None or negative or integer("stop", token) >= vocabulary:
            raise ConfigError(
                "no such stop token",
                expected="the text of a single token"
                if isinstance(stop, str)
                else f"an id in 0..{vocabulary - 1}",
                given=f"{stop!r} in {source}" if source else repr(stop),
            )
        made.append(integer("stop", token))
    return tuple(made)
