"""Chooses a token for each row of logits, by options of each row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from monograph.config import Config
from monograph.generate.batching.options import RequestOptions
from monograph.generate.check import RewrittenSource
from monograph.generate.engine.arrays import Arrays, HostArrays
from monograph.generate.rewrite.row_sampling import (
    ADJUSTED,
    CHOSEN,
    DRAWN,
    LIMITED,
    ROW_LOGITS,
    RowSamplerKind,
    build_row_sampler,
)
from monograph.ir import Array
from monograph.session import Session

UNLIMITED = 2.0
"""A share of the probability that no rounding of a sum reaches."""
_LEAST = float(np.finfo(np.float32).tiny)


class SampledRow(Protocol):
    """A sequence as the sampler sees it."""

    options: RequestOptions

    @property
    def length(self) -> int:
        """The tokens before the one to choose."""

    @property
    def seen(self) -> Array:
        """1 for each token of the sequence, u8[vocabulary]."""

    @property
    def bias(self) -> Array:
        """The numbers added to logits, f32[vocabulary]."""


class _NoTokens:
    """An empty sequence."""

    length = 0

    def __init__(self, options: RequestOptions, vocabulary: int) -> None:
        self.options = options
        self.seen: Array = np.zeros(vocabulary, np.uint8)
        self.bias: Array = np.zeros(vocabulary, np.float32)


class RowSampler:
    """Samplers by kind, each a small session on the target of the decoder."""

    def __init__(self, config: Config, arrays: Arrays, vocabulary: int, directory: Path) -> None:
        self._config, self._arrays = config, arrays
        self._vocabulary, self._directory = vocabulary, directory
        self._sessions: dict[RowSamplerKind, Session] = {}

    def choose(self, logits: Any, rows: Sequence[SampledRow | None]) -> list[int]:
        """Return a token for each row; that of a row without a sequence means nothing."""
        options = [r.options for r in rows if r is not None]
        kind = RowSamplerKind(
            any(o.drawn for o in options),
            any(o.limited for o in options),
            any(o.adjusted for o in options),
        )
        if kind == RowSamplerKind() and isinstance(self._arrays, HostArrays):
            return [int(t) for t in np.argmax(logits, 1)]
        session = self._session(kind)
        feeds = {ROW_LOGITS: logits}
        feeds |= {n: self._arrays.put(x) for n, x in self._data(kind, rows).items()}
        made = dict(zip((p.name for p in session.outputs), session.run(feeds), strict=True))
        return [int(t) for t in self._arrays.get(made[CHOSEN])]

    def warm_up(self, logits: Any) -> None:
        """Compile the samplers of all kinds for this many rows."""
        for drawn, limited, adjusted in product((True, False), repeat=3):
            if drawn or not limited:
                chosen = RequestOptions(
                    temperature=float(drawn),
                    top_p=0.5 if limited else 1.0,
                    frequency_penalty=float(adjusted),
                )
                first = _NoTokens(chosen, self._vocabulary)
                self.choose(logits, [first, *[None] * (len(logits) - 1)])

    def _session(self, kind: RowSamplerKind) -> Session:
        if kind not in self._sessions:
            model = build_row_sampler(kind, self._vocabulary)
            source = RewrittenSource(model, self._directory)
            self._sessions[kind] = Session(source, self._config, {}, {}, None)
        return self._sessions[kind]

    def _data(self, kind: RowSamplerKind, rows: Sequence[SampledRow | None]) -> dict[str, Array]:
        names = [*(DRAWN if kind.drawn else ()), *(LIMITED if kind.limited else ())]
        made = [_numbers(r, self._vocabulary) for r in rows]
        found = {n: np.array([row[n] for row in made], _KINDS[n]) for n in names}
        if kind.adjusted:
            found |= self._adjusting(rows)
        return found

    def _adjusting(self, rows: Sequence[SampledRow | None]) -> dict[str, Array]:
        seen = np.zeros((len(rows), self._vocabulary), np.uint8)
        bias = np.zeros((len(rows), self._vocabulary), np.float32)
        penalty = np.ones(len(rows), np.float32)
        for b, row in enumerate(rows):
            if row is not None and row.options.adjusted:
                penalty[b] = row.options.repetition_penalty
                bias[b] = row.bias
                if penalty[b] != 1:
                    seen[b] = row.seen
        return dict(zip(ADJUSTED, (seen, penalty, bias), strict=True))


_KINDS: dict[str, Any] = {
    "position": np.int64,
    "seed": np.int64,
    "temperature": np.float32,
    "top_k": np.int64,
    "top_p": np.float32,
    "min_p": np.float32,
}


def _numbers(row: SampledRow | None, vocabulary: int) -> dict[str, float]:
    """Return a row's data by input; a row that is not drawn has temperature 0."""
    made: dict[str, float] = dict.fromkeys(_KINDS, 0)
    made |= {"top_k": vocabulary, "top_p": UNLIMITED}
    if row is None or not row.options.drawn:
        return made
    o = row.options
    made |= {"position": row.length, "seed": o.seed & 0xFFFFFFFF, "temperature": o.temperature}
    made |= {"top_k": min(o.top_k, vocabulary) or vocabulary, "min_p": o.min_p}
    if o.top_p < 1:
        made["top_p"] = max(o.top_p, _LEAST)  # the most likely token is always kept
    return made
