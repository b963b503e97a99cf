"""Many sequences at once on a GPU: rows of one cache, tokens as on the reference."""

from __future__ import annotations

from pathlib import Path

from benchmarks.decoders import build

import monograph
from tests.gpu.against import TARGET


def test_sequences_together_get_the_tokens_of_the_reference(tmp_path: Path) -> None:
    folder = build(tmp_path, "tiny-llama")
    wanted = [([1, 2, 3], {}), ([4, 5], {"temperature": 0.9, "top_k": 9, "seed": 3})]
    with monograph.Engine(folder, "reference", slots=1, max_length=32, stop=()) as engine:
        right = [engine.generate(p, 3, **o).tokens for p, o in wanted]
    with monograph.Engine(folder, TARGET, slots=2, max_length=32, stop=(), buckets=16) as engine:
        streams = [engine.submit(p, 3, **o) for p, o in wanted]
        assert [s.result(300).tokens for s in streams] == right
