"""Files are written as a whole or not at all, by everything that writes them."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monograph
from monograph.errors import ConfigError
from monograph.report.render.trace import write_events
from monograph.runtime import atomic_write as module
from monograph.runtime.atomic_write import replacing, replacing_named
from monograph.runtime.cache.object_cache import DiskCache
from tests.cli.calls import call
from tests.report import models

OLD = b"what was there before"


class FullDisk(io.RawIOBase):
    """Takes a few bytes, and no more."""

    def __init__(self, inner: Any, room: int) -> None:
        self._inner, self._room = inner, room

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if size > self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._room -= size
        return int(self._inner.write(data))

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._inner.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._inner.seek(offset, whence))

    def flush(self) -> None:
        if not self._inner.closed:
            self._inner.flush()

    def close(self) -> None:
        self._inner.close()
        super().close()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that is written has room for 100 bytes."""
    right = os.fdopen
    monkeypatch.setattr(module.os, "fdopen", lambda *given: FullDisk(right(*given), 100))


def files_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_file_takes_the_place_of_the_old_one_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == OLD
    assert path.read_bytes() == b"new"
    assert files_in(tmp_path) == ["file"]


def write_and_fail(path: Path, error: BaseException) -> None:
    with replacing(path) as file:
        file.write(b"new")
        raise error


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_what_fails_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    with pytest.raises(type(error)):
        write_and_fail(path, error)
    assert path.read_bytes() == OLD
    assert files_in(tmp_path) == ["file"]


def test_modes_and_links_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(OLD)
    path.chmod(0o640)
    link.symlink_to(path)
    with replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with replacing(tmp_path / "own", private=True) as file:
        file.write(b"new")
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o600
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    with replacing(tmp_path / "other") as file:
        file.write(b"new")
    assert (tmp_path / "other").stat().st_mode == plain.stat().st_mode


def test_a_pipe_is_written_to_directly(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    with replacing(path) as file:
        file.write(b"new")
    reader.join(30)
    assert got == [b"new"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_named_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"the report cannot be written: No such file"),
        replacing_named(tmp_path / "nowhere" / "file", "the report"),
    ):
        pass


def test_outputs_of_a_run_on_a_full_disk(tmp_path: Path, full_disk: None) -> None:
    path, output = models.save(models.LINEAR, tmp_path), tmp_path / "out.npz"
    output.write_bytes(OLD)
    before = files_in(tmp_path)
    result = call("run", path, "--target", "reference", "--output", output)
    assert result.exit_code == 2
    assert "the file cannot be written: No space left" in result.stderr
    assert output.read_bytes() == OLD
    assert files_in(tmp_path) == before


def test_a_package_on_a_full_disk(tmp_path: Path, full_disk: None) -> None:
    path, package = models.save(models.LINEAR, tmp_path), tmp_path / "model.mono"
    session = monograph.load(path, "cpu", cache_dir="")
    session.run({"x": np.ones((2, 3), np.float32)})
    package.write_bytes(OLD)
    before = files_in(tmp_path)
    with pytest.raises(ConfigError, match="the package cannot be written: No space left"):
        session.save(package)
    assert package.read_bytes() == OLD
    assert files_in(tmp_path) == before


def test_a_trace_on_a_full_disk(tmp_path: Path, full_disk: None) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(OLD)
    with pytest.raises(ConfigError, match="the file cannot be written: No space left"):
        write_events(path, [{"name": "x" * 1000}], {})
    assert path.read_bytes() == OLD
    assert files_in(tmp_path) == ["trace.json"]


def test_a_cache_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskCache(tmp_path / "cache", limit=1 << 20)
    key = "ab" * 32
    assert store.put(key, {"part": b"old"})
    right = os.fdopen
    monkeypatch.setattr(module.os, "fdopen", lambda *given: FullDisk(right(*given), 100))
    assert not store.put(key, {"part": b"new" * 1000})
    found = store.get(key)
    assert found is not None
    assert bytes(found["part"]) == b"old"


def writers() -> Iterator[str]:
    """Places in the package that open a file for writing."""
    root = Path(monograph.__file__).parent
    pattern = re.compile(
        r"write_text\(|write_bytes\(|open\([^)]*[\"'][wax]b?\+?[\"']|mkstemp|NamedTemporaryFile"
        r"|os\.replace\(|\.rename\(|np\.savez?\((?!file)"
    )
    for path in sorted(root.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if pattern.search(line) and "os.fdopen(os.dup" not in line:
                yield f"{path.relative_to(root)}:{number}: {line.strip()}"


def test_nothing_else_writes_files() -> None:
    others = [w for w in writers() if not w.startswith("runtime/atomic_write.py:")]
    assert others == []
