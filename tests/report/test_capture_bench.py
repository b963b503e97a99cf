"""The benchmarks of capture: figures held to their bars, and processes that break."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import capture, capture_models
from benchmarks.capture_report import Bar, bars, page

import monograph

GOOD: dict[str, Any] = {
    "kernels": 7,
    "same_host_us": 9.0,
    "moved_host_us": 20.0,
    "eager_host_us": 60.0,
    "copies_when_moved": 0,
    "captures_when_moved": 0,
    "rebinds_when_moved": 40,
    "replay_synced_us": 20.0,
    "eager_synced_us": 80.0,
    "replay_queued_us": 10.0,
    "eager_queued_us": 60.0,
    "torch_ratio_synced": 55.0,
    "torch_ratio_queued": 90.0,
    "numpy_synced_us": 30.0,
    "fresh_synced_us": 35.0,
    "tensors_synced_us": 20.0,
    "inputs": 100,
    "equal_bits": True,
    "stats": {"captures": 1, "launches_per_run": 1, "fallbacks": {}, "staged_copies": {}},
}
NAMES = (
    *("yolov10n", "towers_b1", "towers_b128", "silero_vad_v6", "data_loop"),
    *("genai_llama_int4", "khmercut_int8", "reachy_fk_int8", "fp4_mlp"),
)


def models(**changed: dict[str, Any]) -> dict[str, Any]:
    return {name: {**GOOD, **changed.get(name, {})} for name in NAMES}


def missed(**changed: dict[str, Any]) -> list[Bar]:
    return [b for b in bars(models(**changed)) if not b.ok]


def test_good_figures_reach_every_bar() -> None:
    assert missed() == []


@pytest.mark.parametrize(
    ("name", "changed", "what"),
    [
        ("yolov10n", {"same_host_us": 12.5}, "same addresses"),
        ("yolov10n", {"moved_host_us": 41.0}, "moved"),
        ("yolov10n", {"copies_when_moved": 1}, "moved"),
        ("yolov10n", {"captures_when_moved": 1}, "moved"),
        ("yolov10n", {"rebinds_when_moved": 0}, "moved"),
        ("silero_vad_v6", {"replay_queued_us": 61.0}, "every model"),
        ("towers_b1", {"torch_ratio_queued": 49.0}, "torch eager"),
        ("fp4_mlp", {"stats": {**GOOD["stats"], "captures": 0}}, "fp4"),
        ("towers_b128", {"numpy_synced_us": 41.0}, "the same arrays"),
        ("towers_b128", {"fresh_synced_us": 41.0}, "fresh arrays"),
        ("khmercut_int8", {"equal_bits": False}, "bit-identical"),
        ("data_loop", {"stats": {**GOOD["stats"], "launches_per_run": 2}}, "one launch"),
        ("silero_vad_v6", {"stats": {**GOOD["stats"], "fallbacks": {"no": 1}}}, "one launch"),
    ],
)
def test_each_bar_can_be_missed(name: str, changed: dict[str, Any], what: str) -> None:
    found = missed(**{name: changed})
    assert len(found) == 1
    assert what in found[0].what


def test_what_was_not_measured_is_not_reached() -> None:
    found = bars({"towers_b1": {"failed": "RuntimeError: no"}})
    assert not any(b.ok for b in found)
    assert any(b.measured == "not measured: RuntimeError: no" for b in found)
    without = {k: v for k, v in GOOD.items() if not k.startswith("torch_ratio")}
    for why, changed in {
        "no torch": {"torch_failed": "no torch"},
        "no torch_ratio_synced": {},
    }.items():
        found = [b for b in bars({"yolov10n": {**without, **changed}}) if b.ok is False]
        assert [b.measured for b in found] == [f"not measured: {why}"]


def shown(found: dict[str, Any]) -> str:
    """The page of these figures."""
    judged = json.loads(json.dumps([b.as_json() for b in bars(found)]))
    return page(
        {
            "date": "2026-01-02",
            "device": "a GPU",
            "python": "3.12",
            "versions": {"torch": "2"},
            "tune": "off",
            "models": found,
            "bars": judged,
        }
    )


def verdicts(text: str) -> list[tuple[str, str]]:
    """Return what was measured of each bar, and what the page says of it."""
    rows = [[c.strip() for c in line.strip("| ").split(" | ")] for line in text.splitlines()]
    return [(r[2], r[3]) for r in rows if len(r) == 4 and r[3] in ("ok", "NO", "-")]


def test_models_that_were_not_asked_for_miss_no_bar() -> None:
    some = verdicts(shown({"towers_b1": GOOD, "data_loop": {"failed": "took too long"}}))
    absent = "not measured: it was not among the models"
    assert {verdict for measured, verdict in some if measured == absent} == {"-"}
    assert ("not measured: took too long", "NO") in some
    assert ("9.0 us", "ok") in some
    assert {verdict for _, verdict in verdicts(shown({}))} == {"-"}


def test_the_page_shows_bars_figures_and_failures() -> None:
    found = models(towers_b1={"stats": {**GOOD["stats"], "staged_copies": {"x: it is strided": 3}}})
    found["broken"] = {"failed": "took too long"}
    text = shown(found)
    row = next(line for line in text.splitlines() if line.startswith("| yolov10n"))
    cells = [c.strip() for c in row.strip("| ").split("|")]
    assert cells[:4] == ["yolov10n", "7", "9.0", "20.0"]
    assert cells[-4:] == ["4.00", "6.00", "1", "yes"]
    assert "- broken: took too long" in text
    assert "- towers_b1, copied 3 times: x: it is strided" in text
    assert "not measured: broken" in text


def options(**given: Any) -> argparse.Namespace:
    usual = {"target": "gpu", "tune": "off", "tuning": None, "inputs": 1, "debug": False}
    return argparse.Namespace(**{**usual, "each": 30.0, "limit": 30.0, **given})


def test_a_process_that_breaks_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"""#!{sys.executable}
import json, os, sys
for name in [a.partition("=")[2] for a in sys.argv if a.startswith("--child=")]:
    print(json.dumps({{"model": name, "begun": True}}), flush=True)
    print("a library says hello", flush=True)
    print(json.dumps({{"model": name, "kernels": 3}}), flush=True)
    if name == "bad":
        os._exit(7)
    print(json.dumps({{"model": name, "ended": True}}), flush=True)
"""
    script = tmp_path / "python"
    script.write_text(code)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    found = capture.measure(["first", "bad", "last"], options())
    assert found["first"] == {"kernels": 3}
    assert found["bad"] == {"kernels": 3, "failed": "its process ended with 7"}
    assert found["last"] == {"kernels": 3}


def test_a_process_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    line = json.dumps({"model": "slow", "begun": True})
    script.write_text(f"#!/bin/sh\necho '{line}'\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    found = capture.measure(["slow"], options(each=0.3))
    assert found["slow"]["failed"] == "took too long"


def test_the_loop_ends_when_data_say_so() -> None:
    session = monograph.load(capture_models.data_loop(), target="reference")
    start = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    turns = [int(session.run({"x": start * size})[1]) for size in (1e-3, 0.05, 1.0)]
    assert turns[0] < turns[1] < turns[2] <= 100


def test_4_bit_floats_are_compiled() -> None:
    model = capture_models.fp4_mlp(64, 2)
    x = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    right = monograph.load(model, target="reference").run({"x": x})[0]
    session = monograph.load(model, target="cpu")
    np.testing.assert_allclose(session.run({"x": x})[0], right, rtol=1e-5, atol=1e-5)
    assert session.stats["host_steps"] == []
