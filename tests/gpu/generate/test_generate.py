"""Generation on a GPU: the reference's tokens, however runs are launched.

By Triton's interpreter a few tokens of tiny decoders; on a device (MONOGRAPH_TEST_DEVICE=cuda) 256
tokens, captured, launched kernel by kernel, and all in one launch.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.decoder_shapes import Shape, shape_of
from benchmarks.decoders import build

import monograph
from monograph.generate.engine.runner import StepRunner
from monograph.generate.engine.samplers import PipelinedStep
from monograph.generate.rewrite.sampling import Sampling
from monograph.runtime.gpu import target
from tests.generate.test_recorded import MEAN_SQUARE, check_recorded
from tests.gpu.fake_driver import FakeDevice, FakeDriver
from tests.gpu.fake_graphs import FakeGraphs
from tests.gpu.real_models import FOLDERS

ON_DEVICE = bool(os.environ.get("MONOGRAPH_TEST_DEVICE"))
TARGET = "gpu" if ON_DEVICE else "gpu:interpreter"
PROMPT = [7, 1, 30, 44, 2, 61]
COUNT, DISTINCT = (256, 32) if ON_DEVICE else (5, 5)
DEVICE = pytest.mark.skipif(not ON_DEVICE, reason="only a device has graphs")


def shape(family: str) -> Shape:
    """On a device as tests elsewhere have it; else what is interpreted in seconds."""
    if ON_DEVICE:
        return shape_of(family)
    groups = 2 if family == "tiny-gpt2" else 1
    return replace(
        shape_of(family), layers=1, width=32, heads=2, groups=groups, head_size=16, hidden=64,
        vocab=64, context=64,
    )  # fmt: skip


def generator(folder: Path, target: str = TARGET, **options: Any) -> monograph.Generator:
    length = 320 if ON_DEVICE else 16
    return monograph.Generator(
        folder,
        target,
        max_length=length,
        stop=(),
        buckets=[8],
        cache_dir="",
        tune="off" if target.startswith("gpu") else None,
        **options,
    )


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2", "tiny-gpt2"])
def test_greedy_tokens_are_the_references(family: str, tmp_path: Path) -> None:
    build(tmp_path, shape(family))
    expected = generator(tmp_path, "reference").generate(PROMPT, COUNT)
    assert len(set(expected)) >= DISTINCT
    ours = generator(tmp_path)
    assert ours.generate(PROMPT, COUNT) == expected
    assert ours.session.stats["donation_copies"] == 0


def test_one_launch_gives_the_same_tokens(tmp_path: Path) -> None:
    build(tmp_path, shape("tiny-llama"))
    expected = generator(tmp_path, "reference").generate(PROMPT, COUNT)
    ours = generator(tmp_path)
    assert ours.generate(PROMPT, COUNT, one_launch=True) == expected
    timing = ours.engine.timing
    assert timing.decode_launches == 1
    assert timing.decode_runs == COUNT - 1
    assert ours.generate(PROMPT, COUNT, one_launch=True) == expected
    assert ours.engine._loop is not None
    stats = ours.engine._loop[1].stats
    assert stats["donation_copies"] == 0
    if ON_DEVICE:
        assert stats["launches_per_run"] == 1
        assert stats["replays"] == stats["runs"] == 2
        assert stats["fallbacks"] == {}


def test_a_batch_whose_rows_are_unequal(tmp_path: Path) -> None:
    build(tmp_path, shape("tiny-llama"))
    prompts = [PROMPT, PROMPT[:2]]
    expected = generator(tmp_path, "reference").generate(prompts, 3)
    assert generator(tmp_path).generate(prompts, 3) == expected


@pytest.mark.skipif(ON_DEVICE, reason="a device has graphs of its own")
def test_captured_or_not_by_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernel by kernel, replayed from graphs, and all in one launch: every token is the same."""
    build(tmp_path, shape("tiny-llama"))
    right = generator(tmp_path, capture="off").generate(PROMPT, COUNT)
    assert len(set(right)) >= DISTINCT
    for one_launch in (False, True):
        driver = FakeDriver()
        graphs = FakeGraphs(driver, builds=True)
        monkeypatch.setattr(target, "open_device", lambda _, d=driver, g=graphs: FakeDevice(d, g))
        ours = generator(tmp_path, capture="require")
        assert ours.generate(PROMPT, COUNT, one_launch=one_launch) == right
        before = driver.calls["graph launch"]
        assert ours.generate(PROMPT, COUNT, one_launch=one_launch) == right
        assert driver.calls["graph launch"] - before == (2 if one_launch else COUNT)
        stats = ours.session.stats
        assert stats["fallbacks"] == {}
        assert stats["captures"] >= 1


@DEVICE
@pytest.mark.parametrize(
    "form", ["f32", "f16", "int4", "int4-f16-zp", "int8", "fp8-f16", "fp4-f16"]
)
def test_captured_or_not(form: str, tmp_path: Path) -> None:
    """The same kernels on the same numbers: every token is the same, in all formats."""
    build(tmp_path, shape("tiny-llama"), form)
    made = {mode: generator(tmp_path, capture=mode) for mode in ("off", "require")}
    tokens = {mode: g.generate(PROMPT, COUNT) for mode, g in made.items()}
    assert tokens["require"] == tokens["off"]
    assert len(set(tokens["off"])) >= DISTINCT
    stats = made["require"].session.stats
    assert stats["launches_per_run"] == 1
    assert stats["fallbacks"] == {}
    assert stats["donation_copies"] == 0
    assert stats["replays"] >= COUNT - 2


@DEVICE
def test_a_token_does_not_wait_for_the_step_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    build(tmp_path, shape("tiny-llama"))
    ours = generator(tmp_path, capture="require")
    expected = ours.generate(PROMPT, 12)
    stream = ours.stream(PROMPT, 12)
    found = [*islice(stream, 4)]
    begin = StepRunner._begin

    def slowly(engine: StepRunner, tokens: Any, position: Any) -> PipelinedStep:
        torch.cuda._sleep(1_000_000_000)  # half a second in front of the step
        return begin(engine, tokens, position)

    with monkeypatch.context() as patch:
        patch.setattr(StepRunner, "_begin", slowly)
        found.append(next(stream))
        step = ours.engine._ahead
    assert step is not None
    assert not step.pending.done()
    assert [*found, *stream] == expected
    # Twice the prompt and eleven steps: none was made in vain.
    assert ours.session.stats["runs"] == 2 * 12


@pytest.mark.parametrize("name", MEAN_SQUARE)
def test_recorded_step(name: str) -> None:
    """A token behind a past that ONNX Runtime has made: logits and caches, as it found them."""
    folder = next((f for f in FOLDERS if f.name == name), None)
    if folder is None:
        pytest.skip(f"no {name} in ../shared/models beside the repository")
    recorded = dict(np.load(folder / "io2.npz"))
    g = monograph.Generator(folder, TARGET, max_length=16, stop=(), logits=True, tune="off")
    engine = g.engine
    engine.start(1, Sampling())
    feeds: dict[str, Any] = {"tokens": recorded["in:input_ids"], "count": np.ones(1, np.int64)}
    feeds["position"] = np.array([recorded["in:attention_mask"].shape[1] - 1])
    for cache in engine.decoder.caches:
        feeds[cache.past] = np.zeros((1, cache.heads, 16, cache.size), np.float32)
        past = recorded[f"in:{cache.past}"]
        feeds[cache.past][:, :, : past.shape[2]] = past
    given = {n: engine._arrays.put(x) for n, x in feeds.items()}
    places = {new: given[old] for new, old in engine.step.donate.items()}
    names = [p.name for p in engine.session.outputs]
    made = dict(zip(names, engine.session.run(given, out=places), strict=True))
    arrays = {n: np.asarray(engine._arrays.get(x)) for n, x in made.items()}
    expected = {n: recorded[f"out:{n}"] for n in places}
    expected["next_logits"] = recorded["out:logits"][:, -1]
    given = {n: arrays[n] for n in expected}
    check_recorded(name, given, expected, engine.session.tolerances(feeds), places)
