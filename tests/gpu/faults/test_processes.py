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

import numpy as np
import pytest
import torch

import monograph
from monograph.errors import ExecutionError
from monograph.runtime.pending import ready
from tests.gpu.faults.rig import ON_DEVICE, PLACE, Rig, equal, fault, grown, watched
from tests.gpu.gpu_models import linear

PROCESSES = 20 if ON_DEVICE else 2
AT_ONCE = 7
PARTS, SESSIONS = (8, 125) if ON_DEVICE else (1, 12)
ANOTHER = 40
"""A stream of the fake driver's."""
PATIENCE = 100


@pytest.fixture
def rig() -> Rig:
    return Rig()


def started(name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.gpu.faults.scripts", name, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str]) -> str:
    """Return what a process has printed; it must have ended well, and in time."""
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
    """Whatever is run after that is refused by an error of ours, and no run gives an answer."""
    text = ended(started("poisoned"))
    assert text.count(": told:") == 10, text


def test_fresh_processes_agree(tmp_path: Path) -> None:
    """The first one measures, where that is possible; all compute the bits of eager runs."""
    cache = str(tmp_path / "tuning.json")
    found = [ended(started("digest", cache))]
    while len(found) < PROCESSES:
        count = min(AT_ONCE, PROCESSES - len(found))
        for process in [started("digest", cache) for _ in range(count)]:
            found.append(ended(process))
    lines = [next(x for x in text.splitlines() if x.startswith("digest")) for text in found]
    assert len({bits for line in lines for bits in line.split()[1:3]}) == 1, lines
    assert {line.split()[3] for line in lines[1:]} == {"0"}  # only the first has measured
    assert not ON_DEVICE or lines[0].split()[3] != "0"


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


def memory_of(rig: Rig, session: monograph.Session) -> list[torch.Tensor]:
    """Return the memory of a fake device's runs, which its queue does not keep alive."""
    if ON_DEVICE:
        return []
    made = session._bindings.made()
    graphs = [t for one in made for r in one._launches.made.values() for t in r.memory]
    return [t for one in made for t in one.executable.memory] + graphs


HERE, THERE, FIRST_THERE = "here", "on another stream", "on another stream from the first"


@pytest.mark.parametrize("where", [HERE, THERE, FIRST_THERE])
@fault
def test_a_session_is_deleted_in_the_middle_of_a_replay(rig: Rig, where: str) -> None:
    """The run goes on with memory that nobody else gets before it is done."""
    device = rig.device()
    session, eager = rig.load(linear(), device), rig.load(linear(), device, capture="off")
    x = torch.randn(2, 33, generator=torch.Generator().manual_seed(0)).to(PLACE)
    right = [t.clone() for t in eager.run({"x": x})]
    if where != FIRST_THERE:
        equal(session.run({"x": x}), right)
    stream: Any = None if where == HERE else torch.cuda.Stream() if ON_DEVICE else ANOTHER
    gone = weakref.ref(session)
    rig.synchronise()
    with rig.busy(stream, turns=4):
        pending = session.run_async({"x": x}, stream=stream)
        assert not pending.done() or (ON_DEVICE and where == FIRST_THERE)  # to capture takes long
        memory = memory_of(rig, session)
        if memory and stream:  # an allocator would give it away before that stream is done
            assert all(stream in rig.graphs.inner.users[t.data_ptr()] for t in memory)
        if where == FIRST_THERE:  # such a pending run holds the session
            pending = ready(pending.result())
        del session
        gc.collect()
        assert gone() is None
        poison = rig.poison()
        rig.synchronise()
    equal(pending.result(), right)
    assert poison
    assert memory or ON_DEVICE


@pytest.mark.parametrize("where", [HERE, THERE])
@fault
def test_a_run_on_arrays_is_dropped_with_its_session(rig: Rig, where: str) -> None:
    """Nobody asks for its outputs: they must not be written to what is others' by then."""
    session, eager = rig.load(linear()), rig.load(linear(), capture="off")
    array = np.random.default_rng(0).standard_normal((2, 33), np.float32)
    right = eager.run({"x": array})
    np.testing.assert_array_equal(session.run({"x": array}), right)
    stream: Any = None if where == HERE else torch.cuda.Stream() if ON_DEVICE else ANOTHER
    (made,) = session._bindings.made()
    size = made._ring._buffers[0].block.untyped_storage().nbytes()
    del made
    gone = weakref.ref(session)
    rig.synchronise()
    with rig.busy(stream, turns=4):
        for _ in range(2):
            session.run_async({"x": array}, stream=stream)
        memory = memory_of(rig, session)
        del session
        gc.collect()
        assert gone() is None
        pinned = [rig.graphs.pinned(size).fill_(7) for _ in range(8)]
        poison = rig.poison()
        rig.synchronise()
    assert all(bool((block == 7).all()) for block in pinned), "a run has written to it"
    assert poison
    assert memory or ON_DEVICE
    another = rig.load(linear())
    for _ in range(2):
        np.testing.assert_array_equal(another.run({"x": array}), right)


@pytest.mark.parametrize("part", range(PARTS))
@fault
def test_sessions_come_and_go(rig: Rig, part: int, tmp_path: Path) -> None:
    """Loaded, replayed and dropped: as much is held after many as after a few.

    On a device a thousand in all, 125 by each of eight tests, so that processes can share them.
    """
    model, eager = linear(), rig.load(linear(), capture="off")
    x = torch.randn(2 + part, 33, generator=torch.Generator().manual_seed(part)).to(PLACE)
    right = [t.cpu() for t in eager.run({"x": x})]
    held = []
    for turn in range(SESSIONS):
        session = rig.load(model, cache_dir=str(tmp_path), capture="require")
        for given in (x, x, x.cpu().numpy()):
            found = session.run({"x": given})
            equal([torch.as_tensor(y).cpu() for y in found], right)
        assert session.stats["captures"] == 2
        del session, found
        if turn in (SESSIONS // 3, SESSIONS - 1):
            held.append(rig.held())
    assert grown(*held) == {}


def test_a_hang_would_be_seen() -> None:
    """The timeout ends tests that hang, and says where they were."""
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
