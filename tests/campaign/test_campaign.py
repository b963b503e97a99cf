"""A bounded number of a campaign's cases, and tests of its tools: planted faults are found.

`python -m tests.campaign` runs as many as one likes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import monograph
from tests.campaign import judge as judging
from tests.campaign import kinds, nnsmith_cases, pool, sides
from tests.campaign.case import Case, Node, finish, single_model, tensor
from tests.campaign.differences import TABLE, explain
from tests.campaign.draw import Draw
from tests.campaign.findings import save, shrunk
from tests.campaign.judge import Problem, Verdict, judge
from tests.campaign.kinds import KINDS
from tests.campaign.minimise import minimise
from tests.campaign.pool import Worker, waited_for_cores
from tests.campaign.run import Report, campaign, died
from tests.campaign.script import write
from tests.campaign.sides import Outcome, machines
from tests.samples import SEED

ROOT = Path(__file__).parents[2]
COUNTS = {"single": 60, "dynamic": 12, "counted": 12, "zero": 12}
SIDES = ("cpu", "onnxruntime")


@pytest.mark.parametrize(("kind", "count"), COUNTS.items())
def test_cases_agree_on_every_side(kind: str, count: int, tmp_path: Path):
    print(f"seed {SEED}: set MONOGRAPH_TEST_SEED to repeat or to vary")
    report = campaign(kind, count, SEED, 1, SIDES, folder=tmp_path)
    assert report.done == count
    assert not report.findings, f"seed {SEED}: {report.texts}"
    # Cases that are all refused, or that only we can run, would test nothing.
    assert report.counts["ran"] > 0.9 * count
    assert report.counts["no second opinion"] < 0.5 * count


def test_graphs_of_changing_sizes_are_right_by_code_for_any_shape(tmp_path: Path):
    print(f"seed {SEED}: set MONOGRAPH_TEST_SEED to repeat or to vary")
    for kind in ("dynamic", "zero"):
        report = campaign(kind, 8, SEED, 1, ("cpu-any",), folder=tmp_path)
        assert report.done == 8
        assert not report.findings, f"seed {SEED}: {report.texts}"


# Generators -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COUNTS)
def test_a_case_repeats(kind: str):
    once, again = (KINDS[kind](3, 5) for _ in range(2))
    assert once.digest() == again.digest()
    for a, b in zip(once.runs, again.runs, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    assert KINDS[kind](3, 6).digest() != once.digest()


def test_single_ops_are_many():
    cases = [KINDS["single"](7, i) for i in range(1200)]
    assert len({c.ops[0] for c in cases}) > 150
    types = {x.dtype.name for c in cases for x in c.runs[0].values()}
    assert {"float32", "float16", "bfloat16", "float64", "int8", "uint64", "bool"} <= types
    sizes = {n for c in cases for x in c.runs[0].values() for n in x.shape}
    assert {0, 1, 17} <= sizes
    assert any(c.special for c in cases)


def test_dynamic_cases_change_their_shapes_and_come_back():
    for i in range(8):
        case = KINDS["dynamic"](7, i)
        shapes = [tuple(x.shape for x in f.values()) for f in case.runs]
        assert shapes[0] in shapes[1:]
    assert any(
        len({tuple(x.shape for x in f.values()) for f in KINDS["dynamic"](7, i).runs}) > 1
        for i in range(8)
    )


def test_counted_cases_find_none_and_all():
    found = set()
    for i in range(12):
        case = KINDS["counted"](7, i)
        session = monograph.load(case.model, "reference")
        for feeds in case.runs:
            found |= {n for y in session.run(feeds) for n in np.asarray(y).shape}
    assert {0, 1} <= found
    assert max(found) > 2


# Faults that are planted ------------------------------------------------------------------------


def graph_case(*nodes: onnx.NodeProto, special: bool = False) -> Case:
    """A case of two inputs and one output."""
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4, 6]) for n in ("a", "b")]
    model = finish(nodes, infos, [nodes[-1].output[0]], [tensor(np.float32(2), "two")], 21)
    generator = np.random.default_rng(0)
    feeds = {n: generator.normal(size=(4, 6)).astype(np.float32) for n in ("a", "b")}
    return Case("single", 0, 0, model, (feeds,), special)


LONG = (
    helper.make_node("Mul", ["a", "two"], ["c"]),
    helper.make_node("Add", ["c", "b"], ["d"]),
    helper.make_node("Relu", ["d"], ["e"]),
    helper.make_node("Transpose", ["e"], ["f"], perm=[1, 0]),
)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch):
    """Has the CPU target make every Relu wrong by a little, in this process."""
    run_side = sides.run_side

    def wrong(side: str, case: Case, turn: int) -> Any:
        for name, outcomes in run_side(side, case, turn):
            if side == "cpu" and "Relu" in case.ops:
                outcomes = [
                    Outcome({n: _nudged(y) for n, y in (o.outputs or {}).items()}) for o in outcomes
                ]
            yield name, outcomes

    monkeypatch.setattr(judging, "run_side", wrong)


def _nudged(y: np.ndarray) -> np.ndarray:
    y = np.array(y)
    y.reshape(-1)[-1:] += 1e-3
    return y


@pytest.mark.usefixtures("planted")
def test_a_planted_difference_is_found_and_made_small():
    case = graph_case(*LONG)
    found = judge(case, SIDES, 0).findings
    assert [p.key for p in found] == [("cpu", "wrong")]
    small = minimise(
        case, lambda c: any(p.key == found[0].key for p in judge(c, ["cpu"], 0).findings)
    )
    assert "Relu" in small.ops
    assert len(small.ops) <= 2
    assert sum(x.size for x in small.runs[0].values()) <= 2


def test_a_side_that_differs_by_rounding_agrees():
    assert not judge(graph_case(*LONG), SIDES, 0).problems


def test_a_refusal_of_one_side_is_a_finding(monkeypatch: pytest.MonkeyPatch):
    case = graph_case(*LONG)
    refused = [Outcome(error="UnsupportedError: no")]
    right = [Outcome({"f": np.zeros((6, 4), np.float32)})]
    found = judging.compare(case, "cpu", refused, right)
    assert found is not None
    assert found.sort == "refused"
    found = judging.compare(case, "onnxruntime", right, refused)
    assert found is not None
    assert found.sort == "ran"
    # It may lack what we have.
    assert judging.compare(case, "onnxruntime", refused, right) is None


def test_an_unforeseen_error_is_a_fault():
    outcome = sides.failed(KeyError("x"))
    assert outcome.fault
    assert not sides.failed(monograph.errors.InferError("ranks differ")).fault
    assert judging.compare(graph_case(*LONG), "cpu", [outcome], [Outcome({})]) is not None


def test_a_script_shows_the_difference_alone(tmp_path: Path):
    """A script of what ONNX Runtime and the reference disagree on tells so by itself."""
    node = Node("NonZero", [np.array(1.0, np.float32)])
    model, feeds = single_model(node, Draw(np.random.default_rng(0)))
    case = Case("single", 0, 0, model, (feeds,))
    problem = Problem("onnxruntime", "wrong", "y0: shape: expected [0, 1], given [1, 1]")
    assert "DIFFERENT" in _run_script(tmp_path, write(case, problem))


def test_a_script_rebuilds_every_kind_of_model(tmp_path: Path):
    for kind in COUNTS:
        case = KINDS[kind](SEED, 3)
        problem = Problem(f"cpu ({machines()[0][0]}, 1 threads)", "wrong", "nothing")
        assert "same" in _run_script(tmp_path, write(case, problem)).splitlines()


def _run_script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run([sys.executable, "-W", "ignore", path], capture_output=True, text=True,
                          env=environment, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# Workers ----------------------------------------------------------------------------------------


class Dying:
    """A case that ends the process when it is unpickled there."""

    def __reduce__(self) -> Any:
        return os.abort, ()


def test_a_worker_that_dies_is_a_finding_and_another_follows():
    worker = Worker(["cpu"])
    reply = worker.ask({"case": Dying(), "turn": 0})
    assert reply["died"] == "crash"
    assert "SIGABRT" in reply["why"]
    assert died(reply).sort == "crash"
    reply = worker.ask({"kind": "single", "seed": 1, "number": 1, "turn": 0})
    assert reply["verdict"].counts
    worker.stop()


def test_a_crash_of_one_side_hides_no_other(monkeypatch: pytest.MonkeyPatch):
    """The rest of the sides is judged again, by another process."""
    asked = []

    def ask(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
        asked.append(tuple(request.get("sides", worker.sides)))
        if "onnxruntime" in asked[-1]:
            return {"died": "crash", "side": "onnxruntime", "why": "SIGSEGV"}
        return {"verdict": Verdict({"ran": 1}, (Problem("cpu", "wrong", "y"),)), "ops": ["Relu"]}

    monkeypatch.setattr(Worker, "ask", ask)
    report = campaign("single", 1, 1, 1, SIDES)
    assert asked == [SIDES, ("cpu",)]
    assert {key[:2] for key in report.findings} == {("onnxruntime", "crash"), ("cpu", "wrong")}


def test_a_worker_that_hangs_is_a_finding():
    worker = Worker(["cpu"], patience=0.5)
    reply = worker.ask({"kind": "single", "seed": 1, "number": 1, "turn": 0})
    assert reply["died"] == "hang"
    worker.stop()


def test_a_worker_that_waits_for_a_core_does_not_hang(monkeypatch: pytest.MonkeyPatch):
    """Nearly all of its time it waits: another load has the cores."""
    monkeypatch.setattr(pool, "waited_for_cores", lambda pid: 0.999 * time.monotonic())
    worker = Worker(["cpu"], patience=0.5)
    reply = worker.ask({"kind": "single", "seed": 1, "number": 1, "turn": 0})
    assert reply["verdict"].counts
    worker.stop()


@pytest.mark.parametrize(("ends", "hangs"), [(620.0, False), (900.0, True)])
def test_a_worker_does_not_hang_while_the_campaign_is_stopped(
    ends: float, hangs: bool, monkeypatch: pytest.MonkeyPatch
):
    """Both stop together (Ctrl-Z, a machine that sleeps), and the wait for a look goes on."""
    now = 0.0

    class Over(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now
            assert timeout is not None
            now += timeout if now else 600.0
            return now > ends

    monkeypatch.setattr(pool, "waited_for_cores", lambda pid: 0.0)
    monkeypatch.setattr(pool.time, "monotonic", lambda: now)
    hung = threading.Event()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        Worker(["cpu"], patience=60.0)._watch(process, hung, Over())
        assert hung.is_set() == hangs
        process.kill()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell")
def test_time_without_a_core_is_counted():
    assert 0 <= waited_for_cores(os.getpid()) < time.monotonic()
    assert waited_for_cores(-1) == 0


def test_a_generator_that_fails_is_a_finding():
    worker = Worker(["cpu"])
    reply = worker.ask({"kind": "no such kind", "seed": 1, "number": 1, "turn": 0})
    assert "KeyError" in reply["generator"]
    worker.stop()


class Scripted:
    """A worker that finds what has more than one element in its first feed."""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        case = request["case"]
        large = any(x.size > 1 for x in case.runs[0].values())
        problems = (Problem("cpu (host, 1 threads)", "wrong", "y"),) if large else ()
        return {"verdict": Verdict({}, problems), "ops": case.ops}


def test_a_finding_is_saved_with_its_model_feeds_and_script(tmp_path: Path):
    case, problem = graph_case(*LONG), Problem("cpu (host, 1 threads)", "wrong", "y: wrong")
    script = save(case, problem, Scripted(), tmp_path, 0, small=True)  # type: ignore[arg-type]
    home = script.parent
    assert onnx.load(home / "model.onnx").graph.node[0].op_type == "Mul"
    assert set(np.load(home / "run0.npz")) == {"a", "b"}
    compile(script.read_text(), str(script), "exec")
    small, _ = shrunk(case, problem, Scripted(), 0)  # type: ignore[arg-type]
    assert sum(x.size for x in small.runs[0].values()) <= 3


def test_findings_are_counted_by_side_sort_and_op(capsys: pytest.CaptureFixture[str]):
    report = Report("single", 1)
    problem = Problem("cpu (avx2, 2 threads)", "wrong", "y")
    report.add(4, Verdict({"ran": 1}, (problem,)), ["Relu"])
    report.add(
        5, Verdict({"ran": 1}, (Problem("onnxruntime", "wrong", "y", reason="known"),)), ["Add"]
    )
    assert report.findings == {("cpu", "wrong", "Relu"): [4]}
    assert report.reasons["known"] == 1


def test_rounding_explains_what_cancels_beside_nan():
    """Operands of a sum that cancels are moved; an element that moves by nothing stays exact."""
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, d)
             for n, d in (("a", [3, 2]), ("b", [2, 1]))]  # fmt: skip
    model = finish([helper.make_node("MatMul", ["a", "b"], ["y"])], infos, ["y"], [], 21)
    a = np.array([[2**31, 1 - 2**31], [np.nan, 1], [2, 3]], np.float32)
    feeds = {"a": a, "b": np.ones((2, 1), np.float32)}
    case, exact = Case("single", 0, 0, model, (feeds,)), np.float32([[0], [np.nan], [5]])
    other = exact + np.float32([[128], [0], [0]])
    assert judging.difference(case, feeds, {"y": other}, {"y": exact}) is None
    wrong = [exact + np.float32([[0], [0], [1]]), np.float32([[0], [0], [5]])]
    assert all(judging.difference(case, feeds, {"y": y}, {"y": exact}) for y in wrong)


def test_a_sum_over_an_open_dimension_counts_its_terms():
    """Rounding grows with the length of a sum, whether the model tells it or the feeds do."""
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, d)
             for n, d in (("a", ["m", "k"]), ("b", ["l", "n"]))]  # fmt: skip
    model = finish([helper.make_node("MatMul", ["a", "b"], ["y"])], infos, ["y"], [], 21)
    feeds = {"a": np.ones((1, 4096), np.float32), "b": np.ones((4096, 1), np.float32)}
    case, exact = Case("single", 0, 0, model, (feeds,)), np.float32([[4096]])
    near, far = ({"y": exact * np.float32(1 + units * 2.0**-23)} for units in (100, 2000))
    assert judging.difference(case, feeds, near, {"y": exact}) is None
    assert judging.difference(case, feeds, far, {"y": exact}) is not None


# Documented differences -------------------------------------------------------------------------


def test_every_documented_difference_has_a_reason():
    case = graph_case(*LONG)
    assert explain(case, Problem("cpu", "wrong", "y"), Outcome({}), Outcome({})) == ""
    assert len(TABLE) > 10
    assert all(len(k.reason) > 20 for k in TABLE)
    # What excuses a target of ours, and not only a second opinion, must be rare: denormals, two for
    # special numbers, and halves of Elu and its kin that are nearer to f64 than the reference.
    assert sum(k.side != "onnxruntime" for k in TABLE) <= 4


def test_a_documented_difference_excuses_no_other_op():
    case = graph_case(*LONG)
    zeros, ones = (Outcome({"f": np.full((6, 4), v, np.float32)}) for v in (0, 1))
    problem = Problem("onnxruntime", "wrong", "f", output="f")
    assert explain(case, problem, zeros, ones) == ""


def test_a_scalar_of_non_zero_is_documented():
    node = Node("NonZero", [np.array(1.0, np.float32)])
    model, feeds = single_model(node, Draw(np.random.default_rng(0)))
    verdict = judge(Case("single", 0, 0, model, (feeds,)), ["onnxruntime"], 0)
    assert [p.reason[:20] for p in verdict.problems] == ["NonZero of a scalar "]


# NNSmith ----------------------------------------------------------------------------------------


def test_models_of_nnsmith_are_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    case = graph_case(*LONG)
    onnx.save(case.model, tmp_path / "1-00000.onnx")
    monkeypatch.setenv(nnsmith_cases.VARIABLE, str(tmp_path))
    nnsmith_cases.files.cache_clear()
    made = kinds.KINDS["nnsmith"](4, 0)
    assert made.ops == case.ops
    assert not judge(made, SIDES, 0).problems
    with pytest.raises(ValueError, match="make nnsmith"):
        kinds.KINDS["nnsmith"](4, 1)
    nnsmith_cases.files.cache_clear()


def test_what_generates_nnsmiths_models_finds_the_package():
    """It runs by its path, so that a file beside it would hide a package of the same name."""
    beside = {p.stem for p in Path(nnsmith_cases.__file__).parent.glob("*.py")}
    assert "nnsmith" not in beside
    assert "nnsmith_make" in beside
