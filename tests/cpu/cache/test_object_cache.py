"""Compiled objects on disk: keys, damage, eviction, other processes, directories that refuse."""

from __future__ import annotations

import json
import logging
import mmap
import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import monograph
from monograph.codegen.llvm.module.features import TABLE
from monograph.config import Config
from monograph.runtime.cache import object_cache as cache_module
from monograph.runtime.cache.object_cache import DiskCache, make_key, open_cache

ROOT = Path(__file__).parents[3]
KEY = "ab" + "0" * 62
PARTS = {"main": b"\x00code\n\xff" * 50, "manifest": b"{}", "empty": b""}


@pytest.fixture(autouse=True)
def _fresh_warnings() -> None:
    cache_module._warn_once.cache_clear()


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", 1 << 20)


def entry(tmp_path: Path, key: str = KEY) -> Path:
    return tmp_path / "cache" / "entries" / key[:2] / key


def entries(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "cache" / "entries").glob("*/*"))


def key(number: int) -> str:
    return f"{number:064x}"


def aged(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_what_was_put_comes_back(cache: DiskCache, tmp_path: Path) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, PARTS)
    assert cache.get(KEY) == PARTS
    assert list(cache.get(KEY) or ()) == list(PARTS)
    assert DiskCache(tmp_path / "cache", 1 << 20).get(KEY) == PARTS
    cache.put(KEY, {"main": b"new"})
    assert cache.get(KEY) == {"main": b"new"}
    assert entries(tmp_path) == [KEY]


def test_an_entry_says_what_it_is(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(KEY, PARTS)
    first, second, _ = entry(tmp_path).read_bytes().split(b"\n", 2)
    assert first.startswith(b"monograph-cache 2 ")
    sizes = {"main": 350, "manifest": 2, "empty": 0}
    assert json.loads(second) == {"key": KEY, "parts": sizes}


def test_parts_are_aligned(cache: DiskCache) -> None:
    cache.put(KEY, PARTS)
    parts = cache.get(KEY)
    assert parts is not None
    assert [np.frombuffer(p, np.uint8).ctypes.data % 64 for p in parts.values() if p] == [0, 0]


def test_parts_outlive_their_entry(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(KEY, PARTS)
    parts = cache.get(KEY)
    entry(tmp_path).unlink()
    assert parts == PARTS


def test_stored_parts_are_those_of_the_file(cache: DiskCache, tmp_path: Path) -> None:
    stored = cache.put(KEY, PARTS)
    assert stored == cache.get(KEY) == PARTS
    assert stored is not None
    assert all(isinstance(p.obj, mmap.mmap) for p in stored.values())
    entry(tmp_path).unlink()
    assert stored == PARTS


def test_an_array_is_stored_as_its_bytes(cache: DiskCache) -> None:
    assert cache.put(KEY, {"numbers": np.arange(4, dtype=np.int32)})
    assert cache.get(KEY) == {"numbers": np.arange(4, dtype=np.int32).tobytes()}


def test_nobody_else_may_read_or_write(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(KEY, PARTS)
    place = entry(tmp_path)
    for path, mode in ((place, 0o600), (place.parent, 0o700), (tmp_path / "cache", 0o700)):
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_every_damage_is_found(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(KEY, PARTS)
    whole = entry(tmp_path).read_bytes()
    flips = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(0, len(whole), 7)]
    cuts = [whole[:i] for i in (0, 1, 20, 90, 200, len(whole) - 1)]
    for damaged in [*flips, *cuts, whole + b"x", b"\n" * 10]:
        entry(tmp_path).write_bytes(damaged)
        assert cache.get(KEY) is None
        assert entries(tmp_path) == []
    cache.put(KEY, PARTS)
    assert cache.get(KEY) == PARTS


def test_an_entry_under_another_key_is_damage(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(KEY, PARTS)
    other = "ab" + "1" * 62
    entry(tmp_path).rename(entry(tmp_path, other))
    assert cache.get(other) is None


def test_damage_is_logged(
    cache: DiskCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.put(KEY, PARTS)
    entry(tmp_path).write_bytes(b"short")
    with caplog.at_level(logging.WARNING, "monograph"):
        cache.get(KEY)
    assert "damaged" in caplog.text


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 10_000)
    for i in range(8):
        cache.put(key(i), {"main": bytes(1000)})
        aged(entry(tmp_path, key(i)), 100 - i)
    assert cache.get(key(0)) is not None
    cache.put(key(8), {"main": bytes(2500)})
    left = entries(tmp_path)
    assert key(0) in left, "it was used a moment ago"
    assert key(8) in left
    assert key(1) not in left
    assert sum(entry(tmp_path, k).stat().st_size for k in left) <= 10_000
    kept = [k for k in left if k not in (key(0), key(8))]
    assert kept == [key(i) for i in range(8 - len(kept), 8)]


def test_an_entry_that_is_too_large_is_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 1000)
    cache.put(KEY, {"main": b"x" * 10})
    cache.put(key(1), {"main": bytes(1000)})
    assert entries(tmp_path) == [KEY]


def test_leavings_of_a_dead_process_go(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(KEY, PARTS)
    old, young = entry(tmp_path).parent / ".new-old", entry(tmp_path).parent / ".new-young"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    aged(old, 2 * 3600)
    cache.put(KEY, PARTS)
    assert entries(tmp_path) == [".new-young", KEY]


def test_a_directory_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cache").write_text("in the way")
    with caplog.at_level(logging.WARNING, "monograph"):
        for _ in range(3):
            cache = DiskCache(tmp_path / "cache", 1000)
            cache.put(KEY, PARTS)
            assert cache.get(KEY) is None
    assert caplog.text.count("no cache at") == 1


def test_a_directory_that_others_may_write_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with caplog.at_level(logging.WARNING, "monograph"):
        DiskCache(tmp_path / "cache", 1000).put(KEY, PARTS)
    assert "others may write" in caplog.text
    assert entries(tmp_path) == []


def test_a_write_that_fails_is_a_warning_once(
    cache: DiskCache,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with caplog.at_level(logging.WARNING, "monograph"):
        cache.put(KEY, PARTS)
        cache.put(key(1), PARTS)
    assert caplog.text.count("No space left") == 1
    assert entries(tmp_path) == [], "no temporary file is left"


def test_an_entry_that_cannot_be_deleted(
    cache: DiskCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(cache_module, "_unpack", lambda *_: None)
    cache.put(KEY, PARTS)
    monkeypatch.setattr(Path, "unlink", refuse)
    with caplog.at_level(logging.WARNING, "monograph"):
        assert cache.get(KEY) is None
    assert "cannot delete" in caplog.text


def test_options_switch_it_off(tmp_path: Path) -> None:
    assert open_cache(Config(cache_dir="")) is None
    assert open_cache(Config(cache_dir=str(tmp_path), cache_bytes=0)) is None
    cache = open_cache(Config(cache_dir=str(tmp_path / "cache")))
    assert cache is not None
    cache.put(KEY, PARTS)
    assert entries(tmp_path) == [KEY]


def test_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    features = TABLE["sse2"]
    base = make_key(features, model="abc", options="threads=2")
    assert base == make_key(features, options="threads=2", model="abc")
    assert len(base) == 64
    others = [
        make_key(features, model="abc", options="threads=4"),
        make_key(features, model="abd", options="threads=2"),
        make_key(features, model="abcoptions", options="threads=2"),
        make_key(TABLE["avx2"], model="abc", options="threads=2"),
        make_key(replace(features, flags="+sse3"), model="abc", options="threads=2"),
    ]
    monkeypatch.setattr(cache_module, "_own_version", lambda: "0.0.1")
    others.append(make_key(features, model="abc", options="threads=2"))
    monkeypatch.setattr("llvmlite.__version__", "0.1")
    others.append(make_key(features, model="abc", options="threads=2"))
    assert len({base, *others}) == 1 + len(others)


def test_version_covers_every_module(monkeypatch: pytest.MonkeyPatch) -> None:
    scan, seen = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda path: (seen.append(Path(path)), scan(path))[1])
    cache_module._own_version.__wrapped__()
    assert Path(monograph.__file__).parent / "codegen" / "llvm" in seen


SCRIPT = """
import sys
from pathlib import Path
from monograph.runtime.cache.object_cache import DiskCache
cache = DiskCache(Path(sys.argv[1]), 40_000)
own = int(sys.argv[2])
for turn in range(60):
    cache.put("ab" + "0" * 62, {"main": b"s" * 5000, "tail": b"t"})
    found = cache.get("ab" + "0" * 62)
    # Another process may have evicted it; what is there is whole.
    assert found in (None, {"main": b"s" * 5000, "tail": b"t"})
    mine = f"{own * 1000 + turn:064x}"
    cache.put(mine, {"main": bytes([own]) * 3000})
    assert cache.get(mine) in (None, {"main": bytes([own]) * 3000})
"""


def test_processes_share_a_directory(tmp_path: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "cache"), str(i)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(3)
    ]
    for child in children:
        _, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors
        assert "damaged" not in errors
    assert not [name for name in entries(tmp_path) if name.startswith(".new-")]
    DiskCache(tmp_path / "cache", 40_000).put(KEY, PARTS)
    sizes = [p.stat().st_size for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert sum(sizes) <= 40_000
