"""Checks and normalises the prompts, lengths, buckets and overrides given to a Generator."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from monograph.errors import ConfigError, FeedError
from monograph.generate.rewrite.sampling import Sampling
from monograph.generate.text import is_unicode

DEFAULT_LENGTH = 2048
"""The default maximum length, unless the context is shorter."""


def choose_length(given: int | None, context: int | None) -> int:
    """Return the maximum length of a sequence."""
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
    """Return why no sequence can be longer than the maximum; None if the caller may raise it.

    context: the limit of the decoder's configuration; positions: the rows of its tables.
    """
    if context is not None and maximum >= context:
        return f"the decoder's context is {context} tokens"
    if positions is not None and maximum >= positions:
        return f"the decoder has positions for {positions} tokens"
    return None


def changed(sampling: Sampling, overrides: dict[str, Any]) -> Sampling:
    """Return the sampling with the overrides of one call."""
    known = Sampling.__dataclass_fields__
    if unknown := sorted(set(overrides) - set(known)):
        raise ConfigError(
            "no such keyword argument",
            expected=", ".join((*known, "stop", "one_launch")),
            given=", ".join(unknown),
        )
    return Sampling(**{**{n: getattr(sampling, n) for n in known}, **overrides})


def flag(name: str, given: Any) -> bool:
    """Return a bool; reject other types, because any non-empty text would be true."""
    if not isinstance(given, (bool, np.bool_)):
        raise ConfigError(f"`{name}` must be True or False", given=repr(given)[:80])
    return bool(given)


def integer(name: str, given: Any) -> int:
    """Return a count, from any integer type."""
    try:
        if isinstance(given, bool):
            raise TypeError
        value = operator.index(given)
    except TypeError:
        raise ConfigError(f"`{name}` must be an integer", given=repr(given)) from None
    if value < 0:
        raise ConfigError(f"`{name}` must not be negative", given=value)
    return value


def first(prompt: Any) -> Any:
    """Return the first token of a prompt, or the first of several prompts."""
    return prompt[0] if len(prompt) else ()


def texts_in(prompt: Any) -> list[str] | None:
    """Return prompts that are text; None if they are ids."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, (list, tuple)) and prompt and all(isinstance(p, str) for p in prompt):
        return list(prompt)
    return None


def ids_in(prompt: Any) -> list[list[int]]:
    """Return prompts that are ids, as lists."""
    try:
        if isinstance(prompt, (bytes, bytearray, memoryview, Mapping)):
            raise TypeError
        rows = [prompt] if not len(prompt) or np.ndim(prompt[0]) == 0 else list(prompt)
        return [[token_id(t) for t in row] for row in rows]
    except (TypeError, ValueError, LookupError):
        raise FeedError(
            "a prompt must be a text, or token ids", expected="[1, 2, 3]", given=repr(prompt)[:80]
        ) from None


def token_id(given: Any) -> int:
    """Return a token id, from any integer type."""
    if isinstance(given, (bool, np.bool_)):
        raise TypeError
    return operator.index(given)


def check_ids(rows: list[list[int]], vocabulary: int) -> None:
    """Raise an error for empty prompts, and for ids outside of the vocabulary."""
    if not rows:
        raise FeedError("there is no prompt", given=repr(rows))
    for row in rows:
        if not row:
            given = repr(row) if len(rows) == 1 else f"{len(rows)} prompts, one of them empty"
            raise FeedError("a prompt must have at least one token", given=given)
        if bad := [t for t in row if not 0 <= t < vocabulary]:
            raise FeedError(
                "token ids are out of range", expected=f"0..{vocabulary - 1}", given=bad[:8]
            )


def check_room(
    old: list[list[int]], new: list[list[int]], maximum: int, limit: str | None = None
) -> list[int]:
    """Return the lengths of sequences with the new tokens; raise an error unless one more fits.

    limit: the reason why the maximum cannot be raised, if it cannot.
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


def _shorter(continues: bool, limit: str | None) -> str:
    """Return a remedy if tokens do not fit."""
    way = "make room by rewind_to or reset" if continues else "shorten the prompt"
    return f"{way}: {limit}" if limit else f"raise max_length, or {way}"


def place_in(
    given: Any, count: int, message: str = "no such sequence", least: int | None = None
) -> int:
    """Return an index below `count`; a negative one counts from the end, unless below `least`."""
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
    """Return stop tokens as a list, from one or several."""
    if isinstance(given, (int, str, np.integer)):
        return [given]
    try:
        if isinstance(given, (bytes, bytearray, memoryview)):
            raise TypeError
        return list(given)
    except TypeError:
        raise ConfigError("stop tokens must be ids or texts", given=repr(given)[:80]) from None


class StopTokens(tuple[int, ...]):
    """The ids of tokens that end a sequence, and texts of several tokens that end it too."""

    texts: tuple[str, ...]

    def __new__(cls, ids: Iterable[int], texts: Iterable[str] = ()) -> StopTokens:
        made = super().__new__(cls, ids)
        made.texts = tuple(texts)
        return made


def stop_ids(given: list[Any], found: list[Any], vocabulary: int, source: str = "") -> StopTokens:
    """Return stop tokens, given as ids or texts (`found` has the ids of texts, None for others).

    source: the file that lists them, unless the caller gave them.
    """
    made, texts = [], []
    for stop, token in zip(given, found, strict=True):
        if token is None and isinstance(stop, str) and stop and is_unicode(stop):
            texts.append(stop)
            continue
        # A negative number is no id; `integer` raises the error for other types.
        negative = isinstance(token, (int, np.integer)) and token < 0
        if token is None or negative or integer("stop", token) >= vocabulary:
            raise ConfigError(
                "no such stop token",
                expected="a text of at least one character"
                if isinstance(stop, str)
                else f"an id in 0..{vocabulary - 1}",
                given=f"{stop!r} in {source}" if source else repr(stop),
            )
        made.append(integer("stop", token))
    return StopTokens(made, texts)


LEAST_BUCKET, MOST_BUCKET = 16, 512


def check_buckets(given: Any) -> tuple[int, ...] | None:
    """Return the requested buckets as a tuple; None for the defaults."""
    if given is None:
        return None
    several = list(given) if isinstance(given, Iterable) else [given]
    try:
        if any(isinstance(b, bool) for b in several):
            raise TypeError
        sizes = tuple(operator.index(b) for b in several)
    except TypeError:
        sizes = (0,)
    if any(size < 1 for size in sizes):
        raise ConfigError(
            "`buckets` must be lengths",
            expected="64 or [64, 512]: integers >= 1",
            given=repr(given),
        )
    return sizes


def choose_bucket(buckets: Sequence[int], wanted: int, room: int) -> int:
    """Return the number of tokens to feed at once: all of them if a bucket has room."""
    fitting = [b for b in buckets if b <= room]
    return next((b for b in fitting if b >= wanted), max(b for b in fitting if b <= wanted))


def make_buckets(given: tuple[int, ...] | None, maximum: int, single: bool) -> tuple[int, ...]:
    """Return the buckets, ascending; one token at a time is always among them.

    A bucket that is larger than the room becomes as large as the room.
    """
    if single:
        return (1,)
    if given is not None:
        return tuple(sorted({1, *(min(b, maximum) for b in given)}))
    sizes = [1, *([maximum] if maximum < LEAST_BUCKET else [])]
    size = LEAST_BUCKET
    while size <= min(MOST_BUCKET, maximum):
        sizes.append(size)
        size *= 2
    return tuple(sizes)
