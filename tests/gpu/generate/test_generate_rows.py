"""Rows of a batch that end apart, in one launch on a GPU: each goes on from its own tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.decoders import build

from tests.gpu.generate.test_generate import generator, shape

PROMPTS = [[7, 1, 30], [44, 2]]


@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_a_penalty_counts_no_tokens_that_an_ended_row_was_fed(style: str, tmp_path: Path) -> None:
    build(tmp_path, shape("tiny-llama"), style=style)
    ours, reference = (
        generator(tmp_path, *target, repetition_penalty=1.5) for target in ((), ("reference",))
    )
    whole = reference.generate(PROMPTS, 5)
    stop = next(t for t in whole[1][:2] if t not in whole[0])
    made = ours.generate(PROMPTS, 5, stop=stop, one_launch=True)
    assert made == [whole[0], whole[1][: whole[1].index(stop) + 1]]
    seen = ours.engine._arrays.get(ours.engine.state["seen"])
    for row in (0, 1):
        assert {*seen[row].nonzero()[0].tolist()} <= {*ours.get_sequence(row).tolist()}
