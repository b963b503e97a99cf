"""Prompt lookup: proposed tokens are checked in one step, and the output stays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from benchmarks.decoders import build

from monograph.errors import ConfigError
from monograph.generate.batching.engine import Engine
from monograph.generate.batching.lookup import PromptLookup, Repeats
from tests.generate.decoders import counting_decoder
from tests.generate.test_batching import SAMPLINGS, Manual

REPEATED = [1, 2, 3, 4, 5, 6, 7] * 3
FORCED = {"logit_bias": {9: 60.0}}
"""Makes one token follow itself: all proposals are right."""
WANTED: list[tuple[list[int], dict[str, Any]]] = [
    (REPEATED, {}),
    ([8, 1, 5], FORCED),
    ([3], {**FORCED, "temperature": 0.7, "logprobs": 1}),
    *(([20 + n, *REPEATED], {"seed": n, **s}) for n, s in enumerate(SAMPLINGS)),
]


def made_by(folder: Path, target: str, lookup: int, slots: int) -> tuple[list[Any], dict[str, Any]]:
    with Engine(folder, target, slots=slots, max_length=64, stop=(), lookup=lookup) as engine:
        manual = Manual(engine)
        if manual.scheduler._lookup is not None:
            manual.scheduler._lookup.clock = lambda: 0.0  # every check pays
        streams = []
        for n, (prompt, options) in enumerate(WANTED):
            streams.append(engine.submit(prompt, 12 + 3 * n, **options))
            manual.turn()
        manual.finish()
        return [s.result(0).tokens for s in streams], engine.stats


@pytest.mark.parametrize("style", ["genai", "optimum"])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_tokens_are_those_without_lookup(target: str, style: str, tmp_path: Path) -> None:
    build(tmp_path, "tiny-llama", style=style)
    plain, without = made_by(tmp_path, target, 0, 3)
    checked, stats = made_by(tmp_path, target, 4, 3)
    assert checked == plain
    assert stats["checks"] > 0
    assert 0 < stats["accepted_tokens"] < stats["checked_tokens"]
    assert stats["steps"] < without["steps"]
    assert stats["generated_tokens"] == without["generated_tokens"]


def test_decoders_of_one_token_at_a_time_do_without(tmp_path: Path) -> None:
    path = counting_decoder(tmp_path / "model.onnx")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(model, path)
    with Engine(path, "reference", slots=2, max_length=32, stop=(), lookup=4) as engine:
        engine.generate([1, 2, 1, 2, 1, 2, 1], 12, logit_bias={3: 60.0})
        assert engine.stats["checks"] == 0


def test_proposals_are_what_followed_before() -> None:
    repeats = Repeats()
    text = [1, 2, 3, 4, 5, 1, 2, 3]
    assert repeats.proposals(text, 4) == [4, 5, 1, 2]
    assert repeats.proposals([*text, 9], 4) == []
    # The text before the end is shorter than what is proposed: it goes on repeating itself.
    assert Repeats().proposals([7, 8, 7, 8, 7], 5) == [8, 7, 8, 7, 8]
    assert Repeats().proposals([7, 7], 2) == []
    # The latest place counts.
    assert Repeats().proposals([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1) == [5]


def test_checks_are_made_where_they_measure_faster() -> None:
    lookup, right, wrong = PromptLookup(4), Repeats(), Repeats()
    for _ in range(20):
        right.observe(True)
        wrong.observe(False)
    guess = [1, 2, 3, 4]
    for _ in range(2):
        lookup.add_time(1, 1, 1.0)
    assert lookup.pays(1, 1, {wrong: guess})  # not measured yet
    for _ in range(2):
        lookup.add_time(1, 5, 1.5)
    assert lookup.pays(1, 1, {right: guess})
    assert not lookup.pays(1, 1, {wrong: guess})
    assert not lookup.pays(1, 1, {right: []})
    # One sequence in three has a proposal: checks cost all of them.
    assert lookup.pays(1, 3, {right: guess, wrong: []})
    assert not lookup.pays(1, 9, {right: guess, wrong: []})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lookup": -1}, "`lookup` must not be negative"),
        ({"lookup": 99}, "`lookup` must be a count"),
        ({"lookup": 2, "batch_invariant": True}, "exclude each other"),
    ],
)
def test_mistakes(options: dict[str, Any], text: str, tmp_path: Path) -> None:
    build(tmp_path, "tiny-llama")
    with pytest.raises(ConfigError, match=text):
        Engine(tmp_path, "reference", **options)
