"""What the decoder said behind each row of a batch, for callers who asked to see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from monograph.errors import ConfigError
from monograph.ir import Array


class Logits:
    """By rows: the logits of the run that came to the row's end, None where none did."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._rows: list[Any] = []

    def forget(self, batch: int) -> None:
        """Nothing is known of any row."""
        self._rows = [None] * batch

    def drop(self, row: int) -> None:
        """What is known of a row a token was chosen by, or was told of: another is to come."""
        self._rows[row] = None

    def keep(self, made: Any, rows: Iterable[int]) -> None:
        """The logits of a run that came to the end of some rows."""
        for row in rows:
            self._rows[row] = made

    def has(self, row: int) -> bool:
        """Whether the logits behind the last token of a row are known."""
        return self._rows[row] is not None

    def check(self) -> None:
        """Refuses to read what a step does not give."""
        if not self._wanted:
            raise ConfigError(
                "the logits were not asked for", hint="make the Generator with logits=True"
            )

    def read(self, get: Callable[[Any], Array], vocabulary: int) -> Array:
        """The logits behind each row, [batch, vocabulary]; NaN where they are not known."""
        found = np.full((len(self._rows), vocabulary), np.nan, np.float32)
        for row, made in enumerate(self._rows):
            if made is not None:
                found[row] = get(made)[row]
        return found
