"""Text in and out through the `tokenizers` library, which is an extra of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monograph.errors import ConfigError, ModelError

INSTALL = "pip install 'monograph[llm]', or give token ids"
_HELD = "\ufffd"
"""What stands for bytes that are no whole character yet."""


class Text:
    """The tokenizer of a decoder."""

    def __init__(self, path: Path | None, model: Path) -> None:
        if path is None:
            raise ConfigError(
                "text needs a tokenizer, and the decoder has none",
                expected="tokenizer.json beside it",
                given=str(model.parent),
                hint="give token ids",
            )
        try:
            import tokenizers
        except ImportError:
            raise ConfigError(
                "text needs the tokenizers package, which is not installed", hint=INSTALL
            ) from None
        try:
            self._made: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as e:  # the library raises plain exceptions
            raise ModelError(f"the tokenizer cannot be read: {e}", given=str(path)) from e

    def encode(self, text: str) -> list[int]:
        return list(self._made.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._made.decode(list(tokens)))

    def token(self, text: str) -> int | None:
        """The id of a token, by its text; None where the vocabulary has none."""
        found: int | None = self._made.token_to_id(text)
        return found


class TextStream:
    """Text that comes token by token: characters of several tokens are held until complete."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._tokens: list[int] = []
        self._shown = 0

    def put(self, token: int) -> str:
        """The text that a token adds."""
        self._tokens.append(token)
        whole = self._text.decode(self._tokens)
        if whole.endswith(_HELD):
            return ""
        return self._new(whole)

    def end(self) -> str:
        """What was held back."""
        return self._new(self._text.decode(self._tokens))

    def _new(self, whole: str) -> str:
        new, self._shown = whole[self._shown :], len(whole)
        return new
