"""Two tiers: exact code is compiled in another process and takes over between two runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.codegen.llvm.module.barrier import WEIGHTS
from monograph.runtime.cpu import background as background_module
from monograph.runtime.cpu.background import WORKER, BackgroundCompiler
from monograph.runtime.cpu.tiers import EXPECTED_GAIN, TierPolicy
from monograph.session import Session
from tests.cpu.store.kept import fed, softmax, write
from tests.test_session import model_of

WIDE = np.random.default_rng(1).standard_normal((8, 4096)).astype(np.float32) / 8
PATIENCE = 120.0
"""The seconds after which a test gives up: nothing may hang."""


def made() -> onnx.ModelProto:
    return model_of(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Softmax", ["a"], ["y"], axis=-1),
        ],
        [("x", TensorProto.FLOAT, ["N", 8])],
        [("y", TensorProto.FLOAT, ["N", 4096])],
        [numpy_helper.from_array(WIDE, "w")],
    )


NORMAL = WORKER.replace("main()", "specialiser.be_modest = lambda: None; main()").replace(
    "import main", "import main; from monograph import specialiser"
)
"""The process with normal priority: a test machine may be busy for minutes."""


@pytest.fixture(autouse=True)
def normal_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_module, "WORKER", NORMAL)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def eager(model: object, cache: Path, **options: object) -> Session:
    """Load a model whose shapes are worth exact code after a few runs."""
    session = monograph.load(model, specialise="auto", threads=2, cache_dir=cache, **options)
    tiers = session._bindings.tiers
    assert tiers is not None
    tiers.policy.seconds = 0.0
    return session


def check(session: Session, rows: int) -> np.ndarray:
    (given,) = session.run(fed(rows))
    np.testing.assert_allclose(given, softmax(fed(rows)["x"], WIDE), rtol=1e-4)
    return given


def until(session: Session, met: Callable[[dict], bool], rows: int = 3) -> dict:
    """Run until something about the background is met; return what it is."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        check(session, rows)
        found = session.stats["background"]
        if met(found):
            return found
        time.sleep(0.01)
    pytest.fail(f"not met: {session.stats['background']}")


@pytest.mark.parametrize("kind", ["file", "bytes", "external"])
def test_exact_code_takes_over(tmp_path: Path, cache: Path, kind: str) -> None:
    path = tmp_path / "m.onnx"
    external = {"save_as_external_data": True, "size_threshold": 0} if kind == "external" else {}
    onnx.save(made(), path, **external)
    session = eager(path.read_bytes() if kind == "bytes" else path, cache)
    before = [check(session, 3) for _ in range(3)]
    assert all(np.array_equal(x, before[0]) for x in before)
    found = until(session, lambda b: b["done"] == 1)
    assert found == {"done": 1, "waiting": 0, "failed": 0, "reasons": []}
    after = [check(session, 3) for _ in range(2)]
    assert np.array_equal(*after)
    stats = session.stats
    (shape,) = stats["shapes"]
    assert (shape["tier"], shape["shapes"]) == ("exact", {"x": [3, 8]})
    assert shape["runs"] == stats["runs"]
    assert stats["compile_seconds"]["exact"] == 0, "nothing exact was compiled here"
    assert stats["compile_seconds"]["background"] > 0
    check(session, 5)
    assert [s["tier"] for s in session.stats["shapes"]] == ["exact", "any shape"]
    # A later session finds the exact code, and compiles nothing.
    again = eager(path.read_bytes() if kind == "bytes" else path, cache)
    until(again, lambda b: b["done"] == 1)
    assert np.array_equal(check(again, 3), after[0])
    assert sum(again.stats["compile_seconds"].values()) == 0


def test_a_failed_process_is_counted_and_runs_go_on(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = BackgroundCompiler()
    monkeypatch.setattr("monograph.runtime.cpu.tiers.background", own)
    monkeypatch.setattr(background_module, "WORKER", "raise SystemExit(3)")
    session = eager(write(tmp_path / "m.onnx", made()), cache)
    found = until(session, lambda b: b["failed"] == 1)
    assert found["reasons"] == ["the compiling process ended with code 3"]
    assert "code for any shape stays in use" in caplog.text
    monkeypatch.setattr(background_module, "WORKER", NORMAL)
    for _ in range(10):
        check(session, 5)
    until(session, lambda b: b["done"] == 1, rows=5)
    own.stop()


def test_a_model_that_has_changed_fails_in_the_process(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "m.onnx", made())
    session = eager(path, cache)
    check(session, 3)
    path.write_bytes(path.read_bytes() + b"\x00")
    found = until(session, lambda b: b["failed"] == 1)
    assert "has changed" in found["reasons"][0]


def test_reasons_for_one_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.onnx", made())

    def reason(model: object = path, **options: object) -> str:
        session = monograph.load(model, **{"specialise": "auto", **options})
        for _ in range(3):
            check(session, 3)
        return session.stats["background"]

    assert reason(cache_dir="") == "there is no cache directory"
    assert reason(made()) == "the model is neither a file nor bytes"
    assert "background" not in monograph.load(path, dims={"N": 3}).stats
    assert reason(specialise="off") == 'specialise="off"'
    with monkeypatch.context() as patch:
        patch.setattr(sys, "frozen", True, raising=False)
        assert reason().startswith("a frozen program has no Python")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "")
        assert reason().startswith("the Python interpreter of this process")
    package = tmp_path / "m.mono"
    session = monograph.load(path, specialise="off")
    check(session, 3)
    session.save(package)
    assert reason(package) == "a package has no model"


def test_no_more_shapes_are_specialised_than_are_kept(tmp_path: Path, cache: Path) -> None:
    session = eager(write(tmp_path / "m.onnx", made()), cache, max_cached_shapes=1)
    until(session, lambda b: b["done"] == 1)
    for rows in (4, 5):
        for _ in range(12):
            check(session, rows)
    assert session.stats["background"] == {"done": 1, "waiting": 0, "failed": 0, "reasons": []}
    tiers = {tuple(s["shapes"]["x"]): s["tier"] for s in session.stats["shapes"]}
    assert tiers == {(3, 8): "exact", (4, 8): "any shape", (5, 8): "any shape"}


def test_policy_repays_compilation() -> None:
    policy = TierPolicy(seconds=2.0)
    assert policy.due == 2.0 / EXPECTED_GAIN
    policy.learn_gain(1.0, 0.5)
    assert policy.due < 2.0 / EXPECTED_GAIN
    for _ in range(50):
        policy.learn_gain(1.0, 1.1)
    assert policy.due == float("inf"), "exact code that gains nothing is not compiled"


SCRIPT = """
import multiprocessing, os, sys, time
print("start", flush=True)
import numpy as np, monograph
from monograph.runtime.cpu import background as module
from monograph.runtime.cpu.background import background
module.WORKER = sys.argv[5]

def work(told):
    session = monograph.load(sys.argv[1], specialise="auto", threads=2, cache_dir=sys.argv[2])
    feeds = {"x": np.ones((3, 8), "f4")}
    session.run(feeds)
    session._bindings.tiers.policy.seconds = 0.0
    end = time.monotonic() + 120
    while time.monotonic() < end:
        session.run(feeds)
        if sys.argv[3] == "begin" and background._process is not None:
            break
        if session.stats["background"]["done"]:
            break
        time.sleep(0.01)
    told(session.stats["background"], background._process.pid)

def tell(found, pid):
    print(found["done"], pid, flush=True)

if sys.argv[3] == "daemon":
    process = multiprocessing.get_context("fork").Process(target=work, args=(tell,), daemon=True)
    process.start()
    process.join()
elif sys.argv[3] == "forked":
    work(tell)
    if os.fork() == 0:
        assert background._process is None
        monograph.load(sys.argv[1], specialise="auto", threads=2, cache_dir=sys.argv[2]).run(
            {"x": np.ones((7, 8), "f4")}
        )
        os._exit(0)
    assert os.wait()[1] == 0
else:
    work(tell)
if sys.argv[3] == "begin":
    time.sleep(float(sys.argv[4]))
"""


def gone(pid: int) -> bool:
    """Wait until a process has ended."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True  # a container may have nobody who collects orphans
        time.sleep(0.01)
    return False


def start(path: Path, cache: Path, *how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path), str(cache), *how, NORMAL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("how", ["daemon", "forked", "begin"])
def test_the_process_ends_with_its_owner(tmp_path: Path, cache: Path, how: str) -> None:
    path = write(tmp_path / "m.onnx", made())
    script = start(path, cache, how, "0")
    told, failure = script.communicate(timeout=PATIENCE)
    assert script.returncode == 0, failure
    assert failure == ""
    first, second = told.splitlines()
    assert first == "start", "the script runs once"
    done, pid = map(int, second.split())
    assert done == (how != "begin")
    assert gone(pid)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_process_ends_when_its_owner_is_killed(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "m.onnx", made())
    script = start(path, cache, "begin", "1000")
    assert script.stdout is not None
    assert script.stdout.readline() == "start\n"
    pid = int(script.stdout.readline().split()[1])
    os.kill(script.pid, signal.SIGKILL)
    script.communicate()
    assert gone(pid)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_process_takes_only_what_nobody_wants() -> None:
    script = """
import os
from pathlib import Path
from monograph.specialiser import be_modest
be_modest()
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) == os.SCHED_IDLE)
print(Path("/proc/self/oom_score_adj").read_text())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["19", "True", "1000"], done.stderr


def test_memory_of_runs_does_not_belong_to_one_shape(tmp_path: Path, cache: Path) -> None:
    session = monograph.load(write(tmp_path / "m.onnx", made()), specialise="off", cache_dir=cache)
    first = session.executable(fed(3))
    check(session, 3)
    (code,) = session._bindings.variants.codes
    assert first._addresses is code.memory[2]
    assert code.workspaces[0].slots[WEIGHTS] == code.memory[2].ctypes.data
