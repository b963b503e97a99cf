"""Generation on a GPU, of other kinds than `test_generate` has: plain exports, batches, stop tokens
in one launch, and the prompts whose answers ONNX Runtime recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.decoders import build

import monograph
from tests.generate.decoders import counting_decoder, plainly
from tests.generate.test_recorded import MEAN_SQUARE, check_recorded
from tests.gpu.generate.test_generate import (
    COUNT,
    ON_DEVICE,
    PROMPT,
    TARGET,
    generator,
    shape,
)
from tests.gpu.real_models import FOLDERS

EXPORT = [5, 9, 2, 33, 14]


def test_a_plain_export_gives_its_tokens(tmp_path: Path) -> None:
    build(tmp_path, shape("tiny-gemma2"), style="optimum")
    expected = plainly(tmp_path / "model.onnx", PROMPT, COUNT)
    ours = generator(tmp_path)
    assert ours.generate(PROMPT, COUNT) == expected
    assert ours.generate(PROMPT, COUNT, one_launch=True) == expected
    assert ours.session.stats["donation_copies"] == 0


@pytest.mark.parametrize("mask", ["band", "buffer", "sliced"])
def test_windows_of_plain_exports(mask: str, tmp_path: Path) -> None:
    """Diagonals and rows of buffers that are data: they follow the position."""
    model = counting_decoder(tmp_path / "model.onnx", mask=mask, window=4)
    options = {"max_length": 20, "stop": (), "buckets": [8], "cache_dir": "", "tune": "off"}
    ours = monograph.Generator(model, TARGET, **options)  # type: ignore[arg-type]
    assert ours.generate(EXPORT, 6) == plainly(model, EXPORT, 6)


def test_a_stop_token_ends_one_launch(tmp_path: Path) -> None:
    build(tmp_path, shape("tiny-llama"))
    tokens = generator(tmp_path, "reference").generate(PROMPT, COUNT)
    # The first token that comes for the first time behind the second place.
    place = next(i for i in range(2, COUNT) if tokens.index(tokens[i]) == i)
    ours = generator(tmp_path)
    stopped = ours.generate(PROMPT, COUNT, one_launch=True, stop=[tokens[place]])
    assert stopped == tokens[: place + 1]
    assert ours.engine.timing.decode_launches == 1
    assert ours.engine.timing.decode_runs == place


@pytest.mark.parametrize("one_launch", [False, True])
def test_eight_sequences_at_once(one_launch: bool, tmp_path: Path) -> None:
    build(tmp_path, shape("tiny-llama"))
    prompts = [PROMPT[: 1 + n % 6] for n in range(8)]
    count = min(COUNT, 32 if ON_DEVICE else 3)
    reference = generator(tmp_path, "reference")
    expected = [reference.generate(p, count) for p in prompts]
    assert len({tuple(row) for row in expected}) > 4
    assert generator(tmp_path).generate(prompts, count, one_launch=one_launch) == expected


@pytest.mark.parametrize("name", MEAN_SQUARE)
def test_recorded_prompt(name: str) -> None:
    """A prompt and the token behind it, fed as users feed them: logits and caches as recorded."""
    folder = next((f for f in FOLDERS if f.name == name), None)
    if folder is None:
        pytest.skip(f"no {name} in ../shared/models beside the repository")
    if not ON_DEVICE and "int4" in name:
        pytest.skip("codes of a whole prompt take minutes by the interpreter")
    g = monograph.Generator(
        folder, TARGET, max_length=16, stop=(), buckets=[8], logits=True, tune="off"
    )
    # What is interpreted takes a minute for each run: there `test_generate` has the step behind it.
    for file in ("io.npz", "io2.npz") if ON_DEVICE else ("io.npz",):
        recorded = dict(np.load(folder / file))
        g.append_tokens(recorded["in:input_ids"])
        _check(g, name, recorded)


def _check(g: monograph.Generator, name: str, recorded: dict[str, Any]) -> None:
    engine = g.engine
    get = engine._arrays.get
    given: dict[str, Any] = {"next_logits": g.get_logits()}
    expected = {"next_logits": recorded["out:logits"][:, -1]}
    for cache in engine.decoder.caches:
        given[cache.present] = np.asarray(get(engine.state[cache.past]))
        expected[cache.present] = recorded[f"out:{cache.present}"]
    feeds = {n: np.asarray(get(x)) for n, x in engine.last_feeds.items()}
    caches = {cache.present for cache in engine.decoder.caches}
    check_recorded(name, given, expected, engine.session.tolerances(feeds), caches)
