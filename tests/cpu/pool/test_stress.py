"""Sessions shared by threads, forked, dropped, left idle: right answers, no leak, no hang."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from tests.cpu.pool.stress import HANG, Crowd, everyone_shares, load, make_jobs, rows

ROOT = Path(__file__).parents[3]
SECONDS = 3.0


def test_many_threads_on_many_sessions() -> None:
    with everyone_shares():
        crowd = Crowd(make_jobs(), threads=8)
        crowd.run(SECONDS)
    assert crowd.problems == []
    assert set(crowd.runs) == set(range(-1, len(crowd.jobs))), "some job never ran"


def test_the_bits_of_a_result_do_not_depend_on_who_else_runs() -> None:
    """Eight threads on one session; the jobs compare bits."""
    with everyone_shares():
        crowd = Crowd(make_jobs()[:1], threads=8)
        crowd.run(1.0)
    assert crowd.problems == []


def rows_of(n: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(n).normal(size=(n, 37)).astype(np.float32)}


def test_the_least_recently_used_shape_goes() -> None:
    session = load(rows(), 1, max_cached_shapes=3, specialise="now")
    first = {n: session.run(rows_of(n))[0] for n in (1, 2, 3)}
    made = {n: weakref.ref(session.executable(rows_of(n))) for n in (1, 2, 3)}
    session.run(rows_of(1))  # a run like one before takes a short cut, and counts as well
    first[4] = session.run(rows_of(4))[0]
    gc.collect()
    assert made[2]() is None, "the least recently used is still held"
    assert made[1]() is session.executable(rows_of(1))
    assert made[3]() is session.executable(rows_of(3))
    assert session.stats["compiled"] == 3
    for n, answer in first.items():
        assert np.array_equal(session.run(rows_of(n))[0], answer)
    assert session.stats["compiled"] == 3
    assert session.stats["runs"] == 9, "runs of shapes that went are forgotten"


# What follows runs in processes of its own.

HEAD = """
import gc, os, sys, threading, time, multiprocessing
import numpy as np
from tests.cpu.pool.stress import *
everyone_shares().__enter__()
"""


def run_script(body: str) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", HEAD + body],
        cwd=ROOT,
        timeout=HANG,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_while_sessions_run() -> None:
    run_script("""
jobs = make_jobs()
crowd = Crowd(jobs, 4)
for thread in crowd.threads:
    thread.start()
for turn in range(6):
    time.sleep(0.05 * turn)
    child = os.fork()
    if child == 0:
        wrong = [job.again(i) for job in jobs for i in range(len(job.given))]
        fresh = Job(load(rows(7), 2), [{"x": np.ones((2, 37), np.float32)}])
        fresh.learn()
        os._exit(sum(w is not None for w in [*wrong, fresh.again(0)]))
    assert os.waitpid(child, 0)[1] == 0, turn
crowd.stop.set()
for thread in crowd.threads:
    thread.join(HANG)
assert not crowd.problems, crowd.problems
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_finds_no_lock_that_another_thread_held() -> None:
    """Those of sessions for as long as they compile, that of the compiler for a moment."""
    run_script("""
import signal
from llvmlite.binding import ffi
from monograph.runtime import forking
session = load(rows(), 2)
session.run({"x": np.ones((1, 37), np.float32)})
ready = threading.Event()
def hold():
    locks = list(forking._locks)
    assert locks
    for lock in locks:
        lock.acquire()
    with ffi.lib._lock:
        ready.set()
        time.sleep(0.3)
    time.sleep(HANG)
threading.Thread(target=hold, daemon=True).start()
ready.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    session.run({"x": np.ones((5, 37), np.float32)})
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
sys.stdout.flush()
os._exit(0)
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_what_is_being_imported(tmp_path: Path) -> None:
    """Sessions import the compiler when they first need it: a child must not find it locked."""
    (tmp_path / "slow.py").write_text("import time, sys; sys.begun.set(); time.sleep(0.5)")
    run_script(f"""
import signal
from monograph.runtime.forking import import_whole
sys.path.insert(0, {str(tmp_path)!r})
sys.begun = threading.Event()
threading.Thread(target=import_whole, args=("slow",), daemon=True).start()
sys.begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    import slow
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_while_a_session_first_compiles() -> None:
    run_script("""
import signal
session = load(rows(), 2)
feeds = {"x": np.ones((3, 37), np.float32)}
threading.Thread(target=session.run, args=(feeds,), daemon=True).start()
children = []
for turn in range(6):
    time.sleep(0.02)
    children.append(os.fork())
    if children[-1] == 0:
        signal.alarm(60)
        session.run(feeds)
        os._exit(0)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_pool_of_forked_processes() -> None:
    run_script("""
jobs = make_jobs()
def work(seed):
    generator = np.random.default_rng(seed)
    for _ in range(20):
        job = jobs[generator.integers(len(jobs))]
        wrong = job.again(int(generator.integers(len(job.given))))
        if wrong:
            return wrong
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(work, range(4)) == [None] * 4
assert work(9) is None
""")


def test_the_interpreter_ends_while_threads_run() -> None:
    """Daemon threads inside native code do not keep it, and it leaves them their code."""
    run_script("""
crowd = Crowd(make_jobs()[:3], 4)
for thread in crowd.threads[1:]:
    thread.start()
time.sleep(0.3)
""")


def test_an_idle_session_takes_no_time() -> None:
    """The bound is a tenth of what one thread that never sleeps would take."""
    used = run_script("""
jobs = make_jobs()
for job in jobs:
    for _ in range(20):
        job.again(0)
time.sleep(0.2)
start = time.process_time()
time.sleep(1.0)
print(time.process_time() - start)
""")
    assert float(used) < 0.1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_sessions_that_come_and_go_leave_nothing() -> None:
    """Memory, threads and open files after many more of them, against after a few."""
    printed = run_script("""
def held():
    gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), *(
        len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")
    )
def cycle(seed):
    session = load(rows(seed), 2)
    for n in (1, 9):
        session.run({"x": np.ones((n, 37), np.float32)})
for seed in range(6):
    cycle(seed)
before = held()
for seed in range(24):
    cycle(seed)
after = held()
print(*before, *after)
""")
    memory, tasks, files, memory_after, tasks_after, files_after = map(int, printed.split())
    assert (tasks_after, files_after) == (tasks, files)
    # 48 executables: 100 kB for each that is kept would be 5 MB.
    assert memory_after - memory < 2_500_000


def test_runs_leave_nothing() -> None:
    session = load(rows(), 2)
    feeds = rows_of(9)
    session.run(feeds)
    executable = session.executable(feeds)
    blocks = []
    for _ in range(3):
        for _ in range(200):
            session.run(feeds)
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert blocks[-1] - blocks[0] < 200, "objects that pile up, run after run"
    assert len(executable._free) == 1, "a workspace for each run that goes on, and no more"
