"""Sampling from logits on the host: one step of a decoder serves all requests.

A draw depends on the seed of the request and the position of the token only, so that a broken
stream can be continued elsewhere with the same tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from monograph.ir import Array


@dataclass(frozen=True)
class TokenSampling:
    """The sampling of one request."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    @property
    def plain(self) -> bool:
        """True if the most likely token is taken as it is."""
        neutral = self.repetition_penalty == 1 and not self.logit_bias
        return self.temperature == 0 and neutral and not self.penalised

    @property
    def penalised(self) -> bool:
        """True if generated tokens become less likely."""
        return bool(self.frequency_penalty or self.presence_penalty)


def choose_token(
    logits: Array, sampling: TokenSampling, prompt: Sequence[int], generated: Sequence[int]
) -> int:
    """Return the next token."""
    scores = adjusted(logits.astype(np.float64), sampling, prompt, generated)
    if sampling.temperature == 0:
        return int(scores.argmax())
    scores /= sampling.temperature
    order = _candidates(scores, sampling)
    weights = np.exp(scores[order] - scores[order[0]])
    total = np.cumsum(weights)
    if sampling.top_p < 1:
        # The fewest tokens that reach the share; always one.
        whole = total[-1] if len(order) == len(scores) else _mass(scores, scores[order[0]])
        kept = int(np.searchsorted(total, sampling.top_p * whole)) + 1
        total = total[:kept]
    draw = np.random.Generator(
        np.random.Philox(key=sampling.seed, counter=len(prompt) + len(generated))
    ).random()
    place = int(np.searchsorted(total, draw * total[-1], side="right"))
    return int(order[min(place, len(total) - 1)])


def adjusted(
    scores: Array, sampling: TokenSampling, prompt: Sequence[int], generated: Sequence[int]
) -> Array:
    """Return the logits after penalties and biases."""
    if sampling.repetition_penalty != 1:
        seen = np.unique(np.array([*prompt, *generated], np.int64))
        before = scores[seen]
        factor = sampling.repetition_penalty
        scores[seen] = np.where(before > 0, before / factor, before * factor)
    if sampling.penalised and generated:
        counts = Counter(generated)
        tokens = np.fromiter(counts, np.int64, len(counts))
        times = np.fromiter(counts.values(), np.float64, len(counts))
        scores[tokens] -= sampling.frequency_penalty * times + sampling.presence_penalty
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    return scores


def _candidates(scores: Array, sampling: TokenSampling) -> Array:
    """Return the tokens to draw from, the likeliest first; equal ones by their number."""
    if sampling.top_k and sampling.top_k < len(scores):
        likely = np.argpartition(-scores, sampling.top_k - 1)[: sampling.top_k]
    else:
        likely = np.arange(len(scores))
    return likely[np.lexsort((likely, -scores[likely]))]


def _mass(scores: Array, largest: float) -> float:
    return float(np.exp(scores - largest).sum())


def log_probabilities(logits: Array) -> Array:
    """Return the logarithms of the probabilities that the model gives."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return wide
