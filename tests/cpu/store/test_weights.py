"""Large constants: once in a process, once on disk, once in a package."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import monograph
from monograph.errors import ModelError
from monograph.runtime.cpu.launch import NativeExecutable
from tests.cpu.store.kept import entries, fed, made, no_import, softmax, write

WIDE = np.random.default_rng(1).standard_normal((8, 4096)).astype(np.float32) / 8
BYTES = WIDE.nbytes


def check(session: monograph.Session, rows: int) -> np.ndarray:
    (given,) = session.run(fed(rows))
    np.testing.assert_allclose(given, softmax(fed(rows)["x"], WIDE), rtol=1e-4)
    return given


def addresses(session: monograph.Session, rows: int) -> list[int]:
    executable = session.executable(fed(rows))
    assert isinstance(executable, NativeExecutable)
    return [w.ctypes.data for w in executable._weights.values()]


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    return write(tmp_path / "wide.onnx", made(WIDE))


def test_shapes_and_sessions_share_weights(wide: Path, cache: Path) -> None:
    first, second = monograph.load(wide), monograph.load(wide)
    for rows in (3, 4):
        check(first, rows)
        check(second, rows)
    places = [addresses(s, rows) for s in (first, second) for rows in (3, 4)]
    assert len(places[0]) == 1
    assert all(p == places[0] for p in places)
    assert BYTES <= first.stats["constant_bytes"] < 1.2 * BYTES
    assert sum(p.stat().st_size > BYTES for p in entries(cache)) == 1


def test_programs_share_weights_without_a_cache(wide: Path) -> None:
    sessions = [monograph.load(wide, cache_dir="") for _ in range(2)]
    places = [addresses(s, rows) for s in sessions for rows in (3, 4)]
    assert all(p == places[0] for p in places)
    check(sessions[0], 3)


def test_weights_come_from_disk(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [check(monograph.load(wide), rows) for rows in (3, 4)]
    no_import(monkeypatch)
    session = monograph.load(wide)
    for rows, numbers in zip((3, 4), expected, strict=True):
        np.testing.assert_array_equal(check(session, rows), numbers)
    assert session.stats["from_disk"] == 2
    assert BYTES <= session.stats["constant_bytes"] < 1.2 * BYTES


def pack_of(cache: Path) -> Path:
    (found,) = [p for p in entries(cache) if p.stat().st_size > BYTES]
    return found


def test_weights_that_are_gone_are_packed_again(wide: Path, cache: Path) -> None:
    check(monograph.load(wide), 3)
    pack_of(cache).unlink()
    for found in (0, 1):
        session = monograph.load(wide)
        check(session, 3)
        assert session.stats["from_disk"] == found
        del session
    assert pack_of(cache).exists()


def test_damaged_weights_are_packed_again(wide: Path, cache: Path) -> None:
    check(monograph.load(wide), 3)
    pack = pack_of(cache)
    whole = pack.read_bytes()
    pack.write_bytes(whole[: len(whole) // 2] + b"!" + whole[len(whole) // 2 + 1 :])
    session = monograph.load(wide)
    check(session, 3)
    assert session.stats["from_disk"] == 0
    assert pack.read_bytes() == whole


def test_a_lost_index_costs_space_only(wide: Path, cache: Path) -> None:
    check(monograph.load(wide), 3)
    for place in entries(cache):
        if b'"index"' in place.read_bytes().split(b"\n", 2)[1]:
            place.unlink()
    session = monograph.load(wide)
    check(session, 3)
    check(session, 4)
    assert session.stats["from_disk"] == 1


def test_a_package_holds_weights_once(wide: Path, tmp_path: Path) -> None:
    session = monograph.load(wide)
    expected = [check(session, rows) for rows in (3, 4)]
    session.save(tmp_path / "m.mono")
    assert BYTES < (tmp_path / "m.mono").stat().st_size < 1.5 * BYTES
    del session
    package = monograph.load(tmp_path / "m.mono")
    for rows, numbers in zip((3, 4), expected, strict=True):
        np.testing.assert_array_equal(check(package, rows), numbers)
    assert addresses(package, 3) == addresses(package, 4)


def test_weights_under_the_name_of_others_are_refused(wide: Path, tmp_path: Path) -> None:
    """They would be shared with sessions of other models."""
    from hashlib import sha256

    session = monograph.load(wide)
    check(session, 3)
    session.save(tmp_path / "m.mono")
    del session
    with zipfile.ZipFile(tmp_path / "m.mono") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    (name,) = [n for n in members if n.startswith("weights/")]
    members[name] = bytes(len(members[name]))
    manifest["members"][name]["sha256"] = sha256(members[name]).hexdigest()
    members["manifest.json"] = json.dumps(manifest).encode()
    members["manifest.sha256"] = sha256(members["manifest.json"]).hexdigest().encode()
    with zipfile.ZipFile(tmp_path / "bad.mono", "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    with pytest.raises(ModelError, match="the package is damaged"):
        monograph.load(tmp_path / "bad.mono").run(fed(3))
