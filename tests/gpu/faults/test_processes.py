"""Forked children, devices that have failed, processes that have to agree, sessions in copies."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from monograph.errors import ExecutionError
from tests.gpu.faults.rig import ON_DEVICE, PLACE, Rig, equal, fault, watched
from tests.gpu.gpu_models import linear

PROCESSES = 20 if ON_DEVICE else 2
AT_ONCE = 7
PATIENCE = 100


@pytest.fixture
def rig() -> Rig:
    return Rig()


def started(name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.gpu.faults.scripts", name, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str]) -> str:
    """What a process has printed; it must have ended well, and in time."""
    try:
        text, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, text
    return text


def test_a_fork_after_the_first_use() -> None:
    ended(started("fork"))


@pytest.mark.skipif(not ON_DEVICE, reason="needs a device that can fail")
def test_an_error_of_the_device_poisons_the_context() -> None:
    text = ended(started("poisoned"))
    assert text.count("raised") == 4
    assert "raised ExecutionError" in text, text


def test_fresh_processes_agree(tmp_path: Path) -> None:
    """The first one measures, where that is possible; all compute the same bits."""
    cache = str(tmp_path / "tuning.json")
    found = [ended(started("digest", cache))]
    while len(found) < PROCESSES:
        count = min(AT_ONCE, PROCESSES - len(found))
        for process in [started("digest", cache) for _ in range(count)]:
            found.append(ended(process))
    lines = [next(x for x in text.splitlines() if x.startswith("digest")) for text in found]
    assert len({line.split()[1] for line in lines}) == 1
    assert {line.split()[2] for line in lines[1:]} == {"0"}  # only the first has measured


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
@fault
def test_copies_are_refused(rig: Rig, way: Any) -> None:
    case, session = rig.case(), rig.load(linear())
    case.check()
    x = torch.ones(2, 33, device=PLACE)
    right = [t.clone() for t in session.run({"x": x})]
    for one in (case.replay, session):
        with pytest.raises(ExecutionError, match="neither copied nor pickled"):
            way(one)
    case.check(1)
    equal(session.run({"x": x}), right)


@fault
def test_a_session_is_deleted_in_the_middle_of_a_replay(rig: Rig) -> None:
    session = rig.load(linear())
    x = torch.ones(2, 33, device=PLACE)
    right = [t.clone() for t in session.run({"x": x})]
    gone = weakref.ref(session)
    if not ON_DEVICE:  # the fake driver's queue holds no memory
        equal(session.run_async({"x": x}).result(), right)
        del session
        gc.collect()
        assert gone() is None
        return
    with rig.busy():
        pending = session.run_async({"x": x})
        del session
        gc.collect()
        assert gone() is None
        poison = rig.poison()
        rig.synchronise()
    equal(pending.result(), right)
    assert poison


@fault
def test_sessions_come_and_go(rig: Rig) -> None:
    """Loaded, replayed and dropped: as much is held after many as after a few."""
    model, x = linear(), torch.ones(2, 33, device=PLACE)
    held = []
    turns = 60 if ON_DEVICE else 6
    for turn in range(turns):
        session = rig.load(model)
        session.run({"x": x})
        del session
        if turn in (turns // 3, turns - 1):
            held.append(rig.held())
    assert held[0] == held[1]


def test_a_hang_would_be_seen() -> None:
    """What ends tests that hang does end them, and says where they were."""
    script = (
        "import tests.gpu.faults.rig as rig, time\n"
        "rig.HANGS = 0.2\n"
        "with rig.watched():\n"
        "    time.sleep(30)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "most recent call first" in done.stderr
    with watched():
        pass


def test_a_leak_would_be_seen(rig: Rig) -> None:
    """The check that every fault test ends with does find a graph that is held."""
    kept: list[Any] = []

    @fault
    def leaks(rig: Rig) -> None:
        case = rig.case()
        case.check()
        kept.append(case)

    with pytest.raises(AssertionError, match="handles"):
        leaks(rig)
    kept.clear()
