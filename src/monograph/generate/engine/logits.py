"""The logits after each row of a batch, for callers that request them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from monograph.errors import ConfigError
from monograph.ir import Array


class Logits:
    """The logits of each row, from the run that reached its end; None if there is none."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._rows: list[Any] = []

    def forget(self, batch: int) -> None:
        """Drop the logits of all rows."""
        self._rows = [None] * batch

    def drop(self, row: int) -> None:
        """Drop the logits of a row, whose next token has been chosen."""
        self._rows[row] = None

    def keep(self, made: Any, rows: Iterable[int]) -> None:
        """Keep the logits of a run that reached the end of some rows."""
        for row in rows:
            self._rows[row] = made

    def has(self, row: int) -> bool:
        """Return True if the logits after the last token of a row are known."""
        return self._rows[row] is not None

    def check(self) -> None:
        """Raise an error if the step does not return logits."""
        if not self._wanted:
            raise ConfigError(
                "logits are not available", hint="make the Generator with logits=True"
            )

    def read(self, get: Callable[[Any], Array], vocabulary: int) -> Array:
        """Return the logits after each row, [batch, vocabulary]; NaN where they are unknown."""
        found = np.full((len(self._rows), vocabulary), np.nan, np.float32)
        for row, made in enumerate(self._rows):
            if made is not None:
                found[row] = get(made)[row]
        return found
