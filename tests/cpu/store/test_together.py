"""Processes that start together on an empty cache share one compilation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import monograph
from monograph.runtime.cache import object_cache
from monograph.runtime.cache.object_cache import DiskCache
from tests.cpu.store.kept import check, found

ROOT = Path(__file__).parent.parent.parent.parent
KEY = "ab" * 32
PROCESS = """
import sys, time
import monograph
from tests.cpu.store.kept import check, found

stages = []
while time.time() < float(sys.argv[2]):
    time.sleep(0.001)
session = monograph.load(sys.argv[1], progress=lambda stage, *_: stages.append(stage))
check(session)
print(found(session), int("compile" in stages))
"""


@pytest.fixture
def disk(cache: Path) -> DiskCache:
    return DiskCache(cache, 1 << 20)


def test_processes_that_start_together_compile_once(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", str(tmp_path / "shared"))
    command = [sys.executable, "-c", PROCESS, str(path), str(time.time() + 2.0)]
    with ExitStack() as stack:
        made = [
            stack.enter_context(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE))
            for _ in range(3)
        ]
        told = sorted(p.communicate(timeout=120)[0].split() for p in made)
    assert [p.returncode for p in made] == [0, 0, 0]
    # A process that comes late finds the entry without a claim.
    assert told == [[b"0", b"1"], [b"1", b"0"], [b"1", b"0"]]
    assert not list((tmp_path / "shared" / "claims").iterdir())


def test_a_session_waits_for_the_compilation_of_another(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[str] = []
    first, second = (
        monograph.load(path),
        monograph.load(path, progress=lambda stage, *_: stages.append(stage)),
    )
    inside, go = threading.Event(), threading.Event()
    compile_ = first._bindings.compiled

    def slowly(feeds: dict[str, object]) -> object:
        inside.set()
        assert go.wait(60)
        return compile_(feeds)

    monkeypatch.setattr(first._bindings, "compiled", slowly)
    runs = [threading.Thread(target=check, args=(s,)) for s in (first, second)]
    runs[0].start()
    assert inside.wait(60)
    runs[1].start()
    while "wait" not in stages:
        time.sleep(0.001)
    go.set()
    for run in runs:
        run.join()
    assert (found(first), found(second)) == (0, 1)
    assert "compile" not in stages


def test_an_owner_without_an_entry_frees_all_that_wait(disk: DiskCache) -> None:
    waiting, both = threading.Barrier(3), threading.Barrier(2)

    def wait() -> None:
        told: list[bool] = []

        def once() -> None:
            if not told:
                told.append(True)
                waiting.wait(60)

        with disk.claimed(KEY, once) as waited:
            assert waited
            both.wait(60)  # both are inside at once

    others = [threading.Thread(target=wait) for _ in range(2)]
    with disk.claimed(KEY, lambda: None) as waited:
        assert not waited
        for other in others:
            other.start()
        waiting.wait(60)
    for other in others:
        other.join(60)
        assert not other.is_alive()
    assert not both.broken


def test_the_claim_of_a_process_that_died_is_free(disk: DiskCache, tmp_path: Path) -> None:
    died = f"""
import os
from pathlib import Path
from monograph.runtime.cache.object_cache import DiskCache
with DiskCache(Path({str(tmp_path / "cache")!r}), 1 << 20).claimed({KEY!r}, lambda: None):
    os._exit(0)
"""
    subprocess.run([sys.executable, "-c", died], cwd=ROOT, check=True, timeout=120)
    assert (tmp_path / "cache" / "claims" / KEY).exists()
    with disk.claimed(KEY, lambda: pytest.fail("waits for nobody")) as waited:
        assert not waited


def test_a_child_that_kept_the_lock_of_a_dead_owner_stops_nobody(
    disk: DiskCache, tmp_path: Path
) -> None:
    owner = subprocess.Popen([sys.executable, "-c", ""])
    owner.wait()
    place = tmp_path / "cache" / "claims" / KEY
    with disk.claimed(KEY, lambda: None):
        place.write_text(f'[{owner.pid}, "{object_cache.platform.node()}"]'.ljust(512))
        with disk.claimed(KEY, lambda: None) as waited:
            assert waited


def test_a_wait_has_an_end(disk: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_cache, "CLAIM_SECONDS", 0.05)
    with disk.claimed(KEY, lambda: None), disk.claimed(KEY, lambda: None) as waited:
        assert waited


def test_a_claim_survives_a_failure_inside(disk: DiskCache, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), disk.claimed(KEY, lambda: None):
        raise KeyboardInterrupt
    assert not os.listdir(tmp_path / "cache" / "claims")
    with disk.claimed(KEY, lambda: pytest.fail("waits for nobody")) as waited:
        assert not waited


def test_without_locks_every_process_compiles(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_cache, "fcntl", None)
    session = monograph.load(path)
    check(session)
    assert found(session) == 0
