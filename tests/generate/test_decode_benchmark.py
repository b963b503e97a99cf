"""The benchmarks of decoding: contenders decode the same tokens, and failures cost no parts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from benchmarks import decode_cpu, decode_cpu_sides
from benchmarks.decode_cpu_sides import CONTENDERS, FIRST, Decoding, Side, Task
from benchmarks.decode_gpu_record import Record, report
from benchmarks.decoders import build

import monograph.errors

LENGTH = 96


@pytest.mark.parametrize("form", ["f32", "int4-zp", "fp8"])
def test_contenders_make_the_same_tokens(tmp_path: Path, form: str) -> None:
    pytest.importorskip("onnxruntime")
    task = Task(build(tmp_path, "tiny-llama", form) / "model.onnx", "tiny-llama", LENGTH, 1)
    sides = [Decoding(make(task)) for make in CONTENDERS.values()]
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
    with (
        mock.patch.object(sys, "argv", arguments),
        mock.patch.object(decode_cpu, "bandwidth", mock.Mock(side_effect=[1e9, 2e9])),
        mock.patch.multiple(decode_cpu, UNTIMED=2, TIMED=8),
    ):
        decode_cpu.main()
    found = json.loads(file.read_text())
    (row,) = found["formats"]["f32"]
    assert (found["threads"], found["bandwidth"]) == (1, 2e9)  # the best, also behind the turns
    assert row["position"] == 4
    assert row["floor_ms"] == pytest.approx(row["weight_bytes"] / 2e6)
    for name in ("monograph", "session", "onnxruntime"):
        assert row[name]["tokens_per_s"] == pytest.approx(1e3 / row[name]["ms"])
        assert row[name]["same_tokens"]
        assert row[name]["tokens_alike"] == row[name]["tokens"] == 5 + 2 * 10
        assert len(row[name]["ratios"]) == 2
    assert row["onnxruntime"]["ratio"] == 1.0
    said = capsys.readouterr().out
    assert all(said.count(name) == 1 for name in ("floor", "monograph", "session", "onnxruntime"))


class Slow:
    """Memory that is slow behind a rest, until it was read for a second and a half."""

    def __init__(self) -> None:
        self.now = self.rested = 0.0

    def compiled(self, *_: object) -> Slow:
        self.rested = self.now
        return self

    def run(self, _: object) -> None:
        self.now += 0.010 if self.now - self.rested < 1.5 else 0.005


def test_memory_is_read_until_it_gives_all_it_has() -> None:
    memory, pipe = Slow(), mock.Mock()
    with (
        mock.patch.object(
            decode_cpu_sides, "time", SimpleNamespace(perf_counter=lambda: memory.now)
        ),
        mock.patch.object(decode_cpu_sides, "compile_graph", memory.compiled),
        mock.patch.object(decode_cpu_sides, "READ_BYTES", 1 << 16),
    ):
        decode_cpu_sides._read(pipe, 2)
    assert pipe.send.call_args.args[0] == pytest.approx((1 << 16) / 0.005)
    assert memory.now < 6  # nor for ever


def test_each_contender_has_a_process_of_its_own_and_rests_there(tmp_path: Path) -> None:
    task = Task(build(tmp_path, "tiny-llama", "f32") / "model.onnx", "tiny-llama", LENGTH, 1)
    side = Side("monograph", task)
    try:
        assert side.pid not in (None, os.getpid())
        side.turn(2, 3)
        side.turn(0, 1)
        assert [len(t.tokens) for t in side.turns] == [5, 1]
        assert len(side.tokens) == 1 + 6
        assert side.weight_bytes > 0
    finally:
        side.close()
    assert not Path(f"/proc/{side.pid}").exists()


def test_a_contender_that_fails_says_so(tmp_path: Path) -> None:
    with pytest.raises(monograph.errors.MonographError):
        Side("monograph", Task(tmp_path / "model.onnx", "tiny-llama", LENGTH, 1))


def test_a_turn_ends_when_threads_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy threads of a contender would take the cores of the one whose turn is next."""
    used = iter([0.0, 1.0, 1.0, 1.5, 1.5, 1.5, 2.0])
    naps: list[float] = []
    monkeypatch.setattr(decode_cpu_sides.time, "process_time", lambda: next(used))
    monkeypatch.setattr(decode_cpu_sides.time, "sleep", naps.append)
    decode_cpu_sides.rest()
    assert len(naps) == 3
    assert next(used) == 2.0


def test_threads_that_never_rest_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    for clock in ("process_time", "perf_counter"):
        monkeypatch.setattr(decode_cpu_sides.time, clock, lambda: float(next(now)))
    monkeypatch.setattr(decode_cpu_sides.time, "sleep", lambda _: None)
    with pytest.raises(RuntimeError, match="go on working"):
        decode_cpu_sides.rest()


def test_caches_that_are_too_short_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["decode_cpu", "--length", "64", "--positions", "60"]
    with mock.patch.object(sys, "argv", arguments), pytest.raises(SystemExit):
        decode_cpu.main()
    assert "too short" in capsys.readouterr().err


def test_a_part_without_time_or_luck_leaves_the_others(tmp_path: Path) -> None:
    record = Record(tmp_path / "decode-gpu", limit=100.0)
    assert record.has_time("f16", "quick", 10.0)
    assert not record.has_time("f16", "slow", 1000.0)
    with record.part("f16", "broken"):
        raise ValueError("no luck")
    with record.part("f16", "fine") as found:
        found["same_tokens"] = True
    kept = json.loads((tmp_path / "decode-gpu.json").read_text())["formats"]["f16"]
    assert kept["same_tokens"]
    assert kept["failed"]["broken"] == "ValueError: no luck"
    assert kept["failed"]["slow"].endswith("1000 wanted")
    assert set(kept["seconds"]) == {"broken", "fine"}


def test_copies_are_counted_by_reason_in_the_report() -> None:
    staged = {f"past.{i}.key: it overlaps another": 6 for i in range(16)}
    found = {"one_launch": {"tokens": 256, "staged_copies": staged | {"turns: a loop uses it": 6}}}
    text = report({"formats": {"f16": found}})
    assert "it overlaps another: 96 copies of 16 ports; a loop uses it: 6 copies of 1 ports" in text
    assert "past.3.key" not in text
    assert len(found["one_launch"]["staged_copies"]) == 17  # type: ignore[arg-type]
