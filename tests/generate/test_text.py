"""Text that comes token by token is the text of all tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from monograph.generate.text import StopFilter, Text, TextStream, until_stop


class _Bytes(Text):
    """A tokenizer of bytes: characters may take several tokens, and 256 is no text at all."""

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, tokens: Sequence[int]) -> str:
        self.decoded += len(tokens)
        return bytes(t for t in tokens if t < 256).decode("utf-8", errors="replace")


class _Words(_Bytes):
    """A tokenizer of words: spaces lie between them, not in front."""

    def decode(self, tokens: Sequence[int]) -> str:
        self.decoded += len(tokens)
        return " ".join(f"w{t}" for t in tokens if t != 256)


class _Runs(_Bytes):
    """Bytes as sentencepiece falls back to them: a run is text as a whole or not at all."""

    def decode(self, tokens: Sequence[int]) -> str:
        self.decoded += len(tokens)
        run = bytes(t for t in tokens if t < 256)
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)


TEXT = "Zwölf große Boxkämpfer 你好世界 🙂🙃 end\u00e9"


@pytest.mark.parametrize("kind", [_Bytes, _Words, _Runs])
def test_pieces_are_the_text_of_all_tokens(kind: type[_Bytes]) -> None:
    tokens = [*TEXT.encode()]
    for place in (40, 9, 3):
        tokens.insert(place, 256)
    text = kind()
    stream = TextStream(text)
    pieces = [stream.put(t) for t in tokens]
    whole = kind().decode(tokens) if kind is _Words else TEXT
    assert "".join(pieces) + stream.end() == whole
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_character_come_in_the_end() -> None:
    stream = TextStream(_Bytes())
    assert [stream.put(t) for t in (*b"ab", 0xE4, 0xBD)] == ["a", "b", "", ""]
    assert stream.end() == "\ufffd"
    assert stream.end() == ""


def test_a_token_is_decoded_behind_a_few_others_not_all() -> None:
    tokens = np.random.default_rng(0).integers(97, 122, 500).tolist()
    text = _Bytes()
    stream = TextStream(text)
    assert "".join(stream.put(t) for t in tokens) == bytes(tokens).decode()
    assert text.decoded <= 12 * len(tokens)


@pytest.mark.parametrize(
    ("pieces", "shown", "rest"),
    [
        (["ab", "cd"], ["ab", "cd"], ""),
        (["a#", "#b"], ["a", ""], ""),
        (["a#", "b"], ["a", "#b"], ""),
        (["a###"], ["a"], ""),
        (["#"], [""], "#"),
        (["x", "EN", "D", "more"], ["x", "", "", ""], ""),
        (["E#", "#"], ["E", ""], ""),
        (["EENDE"], ["E"], ""),
    ],
)
def test_text_up_to_a_stop_text(pieces: list[str], shown: list[str], rest: str) -> None:
    stream = StopFilter(["##", "END"])
    assert [stream.put(piece) for piece in pieces] == shown
    assert stream.end() == rest
    assert until_stop("".join(pieces), ["##", "END"]) == "".join(shown) + rest
