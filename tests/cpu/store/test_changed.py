"""Files that change or move under what was kept of them, also those beside a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import monograph
from monograph.errors import ModelError
from monograph.runtime.cache import store as store_module
from tests.cpu.store.kept import WEIGHTS, check, found, made, write


def save_beside(path: Path, weights: np.ndarray) -> Path:
    onnx.save(
        made(weights), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    return path


def test_files_beside_the_model_count(tmp_path: Path) -> None:
    path = save_beside(tmp_path / "model.onnx", WEIGHTS)
    model, data = path.read_bytes(), (tmp_path / "weights.bin").read_bytes()
    check(monograph.load(path))
    session = monograph.load(path)
    check(session)
    assert found(session) == 1
    (tmp_path / "weights.bin").write_bytes((2 * WEIGHTS).tobytes())
    assert path.read_bytes() == model, "only the file beside it differs"
    changed = monograph.load(path)
    check(changed, weights=2 * WEIGHTS)
    assert found(changed) == 0
    (tmp_path / "weights.bin").write_bytes(data)
    back = monograph.load(path)
    check(back)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"'w' cannot be read"):
        monograph.load(path)


def test_a_file_beside_the_model_must_still_be_inside(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = save_beside(home / "model.onnx", WEIGHTS)
    check(monograph.load(path))
    (home / "weights.bin").rename(tmp_path / "weights.bin")
    (home / "weights.bin").symlink_to("../weights.bin")
    with pytest.raises(ModelError, match="outside the model's directory"):
        monograph.load(path)


def test_weights_that_change_while_they_are_read_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_beside(tmp_path / "model.onnx", WEIGHTS)
    look = store_module.CacheStore.add_external_files

    def look_and_change(self: Any, locations: Any) -> None:
        look(self, locations)
        (tmp_path / "weights.bin").write_bytes((2 * WEIGHTS).tobytes())

    with monkeypatch.context() as patch:
        patch.setattr(store_module.CacheStore, "add_external_files", look_and_change)
        check(monograph.load(path), weights=2 * WEIGHTS)
    save_beside(path, WEIGHTS)
    session = monograph.load(path)
    check(session)
    assert found(session) == 0


def test_weights_that_are_gone_when_code_is_kept(tmp_path: Path) -> None:
    path = save_beside(tmp_path / "model.onnx", WEIGHTS)
    session = monograph.load(path)
    (tmp_path / "weights.bin").unlink()
    check(session)
    assert found(session) == 0


def test_a_model_that_changed_under_a_session(path: Path) -> None:
    check(monograph.load(path))
    session = monograph.load(path)
    check(session)
    write(path, made(2 * WEIGHTS))
    check(session)
    with pytest.raises(ModelError, match="has changed since the session was made"):
        session.graph  # noqa: B018


def test_weights_that_changed_under_a_session(tmp_path: Path) -> None:
    path = save_beside(tmp_path / "model.onnx", WEIGHTS)
    check(monograph.load(path))
    session = monograph.load(path)
    (tmp_path / "weights.bin").write_bytes((2 * WEIGHTS).tobytes())
    with pytest.raises(ModelError, match="external data of the model has changed"):
        check(session, 5)


def test_a_process_that_moves_finds_its_model(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    check(monograph.load(path.name))
    session = monograph.load(path.name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    check(session, 7)
    assert session.graph.output_names == ("y",)
