"""The fields of OpenAI's requests: each is checked, and one that is not supported is named."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monograph.generate.batching.options import RequestOptions
from monograph.serve.failures import Failure, RequestError

MOST_CHOICES, MOST_STOPS, MOST_TOP = 16, 16, 20
CHAT, TEXT = "chat", "text"
_IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
"""Fields that change nothing about an answer."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none",),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
}
"""Fields that are accepted with these values only."""
_OWN = {
    "model", "stream", "stream_options", "stop", "n", "seed", "temperature", "top_p", "top_k",
    "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "logprobs",
    "max_tokens",
}  # fmt: skip
_BY_KIND = {CHAT: {"messages", "max_completion_tokens", "top_logprobs"}, TEXT: {"prompt"}}


class FieldError(RequestError):
    """A field of a request that is wrong or not supported."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(Failure.INVALID, message)
        self.field = name


@dataclass(frozen=True)
class GenerationFields:
    """The fields that requests for chats and for texts share."""

    model: str
    sampling: RequestOptions
    most: int | None
    stops: tuple[str, ...]
    choices: int
    top: int | None
    """The number of likeliest tokens to tell; None for no probabilities."""
    stream: bool
    usage: bool
    """True if a stream ends with a part that has the usage."""


def read_fields(given: Mapping[str, Any], kind: str, vocabulary: int) -> GenerationFields:
    """Return the fields of a request; raise an error that names a wrong one."""
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if name in _NEUTRAL and value not in _NEUTRAL[name]:
            raise FieldError(name, f"`{name}` is not supported")
        if name not in _OWN | _BY_KIND[kind] | set(_NEUTRAL) | set(_IGNORED):
            raise FieldError(name, f"`{name}` is not supported")
    model = found.get("model")
    if not isinstance(model, str):
        raise FieldError("model", "`model` must be the name of a model")
    options = found.get("stream_options", {})
    if not isinstance(options, dict):
        raise FieldError("stream_options", "`stream_options` must be an object")
    most = _number(found, "max_tokens", int, 1, 1 << 31)
    if "max_completion_tokens" in found:
        most = _number(found, "max_completion_tokens", int, 1, 1 << 31)
    return GenerationFields(
        model=model,
        sampling=_sampling(found, vocabulary),
        most=most,
        stops=_stops(found),
        choices=_number(found, "n", int, 1, MOST_CHOICES) or 1,
        top=_top(found, kind),
        stream=_flag(found, "stream"),
        usage=_flag(options, "include_usage"),
    )


def _sampling(found: Mapping[str, Any], vocabulary: int) -> RequestOptions:
    def number(name: str, least: float, most: float, default: float) -> float:
        given = _number(found, name, float, least, most)
        return default if given is None else given

    seed = _number(found, "seed", int, -(1 << 63), (1 << 64) - 1)
    return RequestOptions(
        temperature=number("temperature", 0, 2, 1.0),
        top_p=number("top_p", 0, 1, 1.0),
        top_k=_number(found, "top_k", int, 0, 1 << 31) or 0,
        repetition_penalty=number("repetition_penalty", 0.01, 100, 1.0),
        frequency_penalty=number("frequency_penalty", -2, 2, 0.0),
        presence_penalty=number("presence_penalty", -2, 2, 0.0),
        logit_bias=_biases(found, vocabulary),
        seed=secrets.randbits(32) if seed is None else _folded(seed % (1 << 64)),
    )


def _folded(seed: int) -> int:
    """Return a seed of 32 bits; a small one is itself."""
    return (seed ^ seed >> 32) & 0xFFFFFFFF


def _number(found: Mapping[str, Any], name: str, kind: Any, least: float, most: float) -> Any:
    """Return a number of a kind in a range; None if it is not given."""
    value = found.get(name)
    if value is None:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    fits = whole or (kind is float and isinstance(value, float))
    if not fits or not least <= value <= most:
        what = "a whole number" if kind is int else "a number"
        raise FieldError(name, f"`{name}` must be {what} in {least}..{most}, got {value!r:.80}")
    return kind(value)


def _flag(found: Mapping[str, Any], name: str) -> bool:
    value = found.get(name, False)
    if not isinstance(value, bool):
        raise FieldError(name, f"`{name}` must be true or false, got {value!r:.80}")
    return value


def _stops(found: Mapping[str, Any]) -> tuple[str, ...]:
    given = found.get("stop", [])
    stops = [given] if isinstance(given, str) else given
    fits = isinstance(stops, list) and all(isinstance(s, str) and s for s in stops)
    if not fits or len(stops) > MOST_STOPS:
        raise FieldError("stop", f"`stop` must be a text, or up to {MOST_STOPS} texts")
    return tuple(stops)


def _top(found: Mapping[str, Any], kind: str) -> int | None:
    if kind == TEXT:
        top: int | None = _number(found, "logprobs", int, 0, MOST_TOP)
        return top
    wanted = _flag(found, "logprobs")
    top = _number(found, "top_logprobs", int, 0, MOST_TOP)
    if top is not None and not wanted:
        raise FieldError("top_logprobs", "`top_logprobs` needs `logprobs`: true")
    return (top or 0) if wanted else None


def _biases(found: Mapping[str, Any], vocabulary: int) -> dict[int, float]:
    given = found.get("logit_bias", {})
    made: dict[int, float] = {}
    pairs: Any = given.items() if isinstance(given, dict) else [("", "")]
    for token, bias in pairs:
        known = token.isascii() and token.isdecimal() and int(token) < vocabulary
        number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not known or not number or not -100 <= bias <= 100:
            raise FieldError("logit_bias", "`logit_bias` must map token ids to -100..100")
        made[int(token)] = float(bias)
    return made


def read_messages(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a chat, each with its text."""
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise FieldError("messages", "`messages` must be a list of messages")
    return [_message(m, i) for i, m in enumerate(messages)]


def _message(given: Any, place: int) -> dict[str, Any]:
    name = f"messages[{place}]"
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise FieldError("messages", f"`{name}` must be an object with a role")
    unknown = {n for n, v in given.items() if v is not None} - {"role", "content", "name"}
    if unknown:
        field = sorted(unknown)[0]
        raise FieldError(f"{name}.{field}", f"`{name}.{field}` is not supported")
    content = given.get("content", "")
    if isinstance(content, list):
        parts = [p.get("text") if _is_text(p) else None for p in content]
        if any(not isinstance(p, str) for p in parts):
            raise FieldError(f"{name}.content", f"`{name}.content` must be text; parts are not")
        content = "".join(map(str, parts))
    if not isinstance(content, str):
        raise FieldError(f"{name}.content", f"`{name}.content` must be a text")
    return {**given, "content": content}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"


def read_prompts(given: Mapping[str, Any]) -> list[str | list[int]]:
    """Return the prompts of a request: texts, or lists of token ids."""
    prompt: Any = given.get("prompt")
    several: list[Any] = prompt if isinstance(prompt, list) else [prompt]
    if several and all(type(p) is int for p in several):
        return [several]
    if several and all(isinstance(p, str) or _is_tokens(p) for p in several):
        return several
    raise FieldError("prompt", "`prompt` must be a text, texts, or token ids")


def _is_tokens(given: Any) -> bool:
    return isinstance(given, list) and all(type(t) is int for t in given)
