"""The page for users of ONNX Runtime: its programs agree, and the names in its tables exist."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monograph
import monograph.onnxruntime as ort
from monograph.config import Config
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "migration.md"
TEXT = PAGE.read_text()
SECTIONS = re.findall(r"^### (.*)$", TEXT, re.MULTILINE)


def _programs(section: str) -> list[str]:
    """Return the program of a section for ONNX Runtime, and the one on Monograph's own API."""
    starts = [TEXT.count("\n", 0, TEXT.index(f"### {name}")) for name in SECTIONS]
    starts.append(len(TEXT))
    at = SECTIONS.index(section)
    found = [b for b in blocks(PAGE, "python") if starts[at] < b.line < starts[at + 1]]
    return [b.text for b in found if not b.needs]


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize("module", ["monograph.onnxruntime", "onnxruntime"])
def test_moved_programs_give_the_same(module: str) -> None:
    pytest.importorskip(module)
    theirs: dict[str, Any] = {}
    mine: dict[str, Any] = {"np": np}
    assert len(SECTIONS) == 3
    for section in SECTIONS:
        before, after = _programs(section)
        exec(before.replace("monograph.onnxruntime as", f"{module} as"), theirs)
        mine["sound"] = theirs.get("sound")
        exec(after, mine)
        assert theirs["ort"].__name__ == module
        assert len(mine["after"]) == len(theirs["before"]) > 0
        for a, b in zip(mine["after"], theirs["before"], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("in_folder")
def test_a_program_runs_without_a_change() -> None:
    commands = [b.text.strip() for b in blocks(PAGE, "sh") if not b.not_run]
    assert commands == ["python -m monograph.onnxruntime program.py model.onnx"]
    words = commands[0].split()[1:]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=Path.cwd()
    )
    assert "Monograph" in done.stdout, done.stderr
    assert "(1, 300, 6)" in done.stdout


def _cells() -> list[tuple[str, str]]:
    table = TEXT.split("| Monograph's own API |")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) > 25
    return [(left, right) for left, right in rows]


def _code(cell: str) -> str:
    return " ".join(re.findall(r"`([^`]+)`", cell))


def test_names_of_onnxruntime_in_the_table_exist(tmp_path: Path) -> None:
    state = importlib.import_module("monograph.onnxruntime.capi.onnxruntime_pybind11_state")
    owners: dict[str, Any] = {
        "ort": ort, "options": ort.SessionOptions(), "session": ort.InferenceSession,
        "binding": ort.IOBinding, "onnxruntime_pybind11_state": state,
    }  # fmt: skip
    seen = 0
    for left, _ in _cells():
        for owner, name in re.findall(r"\b(\w+)\.(\w+)", _code(left)):
            if owner in owners:
                assert hasattr(owners[owner], name), f"{owner}.{name}"
                seen += 1
        for name in re.findall(r"\b(?:bind|run|copy|get)_\w+", _code(left)):
            assert any(hasattr(owner, name) for owner in owners.values()), name
    assert seen > 20


@pytest.mark.usefixtures("in_folder")
def test_names_of_monograph_in_the_table_exist() -> None:
    session = monograph.load("model.onnx")
    session.run({"images": np.load("photo.npy")})
    owners: dict[str, Any] = {
        "session": session, "port": session.inputs[0], "monograph": monograph,
        "errors": monograph.errors, "metadata": session.metadata, "config": session.config,
    }  # fmt: skip
    seen = 0
    for _, right in _cells():
        for owner, name in re.findall(r"\b(\w+)\.(\w+)", _code(right)):
            if owner in owners:
                assert hasattr(owners[owner], name), f"{owner}.{name}"
                seen += 1
        for name in re.findall(r"^(\w+)=", _code(right)):
            assert name in {*vars(Config), "dims", "donate"}, name
    assert seen > 15
    assert str(session.inputs[0].dtype) == "f32"
    assert session.inputs[0].dtype.numpy == np.float32
