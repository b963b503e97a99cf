"""`monograph compile`, and what takes its files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monograph
from tests.cli.calls import call, call_json
from tests.report import models


def test_compile_and_run(linear: Path, tmp_path: Path):
    package = tmp_path / "m.mono"
    result = call("compile", linear, "-o", package, "--dim", "N=3")
    assert result.exit_code == 0, result.stderr
    assert "kernels for" in result.stdout
    plain = json.loads(call("run", linear, "--dim", "N=3", "--json").stdout)
    linear.unlink()
    found = json.loads(call("run", package, "--json", "--input", given(tmp_path)).stdout)
    assert found["ok"], found
    assert [o["shape"] for o in found["outputs"]] == [o["shape"] for o in plain["outputs"]]


def test_a_run_says_where_its_code_comes_from(
    linear: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    package = tmp_path / "m.mono"
    assert "compilation included" in call("run", linear).stdout
    assert "loading of code from the cache included" in call("run", linear).stdout
    assert call("compile", linear, "-o", package).exit_code == 0
    shown = call("run", package).stdout
    assert "loading of the package's code included" in shown
    assert "compil" not in shown
    assert "included" not in call("run", linear, "--target", "reference").stdout


def test_a_package_can_be_timed(linear: Path, tmp_path: Path):
    package = tmp_path / "m.mono"
    assert call("compile", linear, "-o", package).exit_code == 0
    found = json.loads(call("bench", package, "--seconds", "0.1", "--json").stdout)
    assert found["ok"], found
    assert found["flops"] > 0
    assert found["kernels_per_run"] > 0


def test_a_package_is_no_model(linear: Path, tmp_path: Path):
    package = tmp_path / "m.mono"
    assert call("compile", linear, "-o", package).exit_code == 0
    for command in ("inspect", "verify", "explain"):
        result = call(command, package)
        assert result.exit_code == 2, command
        assert "compiled code" in result.stderr


def test_a_package_is_not_compiled_again(linear: Path, tmp_path: Path):
    package = tmp_path / "m.mono"
    assert call("compile", linear, "-o", package).exit_code == 0
    result = call("compile", package, "-o", tmp_path / "again.mono")
    assert result.exit_code == 2
    assert "needs a model, not a package" in result.stderr
    assert not (tmp_path / "again.mono").exists()
    assert "protobuf" not in call("inspect", package).stderr


def test_a_package_runs_at_its_own_sizes(linear: Path, tmp_path: Path):
    package = tmp_path / "m.mono"
    np.savez(tmp_path / "recorded.npz", x=np.ones((3, 3), np.float32))
    result = call("compile", linear, "-o", package, "--inputs", tmp_path / "recorded.npz")
    assert result.exit_code == 0, result.stderr
    result = call("run", package)
    assert result.exit_code == 0, result.stderr
    assert "N=3, which the package was compiled for" in result.stderr
    assert "change them" not in result.stderr
    assert call("run", package, "--dim", "N=3").exit_code == 0
    result = call("run", package, "--dim", "N=1")
    assert result.exit_code == 2
    assert "the package was compiled with another value of dims" in result.stderr
    result = call("run", package, "--target", "reference")
    assert result.exit_code == 2
    assert "load it with --target cpu" in result.stderr


def given(folder: Path) -> str:
    np.save(folder / "x.npy", np.ones((3, 3), np.float32))
    return f"x={folder / 'x.npy'}"


def test_json(linear: Path, tmp_path: Path):
    result = call("compile", linear, "-o", tmp_path / "m.mono", "--threads", "1", "--json")
    found = json.loads(result.stdout)
    assert found["ok"]
    assert found["threads"] == 1
    assert found["bytes"] == (tmp_path / "m.mono").stat().st_size
    assert found["kernels"] > 0


def test_what_is_refused_is_in_the_words_of_inspect(tmp_path: Path):
    path = models.save(models.SIZED, tmp_path)
    told = call("inspect", path, "--target", "cpu").stdout
    assert "1 region" in told
    result = call("compile", path, "-o", tmp_path / "m.mono")
    assert result.exit_code == 2
    assert "its native code is not all that a run takes" in result.stderr
    reason = next(t for t in result.stderr.splitlines() if "given: " in t).partition("given: ")[2]
    assert reason in told


def test_mistakes(linear: Path, tmp_path: Path):
    result = call("compile", linear, "-o", tmp_path / "m.bin")
    assert result.exit_code == 2
    assert "a package must be a .mono file" in result.stderr
    result = call("compile", linear, "-o", tmp_path / "no" / "m.mono")
    assert result.exit_code == 2
    assert "the directory of the output file does not exist" in result.stderr
    assert call("compile", linear).exit_code == 2
    package = tmp_path / "m.mono"
    assert call("compile", linear, "-o", package).exit_code == 0
    package.write_bytes(package.read_bytes()[:-30])
    result = call("run", package)
    assert result.exit_code == 2
    assert "damaged" in result.stderr


def test_several_sets_of_sizes(linear: Path, tmp_path: Path):
    package = tmp_path / "several.mono"
    found = call_json("compile", linear, "-o", package, "--dim", "N=1,4")
    assert [s["x"][0] for s in found["sets"]] == [1, 4]
    session = monograph.load(package)
    assert [sizes["N"] for sizes in session.packaged_sizes] == [1, 4]
    for rows in (4, 1):
        given = {p.name: np.ones(_sized(p.shape, rows), np.float32) for p in session.inputs}
        assert session.run(given)[0].shape[0] == rows
    text = call("compile", linear, "-o", package, "--dim", "N=2,3,5").stdout
    assert "[2, " in text
    assert "[5, " in text


def _sized(shape: Any, rows: int) -> list[int]:
    return [d if isinstance(d, int) else rows for d in shape]


def test_sizes_that_are_no_numbers(linear: Path, tmp_path: Path):
    for given in ("N=1,", "N=1,x", "N=,"):
        result = call("compile", linear, "-o", tmp_path / "m.mono", "--dim", given)
        assert (result.exit_code, "must be" in result.stderr) == (2, True)


def test_the_cache_is_chosen(linear: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", str(tmp_path / "default"))
    assert call("run", linear, "--target", "cpu", "--no-cache").exit_code == 0
    assert not (tmp_path / "default").exists()
    mine = tmp_path / "mine"
    assert call("run", linear, "--target", "cpu", "--cache-dir", mine).exit_code == 0
    assert any(mine.rglob("*"))
    assert not (tmp_path / "default").exists()
    assert os.environ["MONOGRAPH_CACHE_DIR"] == str(tmp_path / "default")
    both = call("run", linear, "--cache-dir", mine, "--no-cache")
    assert (both.exit_code, "not both" in both.stderr) == (2, True)
