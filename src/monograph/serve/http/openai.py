"""OpenAI-compatible endpoints: models, completions and chat completions, whole or as streams."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from monograph.generate.batching.options import RequestOptions
from monograph.generate.text import is_unicode
from monograph.serve.failures import Failure, RequestError, as_request_error, invalid
from monograph.serve.http.errors import openai_error
from monograph.serve.http.routing import as_json, only, read_object, while_connected
from monograph.serve.language.fields import (
    CHAT,
    TEXT,
    FieldError,
    GenerationFields,
    read_fields,
    read_messages,
    read_prompts,
)  # fmt: skip
from monograph.serve.repository import READY, Repository
from monograph.serve.served import GeneratedToken, Generation, ServedLanguage, TokenRequest

DEFAULT_TEXT_TOKENS = 16
"""The number of new tokens of a completion that names none."""


@dataclass
class _Choice:
    """One choice of an answer, as it grows."""

    index: int
    tokens: list[GeneratedToken] = field(default_factory=list)
    finish: str | None = None

    @property
    def text(self) -> str:
        return "".join(t.text for t in self.tokens)


@dataclass(frozen=True)
class _Work:
    """The generations that a request asks for."""

    kind: str
    model: ServedLanguage
    fields: GenerationFields
    generations: list[Generation]
    prompt_tokens: int
    id: str
    created: int


class OpenAI:
    """The endpoints under /v1."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._limits = repository.settings.limits

    async def handle(self, request: Request, parts: list[str]) -> Response:
        """Answer a request."""
        match parts[1:]:
            case ["models"]:
                only(request, "GET")
                return as_json({"object": "list", "data": self._models()})
            case ["models", *name]:
                only(request, "GET")
                return as_json(_described(self._model("/".join(name))))
            case ["completions"]:
                return await self._generate(request, TEXT)
            case ["chat", "completions"]:
                return await self._generate(request, CHAT)
        raise RequestError(Failure.UNKNOWN, f"there is nothing at /{'/'.join(parts)[:200]}")

    def _models(self) -> list[dict[str, Any]]:
        found = [e.model for e in self._repository.entries() if e.state == READY]
        return [_described(m) for m in found if isinstance(m, ServedLanguage)]

    def _model(self, name: str) -> ServedLanguage:
        try:
            model = self._repository.get(name)
        except RequestError as e:
            if e.kind is Failure.UNKNOWN:
                raise RequestError(Failure.UNKNOWN, f"the model {name!r} does not exist") from None
            raise
        if not isinstance(model, ServedLanguage):
            raise invalid(f"model {name!r} maps tensors: send requests to /v2/models/{name}/infer")
        return model

    async def _generate(self, request: Request, kind: str) -> Response:
        only(request, "POST")
        given = await read_object(request, self._limits)
        work = self._work(given, kind, client_of(request))
        if work.fields.stream:
            return _EventStream(work)
        try:
            return as_json(await while_connected(request, _whole(work)))
        finally:
            _end(work)

    def _work(self, given: Mapping[str, Any], kind: str, client: str) -> _Work:
        name = given.get("model")
        if not isinstance(name, str):
            raise FieldError("model", "`model` must be the name of a model")
        model = self._model(name)
        fields = read_fields(given, kind, model.vocabulary)
        prompts = [_chat_prompt(model, given)] if kind == CHAT else _prompts(model, given)
        default = self._limits.tokens if kind == CHAT else DEFAULT_TEXT_TOKENS
        most = min(default if fields.most is None else fields.most, self._limits.tokens)
        generations = model.submit([
            TokenRequest(
                tuple(prompt), most, _seeded(fields, i), fields.stops, fields.top, client=client
            )
            for prompt in prompts
            for i in range(fields.choices)
        ])  # fmt: skip
        prefix = "chatcmpl" if kind == CHAT else "cmpl"
        id_ = f"{prefix}-{secrets.token_hex(12)}"
        length = sum(map(len, prompts))
        return _Work(kind, model, fields, generations, length, id_, int(time.time()))


def client_of(request: Request) -> str:
    """Return a name for the client of a request: its key, or its host."""
    key = request.headers.get("authorization") or request.headers.get("x-api-key")
    if key:
        return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    return request.client.host if request.client else ""


def _seeded(fields: GenerationFields, choice: int) -> RequestOptions:
    """Return the options of one choice: each has a seed of its own."""
    return replace(fields.sampling, seed=(fields.sampling.seed + choice) & 0xFFFFFFFF)


def _described(model: ServedLanguage) -> dict[str, Any]:
    return {
        "id": model.name, "object": "model", "created": model.created, "owned_by": "monograph",
        "max_model_len": model.max_length,
    }  # fmt: skip


def _chat_prompt(model: ServedLanguage, given: Mapping[str, Any]) -> list[int]:
    messages = read_messages(given)
    if model.template is None:
        raise invalid(
            f"model {model.name!r} has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json): send the prompt to /v1/completions"
        )
    text = model.template.render(messages)
    if not is_unicode(text):
        raise FieldError("messages", "`messages` must be valid Unicode text")
    return model.tokenizer.encode(text, special=False)


def _prompts(model: ServedLanguage, given: Mapping[str, Any]) -> list[list[int]]:
    prompts = read_prompts(given)
    if any(isinstance(p, str) and not is_unicode(p) for p in prompts):
        raise FieldError("prompt", "`prompt` must be valid Unicode text")
    return [model.tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]


async def _whole(work: _Work) -> dict[str, Any]:
    """Return a whole answer; an error of one choice ends them all."""

    async def one(index: int, generation: Generation) -> _Choice:
        choice = _Choice(index)
        async with aclosing(generation.tokens) as tokens:
            async for token in tokens:
                choice.tokens.append(token)
                choice.finish = token.finish
        return choice

    choices = await asyncio.gather(*[one(i, g) for i, g in enumerate(work.generations)])
    made = sum(len(c.tokens) for c in choices)
    return {
        **_head(work, "chat.completion" if work.kind == CHAT else "text_completion"),
        "choices": [_choice(work, c) for c in choices],
        "usage": _usage(work, made),
    }


def _head(work: _Work, kind: str) -> dict[str, Any]:
    return {"id": work.id, "object": kind, "created": work.created, "model": work.model.name}


def _usage(work: _Work, made: int) -> dict[str, int]:
    given = work.prompt_tokens
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def _choice(work: _Work, choice: _Choice) -> dict[str, Any]:
    found: dict[str, Any] = {"index": choice.index, "finish_reason": choice.finish}
    found["logprobs"] = _logprobs(work, choice.tokens)
    if work.kind == CHAT:
        found["message"] = {"role": "assistant", "content": choice.text, "refusal": None}
    else:
        found["text"] = choice.text
    return found


class _EventStream(StreamingResponse):
    """An answer as server-sent events; its work ends with it, also if it never begins."""

    def __init__(self, work: _Work) -> None:
        super().__init__(_events(work), media_type="text/event-stream")
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _end(self._work)


def _end(work: _Work) -> None:
    for generation in work.generations:
        generation.end()


async def _events(work: _Work) -> AsyncIterator[bytes]:
    """Yield the parts of an answer as server-sent events; an error is the last one."""
    merged: asyncio.Queue[tuple[int, GeneratedToken] | Exception] = asyncio.Queue()

    async def one(index: int, generation: Generation) -> None:
        try:
            async with aclosing(generation.tokens) as tokens:
                async for token in tokens:
                    merged.put_nowait((index, token))
        except Exception as error:
            merged.put_nowait(error)

    kind = "chat.completion.chunk" if work.kind == CHAT else "text_completion"
    head = _head(work, kind) | ({"usage": None} if work.fields.usage else {})
    tasks = [asyncio.create_task(one(i, g)) for i, g in enumerate(work.generations)]
    made, open_ = 0, len(tasks)
    try:
        if work.kind == CHAT:
            for i in range(len(tasks)):
                delta = {"role": "assistant", "content": "", "refusal": None}
                first = {"index": i, "delta": delta, "logprobs": None, "finish_reason": None}
                yield _event(head | {"choices": [first]})
        while open_:
            found = await merged.get()
            if isinstance(found, Exception):
                yield _event(openai_error(as_request_error(found)))
                return
            index, token = found
            made += 1
            open_ -= token.finish is not None
            if token.text or token.finish or work.fields.top is not None:
                yield _event(head | {"choices": [_part(work, index, token)]})
        if work.fields.usage:
            yield _event(head | {"choices": [], "usage": _usage(work, made)})
        yield b"data: [DONE]\n\n"
    finally:
        for task in tasks:
            task.cancel()


def _part(work: _Work, index: int, token: GeneratedToken) -> dict[str, Any]:
    found: dict[str, Any] = {"index": index, "finish_reason": token.finish}
    found["logprobs"] = _logprobs(work, [token])
    if work.kind == CHAT:
        found["delta"] = {"content": token.text} if token.text else {}
    else:
        found["text"] = token.text
    return found


def _event(found: Any) -> bytes:
    return b"data: " + orjson.dumps(found) + b"\n\n"


def _logprobs(work: _Work, tokens: list[GeneratedToken]) -> dict[str, Any] | None:
    """Return the probabilities of tokens in the form of the endpoint; None if none are wanted."""
    if work.fields.top is None:
        return None
    known = [t for t in tokens if t.logprob is not None]
    text = work.model.token_text
    if work.kind == CHAT:
        return {
            "content": [
                _entry(text(t.token), t.logprob)
                | {"top_logprobs": [_entry(text(i), p) for i, p in t.top]}
                for t in known
            ],
            "refusal": None,
        }
    offsets, at = [], 0
    for t in known:
        offsets.append(at)
        at += len(text(t.token))
    return {
        "tokens": [text(t.token) for t in known],
        "token_logprobs": [t.logprob for t in known],
        "top_logprobs": [{text(i): p for i, p in t.top} for t in known],
        "text_offset": offsets,
    }


def _entry(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
