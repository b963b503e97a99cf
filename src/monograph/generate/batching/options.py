"""The options of one sequence: sampling, penalties, what ends it."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monograph.errors import ConfigError
from monograph.generate.rewrite.sampling import Sampling

MOST_LOGPROBS = 100
_LARGEST = 1e30


@dataclass(frozen=True)
class RequestOptions:
    """The sampling of one sequence; every field is data of a step, not a shape.

    Without a temperature the most likely token is taken. Penalties of presence and frequency count
    the generated tokens, the repetition penalty those of the prompt too.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    logprobs: int | None = None
    """The number of most likely tokens to report beside each token; None reports nothing."""

    def __post_init__(self) -> None:
        own = (self.temperature, self.top_k, self.top_p, self.repetition_penalty, self.seed)
        checked = Sampling(*own)
        for name in ("temperature", "top_k", "top_p", "repetition_penalty", "seed"):
            object.__setattr__(self, name, getattr(checked, name))
        self._check("min_p", 0.0, 1.0)
        for name in ("presence_penalty", "frequency_penalty"):
            self._check(name, -_LARGEST, _LARGEST)
        if self.logprobs is not None:
            count = _integer(self.logprobs)
            if count is None or not 0 <= count <= MOST_LOGPROBS:
                raise ConfigError(
                    "`logprobs` must be a count",
                    expected=f"an integer in 0..{MOST_LOGPROBS}",
                    given=repr(self.logprobs),
                )
            object.__setattr__(self, "logprobs", count)
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    def _check(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        if not _is_number(value) or not least <= value <= most:
            raise ConfigError(
                f"`{name}` is out of range", expected=f"{least:g}..{most:g}", given=repr(value)
            )
        object.__setattr__(self, name, float(value))

    def check_vocabulary(self, vocabulary: int) -> None:
        """Raise an error for biases of tokens that the vocabulary does not have."""
        if bad := [t for t in self.logit_bias if not 0 <= t < vocabulary]:
            raise ConfigError(
                "`logit_bias` names tokens out of range",
                expected=f"0..{vocabulary - 1}",
                given=bad[:8],
            )

    @property
    def drawn(self) -> bool:
        """True if tokens are drawn, not the most likely ones."""
        own = (self.temperature, self.top_k, self.top_p, self.repetition_penalty, self.seed)
        return Sampling(*own).shape.drawn

    @property
    def limited(self) -> bool:
        """True if only the most likely tokens are drawn from."""
        return self.drawn and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)

    @property
    def adjusted(self) -> bool:
        """True if logits change before a token is chosen."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or bool(self.logit_bias)
        )


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float, np.integer, np.floating))
    return number and not isinstance(value, bool) and math.isfinite(value)


def _integer(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _biases(given: Any) -> dict[int, float]:
    """Return biases by token id."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            "`logit_bias` must map token ids to numbers",
            expected="{42: -5.0}",
            given=repr(given)[:80],
        )
    found = {}
    for token, bias in given.items():
        number = _integer(token)
        if number is None or not _is_number(bias) or abs(bias) > _LARGEST:
            raise ConfigError(
                "`logit_bias` must map token ids to numbers",
                expected="{42: -5.0}",
                given=repr({token: bias})[:80],
            )
        found[number] = float(bias)
    return found
