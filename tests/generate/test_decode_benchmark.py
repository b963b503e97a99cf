"""The benchmarks of decoding: contenders decode the same tokens, and failures cost no parts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest import mock

import pytest
from benchmarks import decode_cpu
from benchmarks.decode_cpu import FIRST, Side, generator_step, onnxruntime_step, session_step
from benchmarks.decode_gpu_record import Record, report
from benchmarks.decoder_shapes import shape_of
from benchmarks.decoders import build

LENGTH = 96


@pytest.mark.parametrize("form", ["f32", "int4-zp", "fp8"])
def test_contenders_make_the_same_tokens(tmp_path: Path, form: str) -> None:
    pytest.importorskip("onnxruntime")
    s = shape_of("tiny-llama")
    model = build(tmp_path, "tiny-llama", form) / "model.onnx"
    sides = [
        Side(generator_step(model, LENGTH, 1)),
        Side(session_step(model, s, LENGTH, 1)),
        Side(onnxruntime_step(model, s, LENGTH, 1)),
    ]
    for side in sides:
        side.make(LENGTH - 1)
    first, *others = (side.tokens for side in sides)
    assert first[0] == FIRST
    assert len(set(first)) >= 32
    assert all(tokens == first for tokens in others)


def test_the_report_says_who_took_how_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "result.json"
    arguments = [
        "decode_cpu", "--shape", "tiny-llama", "--formats", "f32", "--threads", "1",
        "--length", "64", "--positions", "4", "--rounds", "2", "--session", "--json", str(file),
    ]  # fmt: skip
    with mock.patch.object(sys, "argv", arguments):
        decode_cpu.main()
    (row,) = json.loads(file.read_text())["formats"]["f32"]
    assert row["position"] == 4
    for name in ("monograph", "session", "onnxruntime"):
        assert row[name]["tokens_per_s"] == pytest.approx(1e3 / row[name]["ms"])
        assert row[name]["same_tokens"]
    assert capsys.readouterr().out.count("tokens/s") == 3


def test_caches_that_are_too_short_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["decode_cpu", "--length", "64", "--positions", "60"]
    with mock.patch.object(sys, "argv", arguments), pytest.raises(SystemExit):
        decode_cpu.main()
    assert "too short" in capsys.readouterr().err


def test_a_part_without_time_or_luck_leaves_the_others(tmp_path: Path) -> None:
    record = Record(tmp_path, limit=100.0)
    assert record.has_time("f16", "quick", 10.0)
    assert not record.has_time("f16", "slow", 1000.0)
    with record.part("f16", "broken"):
        raise ValueError("no luck")
    with record.part("f16", "fine") as found:
        found["same_tokens"] = True
    kept = json.loads((tmp_path / "decode_gpu.json").read_text())["formats"]["f16"]
    assert kept["same_tokens"]
    assert kept["failed"]["broken"] == "ValueError: no luck"
    assert kept["failed"]["slow"].endswith("1000 wanted")
    assert set(kept["seconds"]) == {"broken", "fine"}


def test_copies_are_counted_by_reason_in_the_report() -> None:
    staged = {f"past.{i}.key: it overlaps another": 6 for i in range(16)}
    found = {"one_launch": {"tokens": 256, "staged": staged | {"turns: a loop uses it": 6}}}
    text = report({"formats": {"f16": found}})
    assert "it overlaps another: 96 copies of 16 ports; a loop uses it: 6 copies of 1 ports" in text
    assert "past.3.key" not in text
    assert len(found["one_launch"]["staged"]) == 17  # type: ignore[arg-type]
