"""Steps of real exports whose answers were recorded with ONNX Runtime: a prompt, then a token.

Tolerances are those that `runtime.numerics.tolerance` derives from the step. Where a file grants
8-bit left operands to its products (accuracy_level 4), what that is worth is part of them; ONNX
Runtime makes use of it for every element, and so the mean square is held to what one such product
loses, 2^-8, times the square root of the 13 products behind each other.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monograph import Generator
from monograph.runtime.numerics.compare import compare_outputs

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
MEAN_SQUARE = {"genai_llama_fp32": 2.0**-20, "genai_llama_int4": 2.0**-8 * math.sqrt(13)}


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", MEAN_SQUARE)
def test_recorded_steps(name: str, target: str) -> None:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"no {name} in ../shared/models beside the repository")
    first, second = (dict(np.load(folder / f)) for f in ("io.npz", "io2.npz"))
    g = Generator(folder, target, max_length=64, stop=(), logits=True)
    g.append_tokens(first["in:input_ids"])
    check(g, name, first, 7)
    g.append_tokens(second["in:input_ids"])
    check(g, name, second, 8)
    assert target == "reference" or g.session.stats["donation_copies"] == 0


def check(g: Generator, name: str, recorded: dict[str, Any], filled: int) -> None:
    """Logits and caches behind a step against those that were recorded."""
    caches = {c.present: g.engine.state[c.past] for c in g.engine.decoder.caches}
    given = {n: x[:, :, :filled] for n, x in caches.items()} | {"logits": g.get_logits()}
    expected = {n: recorded[f"out:{n}"] for n in caches}
    expected["logits"] = recorded["out:logits"][:, -1]
    derived = g.session.tolerances(g.engine.last_feeds)
    tolerances = {n: derived["next_logits" if n == "logits" else n] for n in expected}
    differences = compare_outputs(given, expected, tolerances)
    assert all(d.ok for d in differences), "\n".join(map(str, differences))
    for n, x in expected.items():
        mean = np.sqrt(np.mean((given[n] - x) ** 2)) / np.abs(x).max()
        assert mean <= MEAN_SQUARE[name], n
    for x in caches.values():
        assert not x[:, :, 16:].any(), "rows were written that no bucket reaches"
