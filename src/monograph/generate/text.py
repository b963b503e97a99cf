"""Text and tokens by the `tokenizers` library, which is an optional dependency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monograph.errors import ConfigError, FeedError, ModelError

INSTALL = "pip install 'monograph[llm]'"
IDS = "give token ids"
_HELD = "\ufffd"
"""The character for bytes that are no complete character yet."""
_PIECES = 4
"""A token is decoded together with the tokens of this many pieces of text before it."""


class Text:
    """The tokenizer of a decoder.

    instead: what a caller can do without one, for errors.
    """

    def __init__(self, path: Path | None, model: Path, instead: str = IDS) -> None:
        if path is None:
            raise ConfigError(
                "text needs a tokenizer, and the decoder has none",
                expected="tokenizer.json beside it",
                given=str(model.parent),
                hint=f"{instead}, or put a tokenizer.json there",
            )
        try:
            import tokenizers
        except ImportError:
            raise ConfigError(
                "text needs the tokenizers package, which is not installed",
                hint=f"{INSTALL}, or {instead}",
            ) from None
        try:
            self._made: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as e:  # the library raises plain exceptions
            raise ModelError(f"the tokenizer cannot be read: {e}", given=str(path)) from e

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return the tokens of a text; `special` adds those that begin or end every text."""
        if not is_unicode(text):
            raise FeedError("a prompt must be valid UTF-8 text", given=ascii(text)[:80])
        return list(self._made.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._made.decode(list(tokens)))

    def token(self, text: str) -> int | None:
        """Return the id of a token by its text; None if no single token has that text.

        A vocabulary may spell texts in its own way (a space as another character): then the
        encoding of the text counts.
        """
        if not is_unicode(text):
            return None
        found: int | None = self._made.token_to_id(text)
        if found is not None:
            return found
        ids = list(self._made.encode(text, add_special_tokens=False).ids)
        return ids[0] if len(ids) == 1 and self.decode(ids).strip() == text.strip() else None


def is_unicode(text: str) -> bool:
    """Return True if text has no lone surrogates, which Python makes of invalid bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class TextStream:
    """Text token by token: characters that span several tokens are held until complete.

    A token's text depends on the tokens shortly before it (spaces, bytes of one character): each is
    decoded after the tokens of a few pieces, not after all.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._tokens: list[int] = []
        """The tokens of the last pieces, and the held ones."""
        self._ends: list[int] = []
        """The ends of pieces among them: no character is incomplete there."""
        self._before = ""
        """The text of these tokens that was returned."""

    def put(self, token: int) -> str:
        """Return the text that a token adds."""
        self._tokens.append(token)
        whole = self._text.decode(self._tokens)
        return "" if whole.endswith(_HELD) else self._shown(whole)

    def end(self) -> str:
        """Return the text that was held."""
        return self._shown(self._text.decode(self._tokens))

    def _shown(self, whole: str) -> str:
        """Return the new part of a text, and mark it as returned."""
        new, self._before = whole[len(self._before) :], whole
        if not new:
            return ""
        self._ends.append(len(self._tokens))
        if len(self._ends) > _PIECES:
            first = self._ends[0]
            self._tokens, self._ends = self._tokens[first:], [e - first for e in self._ends[1:]]
            self._before = self._text.decode(self._tokens)
        return new


class StopFilter:
    """Text up to the first of some stop texts, which come in pieces.

    What may be the beginning of a stop text is held until the next piece.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.ended = False
        """True after a stop text."""

    def put(self, piece: str) -> str:
        """Return the text that a piece adds."""
        if self.ended:
            return ""
        self._held += piece
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        self.ended = bool(found)
        shown = self._held[: min(found) if found else len(self._held) - self._begun()]
        self._held = self._held[len(shown) :]
        return shown

    def end(self) -> str:
        """Return the text that was held."""
        return "" if self.ended else self._held

    def _begun(self) -> int:
        """Return how many characters at the end may be the beginning of a stop text."""
        parts = (stop[:n] for stop in self._stops for n in range(1, len(stop)))
        return max((len(part) for part in parts if self._held.endswith(part)), default=0)


def until_stop(text: str, stops: Sequence[str]) -> str:
    """Return a text up to the first of some stop texts."""
    stream = StopFilter(stops)
    return stream.put(text) + stream.end()
