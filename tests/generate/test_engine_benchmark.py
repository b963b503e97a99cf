"""The benchmark of many sequences on the CPU runs and writes its figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest import mock

from benchmarks import engine_cpu


def test_figures_of_each_number_of_sequences(tmp_path: Path) -> None:
    command = [
        "engine_cpu", "--shape", "tiny-llama", "--formats", "f32", "--threads", "1",
        "--rounds", "2", "--folder", str(tmp_path), "--results", str(tmp_path),
    ]  # fmt: skip

    def told(python: str, side: str, folder: Path, threads: int) -> dict[int, list[list[float]]]:
        assert (folder / "model.onnx").exists()
        return {1: [[10.0, 20.0]], 4: [[30.0, 50.0]]}

    with mock.patch.object(sys, "argv", command), mock.patch.object(engine_cpu, "measured", told):
        engine_cpu.main()
    (file,) = tmp_path.glob("engine-cpu-*.json")
    made = json.loads(file.read_text())["tokens_per_second"]["f32"]
    assert made["monograph 1"] == {"best": 10.0, "median": 10.0, "per_cpu_second": 20.0}
    assert made["monograph 4"]["best"] == 30.0


def test_a_side_generates_for_one_and_for_four(tmp_path: Path) -> None:
    engine_cpu.build_model(tmp_path, "tiny-llama", "f32")
    with mock.patch.multiple(engine_cpu, TOKENS=2, TIMES=1, PROMPT=3):
        found = engine_cpu.of_monograph(str(tmp_path), 1)
    assert {n: len(rates) for n, rates in found.items()} == {1: 1, 4: 1}
