"""Sampling as nodes of the step: logits do not leave the device."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from monograph.errors import ConfigError

if TYPE_CHECKING:
    from monograph.generate.rewrite.surgery import Surgery

SEEN, NOW_SEEN = "seen", "now_seen"
_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_COLDEST = 1e-30
"""A lower temperature takes the most likely token: logits divided by it would not be finite."""


@dataclass(frozen=True)
class Sampling:
    """The sampling of a caller; all fields but `top_k` are data of a step."""

    temperature: float = 0.0
    """0 takes the most likely token; more makes others likelier."""
    top_k: int = 0
    """The number of most likely tokens to sample from; 0 for all."""
    top_p: float = 1.0
    """The share of the probability of the tokens to sample from."""
    repetition_penalty: float = 1.0
    """A value above 1 makes tokens that occurred before less likely."""
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("temperature", 0.0, _MOST, f"a number in 0..{_MOST:.3g}")
        self._check("top_p", 0.0, 1.0, "a number in 0..1")
        self._check("repetition_penalty", 0.0, _MOST, f"a number in {_LEAST:.3g}..{_MOST:.3g}")
        if self.repetition_penalty < _LEAST:
            given = self.repetition_penalty
            raise ConfigError("`repetition_penalty` must be a factor", expected="> 0", given=given)
        for name in ("top_k", "seed"):
            self._check_count(name)

    def _check(self, name: str, least: float, most: float, expected: str) -> None:
        """Check that a number of any type is in range: steps have it as f32."""
        value = getattr(self, name)
        number = isinstance(value, (int, float, np.integer, np.floating))
        if not number or isinstance(value, bool) or not least <= value <= most:
            raise ConfigError(f"`{name}` is out of range", expected=expected, given=repr(value))
        object.__setattr__(self, name, float(value))

    def _check_count(self, name: str) -> None:
        """Check that a value is an integer of any type, not negative."""
        value = getattr(self, name)
        try:
            number = -1 if isinstance(value, (bool, np.bool_)) else operator.index(value)
        except TypeError:
            number = -1
        if number < 0:
            raise ConfigError(
                f"`{name}` must be a count", expected="an integer >= 0", given=repr(value)
            )
        object.__setattr__(self, name, number)

    @property
    def shape(self) -> SamplerShape:
        """The part of the sampling that decides the graph."""
        drawn = self.temperature >= _COLDEST and self.top_k != 1
        return SamplerShape(
            drawn,
            self.top_k if drawn else 0,
            drawn and self.top_p < 1.0,
            self.repetition_penalty != 1.0,
        )

    def data(self) -> dict[str, Any]:
        """Return the part of the sampling that is data of a step, by input name."""
        found: dict[str, Any] = {}
        if self.shape.drawn:
            found |= {"seed": self.seed & 0xFFFFFFFF, "temperature": self.temperature}
        if self.shape.nucleus:
            found["top_p"] = self.top_p
        if self.shape.penalised:
            found["penalty"] = self.repetition_penalty
        return found


@dataclass(frozen=True)
class SamplerShape:
    """The facts that decide the sampling nodes."""

    drawn: bool = False
    top_k: int = 0
    nucleus: bool = False
    penalised: bool = False


def add_sampling(
    s: Surgery, shape: SamplerShape, logits: str, position: str, vocabulary: int
) -> str:
    """Add nodes that choose a token from logits [batch, vocabulary]; return its name."""
    if shape.penalised:
        (logits,) = s.add_last("Penalise", [logits, NOW_SEEN, "penalty"])
    if not shape.drawn:
        return s.add_last("Greedy", [logits])[0]
    drawn = [logits, position, "seed", "temperature"]
    if not shape.top_k and not shape.nucleus:
        return s.add_last("Draw", drawn)[0]
    drawn.append(s.constant([min(shape.top_k, vocabulary) or vocabulary]))
    if not shape.nucleus:
        return s.add_last("DrawTop", drawn)[0]
    return s.add_last("DrawNucleus", [*drawn, "top_p"])[0]
