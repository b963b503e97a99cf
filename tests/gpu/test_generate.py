"""Generations on a GPU, interpreted: state stays there, and tokens are the reference's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.decoder_shapes import shape_of
from benchmarks.decoders import build

from monograph import Generator

PROMPT = [3, 14, 15]
TINY = replace(
    shape_of("tiny-llama"), width=32, layers=1, heads=2, groups=1, head_size=16, hidden=32,
    vocab=64, context=16,
)  # fmt: skip
WISHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "top_k": 8, "top_p": 0.9, "repetition_penalty": 1.2},
    "in one launch": {"one_launch": True},
}


@pytest.mark.parametrize("how", WISHES)
def test_tokens_are_those_of_the_reference(how: str, tmp_path: Path) -> None:
    build(tmp_path, TINY)
    options: dict[str, Any] = {"max_length": 8, "stop": (), "buckets": [4]}
    found = Generator(tmp_path, "gpu:interpreter", tune="off", **options)
    expected = Generator(tmp_path, "reference", **options).generate(PROMPT, 4, **WISHES[how])
    assert found.generate(PROMPT, 4, **WISHES[how]) == expected
    assert all(isinstance(x, torch.Tensor) for x in found.engine.state.values())
    # Caches are written in place. The marks of a penalty, a byte a token of the vocabulary, are
    # scattered into a copy.
    marked = found.session.stats["runs"] if "repetition_penalty" in WISHES[how] else 0
    assert found.session.stats["donation_copies"] == marked
    assert found.session.stats["host_steps"] == []
