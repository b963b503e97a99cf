"""The benchmark of decoding on the CPU: its contenders decode the same tokens."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest import mock

import pytest
from benchmarks import decode_cpu
from benchmarks.decode_cpu import FIRST, Side, generator_step, onnxruntime_step, session_step
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
