"""One step of a decoder on a GPU: how many kernels it is, what it gives, what it leaves alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.decoder_shapes import Shape, shape_of
from benchmarks.decoders import build

import monograph
from monograph.generate.engine.runner import StepRunner
from monograph.generate.rewrite.sampling import Sampling
from monograph.ir import Array
from monograph.runtime.gpu.executable import compile_for_gpu
from monograph.runtime.numerics.compare import compare_outputs
from tests.gpu.against import device

TARGET = "gpu" if os.environ.get("MONOGRAPH_TEST_DEVICE") else "gpu:interpreter"
MAXIMUM = 40
FAMILIES = {
    # norm, queries, keys and values; attention; output and residual; norm, gate and up; down and
    # residual
    "tiny-llama": 5,
    "tiny-qwen2": 5,
    # Its norms behind attention and MLP are of whole rows that a product has made: kernels of
    # their own, which add the residual.
    "tiny-gemma2": 7,
    # Products fold the scale of an RMS norm only; LayerNorm is a kernel of its own.
    "tiny-gpt2": 7,
}
FORMATS = ("f32", "f16", "int4", "int4-zp", "int4-f16-zp", "int8", "int8-nbits-zp", "fp8", "fp4")


def small(family: str, layers: int = 1) -> Shape:
    """Return what the interpreter gets through in seconds."""
    groups = 2 if family == "tiny-gpt2" else 1
    return replace(
        shape_of(family), layers=layers, width=32, heads=2, groups=groups, head_size=16, hidden=64,
        vocab=64, context=64,
    )  # fmt: skip


def engine_of(folder: Path, target: str, batch: int) -> StepRunner:
    generator = monograph.Generator(
        folder,
        target,
        max_length=MAXIMUM,
        stop=(),
        logits=True,
        cache_dir="",
        tune="off" if target.startswith("gpu") else None,
    )
    generator.engine.start(batch, Sampling())
    return generator.engine


def some_feeds(engine: StepRunner, batch: int) -> dict[str, Array]:
    """A token for every row, each at a position of its own, with a past of random numbers."""
    rng = np.random.default_rng(batch)
    feeds: dict[str, Any] = {
        "tokens": rng.integers(0, engine.decoder.vocabulary, (batch, 1)),
        "position": np.linspace(23, MAXIMUM - 1, batch).astype(np.int64),
        "count": np.ones(batch, np.int64),
    }
    for name, state in engine.state.items():
        feeds[name] = rng.standard_normal(state.shape).astype(engine._arrays.get(state).dtype)
    return feeds


def run(engine: StepRunner, feeds: dict[str, Array]) -> dict[str, Array]:
    """A step on state where the target wants it: it is updated in place."""
    given = {n: engine._arrays.put(x) for n, x in feeds.items()}
    places = {new: given[old] for new, old in engine.step.donate.items()}
    made = engine.session.run(given, out=places)
    names = [p.name for p in engine.session.outputs]
    return {n: np.asarray(engine._arrays.get(x)) for n, x in zip(names, made, strict=True)}


def check(folder: Path, batch: int) -> None:
    """A step against the reference: the logits, the new rows, and all that is not to change."""
    engine, right = (engine_of(folder, t, batch) for t in (TARGET, "reference"))
    feeds = some_feeds(engine, batch)
    made, expected = run(engine, feeds), run(right, feeds)
    tolerances = right.session.tolerances(feeds, reference=True)
    floats = {name for name, array in expected.items() if array.dtype.kind == "f"}
    left, right_ = ({n: side[n] for n in floats} for side in (made, expected))
    assert not [d for d in compare_outputs(left, right_, tolerances) if not d.ok]
    np.testing.assert_array_equal(made["next"][:, 0], made["next_logits"].argmax(1))
    np.testing.assert_array_equal(made["next_position"], feeds["position"] + 1)
    old = np.arange(MAXIMUM)[None] != feeds["position"][:, None]
    for new, past in engine.step.donate.items():
        before, after = (x.swapaxes(1, 2) for x in (feeds[past], made[new]))
        np.testing.assert_array_equal(after[old], before[old])
        assert (after[~old] != before[~old]).any(axis=(1, 2)).all(), new
    assert engine.session.stats["donation_copies"] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str, tmp_path: Path) -> None:
    check(build(tmp_path, small(family)), 1)


@pytest.mark.parametrize("form", FORMATS[1:])
def test_formats(form: str, tmp_path: Path) -> None:
    check(build(tmp_path, small("tiny-llama"), form), 1)


@pytest.mark.parametrize(("form", "batch"), [("f32", 2), ("f32", 8), ("int4-f16-zp", 8)])
def test_batches(form: str, batch: int, tmp_path: Path) -> None:
    check(build(tmp_path, small("tiny-llama"), form), batch)


def kernels(folder: Path, batch: int) -> int:
    engine = engine_of(folder, TARGET, batch)
    graph = engine.session.optimised_graph(some_feeds(engine, batch))
    return len(list(compile_for_gpu(graph, device().arch).every))


@pytest.mark.parametrize(
    ("family", "form", "batch"),
    [
        *((family, "f16", batch) for family in FAMILIES for batch in (1, 8)),
        *(("tiny-llama", form, 1) for form in FORMATS if form != "f16"),
        ("tiny-qwen2", "int4-f16-zp", 2),
    ],
)
def test_kernels_of_a_layer(family: str, form: str, batch: int, tmp_path: Path) -> None:
    """One layer more adds the same kernels to a step, whatever its weights and number of rows."""
    one, two = (kernels(build(tmp_path / str(n), small(family, n), form), batch) for n in (1, 2))
    assert two - one == FAMILIES[family]
    assert one - FAMILIES[family] <= 9, "beside its layers a step has become more"
