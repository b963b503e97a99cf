"""Steps of real exports whose answers were recorded with ONNX Runtime: a prompt, then a token.

Tolerances are those that `runtime.numerics.tolerance` derives from the step. Where a file grants
8-bit left operands to its products (accuracy_level 4), what that is worth is part of them; ONNX
Runtime makes use of it for every element, and so the mean square is held to what one such product
loses, 2^-8, times the square root of the 13 products behind each other.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monograph import Generator, Session, load
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
    export = load(folder / "model.onnx", target="reference")
    g = Generator(folder, target, max_length=64, stop=(), logits=True)
    g.append_tokens(first["in:input_ids"])
    check(g, name, export, first, 0)
    g.append_tokens(second["in:input_ids"])
    check(g, name, export, second, 7)
    assert target == "reference" or g.session.stats["donation_copies"] == 0


def check(g: Generator, name: str, export: Session, recorded: dict[str, Any], known: int) -> None:
    """Compare logits and caches after a step with recorded ones, from position `known` on.

    The positions before it are inputs of the recorded step. Tolerances are those of the export,
    which computes all other positions at once; the generator may take several steps for them.
    """
    caches = {c.present: np.asarray(g.engine.state[c.past]) for c in g.engine.decoder.caches}
    given = {n: recorded[f"out:{n}"].copy() for n in [*caches, "logits"]}
    for n, x in caches.items():
        given[n][:, :, known:] = x[:, :, known : given[n].shape[2]]
    given["logits"][:, -1] = g.get_logits()
    expected = {n: recorded[f"out:{n}"] for n in given}
    feeds = {n.removeprefix("in:"): x for n, x in recorded.items() if n.startswith("in:")}
    check_recorded(name, given, expected, export.tolerances(feeds), ())
    for n, x in caches.items():
        new = slice(known, given[n].shape[2])
        assert _mean_square(x[:, :, new], expected[n][:, :, new]) <= MEAN_SQUARE[name], n
        assert not x[:, :, 16:].any(), "rows were written that no bucket reaches"
    last = expected["logits"][:, -1]
    assert _mean_square(g.get_logits(), last) <= MEAN_SQUARE[name]


def _mean_square(given: np.ndarray, expected: np.ndarray) -> float:
    """Return the root of the mean square difference, relative to the largest element."""
    return float(np.sqrt(np.mean((given - expected) ** 2)) / np.abs(expected).max())


def check_recorded(
    name: str,
    given: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    tolerances: Any,
    caches: Collection[str],
) -> None:
    """Compare outputs with recorded ones; caches are longer than what was recorded of them."""
    whole = {n: _whole(given[n], x) if n in caches else x for n, x in expected.items()}
    differences = compare_outputs(given, whole, tolerances)
    assert all(d.ok for d in differences), "\n".join(map(str, differences))
    for n, x in expected.items():
        part = given[n][:, :, : x.shape[2]] if n in caches else given[n]
        assert _mean_square(part, x) <= MEAN_SQUARE[name], n


def _whole(cache: np.ndarray, recorded: np.ndarray) -> np.ndarray:
    """Return a cache of full length whose first positions are the recorded ones.

    The measured spread of an output has its whole shape, so the comparison needs it too.
    """
    whole = cache.copy()
    whole[:, :, : recorded.shape[2]] = recorded
    return whole
