"""Caches that are damaged, closed, or too small."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import monograph
from monograph.runtime.cache import object_cache as cache_module
from tests.cpu.store.kept import check, entries, found


def test_every_damage_is_found_and_mended(path: Path, cache: Path) -> None:
    check(monograph.load(path))
    whole = {p: p.read_bytes() for p in entries(cache)}
    assert len(whole) >= 2
    sizes = json.loads(max(whole.values(), key=len).split(b"\n", 2)[1])["parts"]
    assert {"layout", "object0", "constants"} <= set(sizes)
    executable = max(whole, key=lambda p: len(whole[p]))
    for place, data in whole.items():
        for damaged in damages(data):
            executable.unlink()  # so that object code is looked for
            place.write_bytes(damaged)
            session = monograph.load(path)
            check(session)
            assert place.read_bytes() == data, "it was made again"


def damages(data: bytes) -> list[bytes]:
    """An entry cut short, and with one bit wrong in its head and in each of its parts."""
    head = data.split(b"\n", 2)
    start = sum(len(x) + 1 for x in head[:2])
    places = [0, 40, start - 10]
    for size in json.loads(head[1])["parts"].values():
        places += [start, start + size // 2, start + max(size - 1, 0)]
        start += -(-size // 64) * 64
    flips = [data[:i] + bytes([data[i] ^ 4]) + data[i + 1 :] for i in places if i < len(data)]
    return [b"", data[: len(data) // 2], data[:-1], data + b"\0", *flips]


@pytest.mark.parametrize("text", ["[]", "{}", '{"signature": 3, "beside": {}}', "no json"])
def test_members_of_another_meaning_are_mended(path: Path, cache: Path, text: str) -> None:
    """Whole, but not what this version writes: for whatever reason."""
    check(monograph.load(path))
    disk = cache_module.DiskCache(cache, 1 << 20)
    for place in entries(cache):
        parts = {k: bytes(v) for k, v in (disk.get(place.name) or {}).items()}
        for name in ("manifest", "layout"):
            if name in parts:
                disk.put(place.name, parts | {name: text.encode()})
    session = monograph.load(path)
    check(session)
    assert found(session) == 0
    check(monograph.load(path))
    assert found(monograph.load(path)) == 0
    again = monograph.load(path)
    check(again)
    assert found(again) == 1


def test_a_cache_that_cannot_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    cache_module._warn_once.cache_clear()
    monkeypatch.setattr(cache_module, "replacing", refuse)
    with caplog.at_level(logging.WARNING, "monograph"):
        for _ in range(2):
            session = monograph.load(path)
            check(session)
            assert found(session) == 0
    assert caplog.text.count("cannot write to the cache") == 1


def test_no_cache_at_all(path: Path, cache: Path) -> None:
    for options in ({"cache_dir": ""}, {"cache_bytes": 0}):
        session = monograph.load(path, **options)
        check(session)
        assert found(session) == 0
    assert entries(cache) == []


def test_a_cache_that_is_too_small(path: Path, cache: Path) -> None:
    for _ in range(2):
        session = monograph.load(path, cache_bytes=1000)
        check(session)
        assert found(session) == 0
    assert sum(p.stat().st_size for p in entries(cache)) <= 1000


def test_the_cache_stays_within_its_bound(path: Path, cache: Path) -> None:
    session = monograph.load(path, cache_bytes=100_000)
    for rows in range(1, 12):
        check(session, rows)
        assert sum(p.stat().st_size for p in entries(cache)) <= 100_000
    assert len(entries(cache)) > 2
    check(monograph.load(path, cache_bytes=100_000), 1)
