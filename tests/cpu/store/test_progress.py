"""The stages that a session reports while it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

import monograph
from monograph.errors import ModelError
from tests.cpu.store.kept import check


def test_stages_are_reported(path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    session = monograph.load(path, progress=lambda *given: seen.append(given))
    assert [stage for stage, _, _ in seen] == ["import", "ready"]
    seen.clear()
    check(session)
    stages = list(dict.fromkeys(stage for stage, _, _ in seen))
    assert stages == ["rewrite", "generate", "compile", "ready"], "what was compiled runs"
    assert all(0 <= done <= total for _, done, total in seen)
    for stage in ("rewrite", "compile"):
        done = [d for s, d, t in seen if s == stage]
        assert sorted(done) == list(range(max(done) + 1))
        assert max(done) == next(t for s, _, t in seen if s == stage)
    seen.clear()
    check(monograph.load(path, progress=lambda *given: seen.append(given)))
    assert [stage for stage, _, _ in seen] == ["ready", "load", "ready"]


def test_a_failure_ends_the_report(tmp_path: Path) -> None:
    seen: list[str] = []
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError):
        monograph.load(tmp_path / "m.onnx", progress=lambda stage, *_: seen.append(stage))
    assert seen == ["import", "ready"]
    with pytest.raises(monograph.errors.ConfigError, match="progress is a function"):
        monograph.load(tmp_path / "m.onnx", progress=True)  # type: ignore[arg-type]
