"""Chat templates: Jinja texts of a model folder, rendered in a sandbox because nobody vouches
for them. Work, memory and output of a rendering are limited.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from jinja2.exceptions import SecurityError, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from monograph.errors import ModelError
from monograph.serve.failures import RequestError, invalid

FILE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
MOST_TEMPLATE = 1 << 20
"""The largest template, in characters."""
MOST_LINES = 2_000_000
"""The most lines of a template's code that a rendering executes."""
MOST_TEXT = 8 << 20
"""The longest text that a rendering gives or repeats, in characters."""
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class _LimitError(Exception):
    """A rendering that takes too much."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox in which products and powers stay small."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= 1000 and abs(right) <= 64):
            raise SecurityError("a power is too large")
        if operator == "%" and isinstance(left, (str, bytes)):
            raise SecurityError("texts are not formatted by %")
        sized = [x for x in (left, right) if isinstance(x, (str, bytes, list, tuple))]
        if operator in "*+" and sized:
            total = sum(len(x) for x in sized)
            if operator == "*":
                total = len(sized[0]) * max(int(right if sized[0] is left else left), 0)
            if total > MOST_TEXT:
                raise SecurityError("a text is too long")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """The chat template of a language model."""

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        if len(text) > MOST_TEMPLATE:
            raise ModelError("the chat template is too long", given=f"{len(text)} characters")
        sandbox = _Sandbox(trim_blocks=True, lstrip_blocks=True, autoescape=False)
        sandbox.globals = {"raise_exception": _refuse, "range": sandbox.globals["range"],
                           "namespace": sandbox.globals["namespace"]}  # fmt: skip
        sandbox.filters = {n: f for n, f in sandbox.filters.items() if n not in _WITHOUT}
        sandbox.filters["tojson"] = _json
        try:
            self._template = sandbox.from_string(text)
        except (TemplateError, RecursionError, OverflowError) as e:
            raise ModelError(f"the chat template cannot be read: {e}") from None
        self._tokens = dict(tokens)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt for messages, up to where the answer begins."""
        found: list[str] = []
        failed: list[BaseException] = []

        def work() -> None:
            sys.settrace(_Budget())
            try:
                parts = self._template.generate(
                    messages=[dict(m) for m in messages], add_generation_prompt=True, **self._tokens
                )
                size = 0
                for part in parts:
                    size += len(part)
                    if size > MOST_TEXT:
                        raise _LimitError
                    found.append(part)
            except BaseException as e:
                failed.append(e)
            finally:
                sys.settrace(None)

        # A thread of its own: tracing slows down every line of the thread that it counts.
        thread = threading.Thread(target=work, name="chat template")
        thread.start()
        thread.join()
        if failed:
            raise _as_request_error(failed[0])
        return "".join(found)


class _Budget:
    """Counts the lines that a thread executes, and stops it after too many."""

    def __init__(self) -> None:
        self._left = MOST_LINES

    def __call__(self, frame: FrameType, event: str, argument: Any) -> _Budget:
        self._left -= 1
        if self._left < 0:
            raise _LimitError
        return self


_WITHOUT = ("format", "pprint", "center", "indent", "wordwrap", "xmlattr", "urlize", "random")
"""Filters that make long texts of short ones, or differ from run to run."""


class _RefusedError(Exception):
    """A template's refusal of messages."""


def _refuse(message: str) -> None:
    raise _RefusedError(str(message)[:500])


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=None if indent is None else min(indent, 8))


def _as_request_error(error: BaseException) -> RequestError:
    if isinstance(error, _RefusedError):
        return invalid(f"the chat template refuses the messages: {error}")
    if isinstance(error, _LimitError):
        return invalid("the chat template takes too much work for these messages")
    kind = "is not safe" if isinstance(error, SecurityError) else "fails"
    return invalid(f"the chat template {kind}: {str(error)[:300]}")


def find_template(folder: Path) -> ChatTemplate | None:
    """Return the chat template of a model folder; None if it has none."""
    config = _config(folder / CONFIG)
    text: Any = config.get("chat_template")
    if (folder / FILE).is_file():
        text = (folder / FILE).read_text("utf-8", "replace")
    if isinstance(text, list):  # several templates by name
        named = {t.get("name"): t.get("template") for t in text if isinstance(t, dict)}
        text = named.get("default")
    if not isinstance(text, str):
        return None
    tokens = {}
    for name in _TOKENS:
        given = config.get(name)
        if isinstance(given, dict):
            given = given.get("content")
        tokens[name] = given if isinstance(given, str) else ""
    return ChatTemplate(text, tokens)


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
