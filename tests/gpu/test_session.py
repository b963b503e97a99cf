"""`monograph.load(..., target="gpu")` from end to end, by Triton's interpreter or on a device."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import monograph
from monograph.codegen.triton.module import select
from monograph.errors import ConfigError, ExecutionError, FeedError, UnsupportedError
from monograph.runtime.gpu import bound_program
from monograph.runtime.numerics.compare import compare_outputs
from monograph.session import Session
from tests.gpu import gpu_models as models
from tests.test_donation import cache_model, step

ON_DEVICE = os.environ.get("MONOGRAPH_TEST_DEVICE", "") == "cuda"
TARGET = "gpu" if ON_DEVICE else "gpu:interpreter"
PLACE = torch.device("cuda", 0) if ON_DEVICE else torch.device("cpu")
rng = np.random.default_rng(0)


def load(model: onnx.ModelProto, **options: Any) -> Session:
    return monograph.load(model, target=TARGET, cache_dir="", **options)


def tensor(data: Any) -> torch.Tensor:
    """Data as a tensor where the session's kernels run."""
    return torch.from_numpy(np.array(data)).to(PLACE)


def host(data: Any) -> np.ndarray:
    return data.cpu().numpy() if isinstance(data, torch.Tensor) else np.asarray(data)


def rows(count: int) -> np.ndarray:
    return rng.normal(size=(count, 33)).astype(np.float32)


def check(session: Session, feeds: dict[str, Any], model: onnx.ModelProto) -> None:
    """A run against the reference, within the session's own tolerances."""
    arrays = {n: host(x) for n, x in feeds.items()}
    names = [p.name for p in session.outputs]
    given = dict(zip(names, map(host, session.run(feeds)), strict=True))
    right = dict(zip(names, monograph.load(model, target="reference").run(arrays), strict=True))
    for difference in compare_outputs(given, right, session.tolerances(feeds)):
        assert difference.ok, difference


def test_arrays_in_arrays_out() -> None:
    model = models.linear()
    session = load(model)
    x = rows(3)
    check(session, {"x": x}, model)
    first, second = session.run({"x": x})[0], session.run({"x": x})[0]
    assert isinstance(first, np.ndarray)
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, second)


def test_tensors_in_tensors_out() -> None:
    session = load(models.linear())
    x = rows(3)
    (right,) = session.run({"x": x})
    given = tensor(x)
    for fed in (
        given,
        given.t().contiguous().t(),
        torch.zeros(4, 33, device=PLACE)[1:].copy_(given),
    ):
        (found,) = session.run({"x": fed})
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(host(found), right)
    (one,), (other,) = session.run({"x": given}), session.run({"x": given})
    assert one.data_ptr() != other.data_ptr()
    assert torch.equal(given, tensor(x))


def test_a_tensor_is_read_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    session = load(models.linear(), capture="off")
    x = tensor(rows(2))
    session.run({"x": x})  # where rivals are measured, that is on memory of the tuner's own
    seen: list[int] = []
    plain = bound_program.GpuProgram.enqueue

    def watched(self: Any, ports: Any) -> Any:
        seen.append(ports["input:x"].data_ptr())
        return plain(self, ports)

    monkeypatch.setattr(bound_program.GpuProgram, "enqueue", watched)
    session.run({"x": x})
    unaligned = torch.zeros(2 * 33 + 1, device=PLACE)[1:].reshape(2, 33).copy_(x)
    session.run({"x": unaligned})
    assert len(seen) == 2
    assert seen[0] == x.data_ptr()
    assert seen[1] != unaligned.data_ptr()
    assert seen[1] % 16 == 0


def test_outputs_in_the_callers_memory() -> None:
    session = load(models.linear())
    x = rows(2)
    (right,) = session.run({"x": x})
    array, place = np.empty((2, 20), np.float32), torch.empty(2, 20, device=PLACE)
    assert session.run({"x": x}, out={"y": array})[0] is array
    assert session.run({"x": tensor(x)}, out={"y": place})[0] is place
    np.testing.assert_array_equal(array, right)
    np.testing.assert_array_equal(host(place), right)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: torch.empty(2, 20, dtype=torch.float64, device=PLACE), "expected torch.float32"),
        (lambda x: torch.empty(2, 21, device=PLACE), "expected the shape"),
        (lambda x: torch.empty(20, 2, device=PLACE).t(), "one after the other"),
        (lambda x: torch.empty(2, 20, device="meta"), f"expected a tensor on {PLACE}"),
        (lambda x: x.reshape(-1)[:40].reshape(2, 20), "lies in the memory of the input 'x'"),
    ],
)
def test_tensors_that_cannot_be_written_to(make: Any, message: str) -> None:
    x = tensor(rows(2))
    with pytest.raises(FeedError, match=message):
        load(models.linear()).run({"x": x}, out={"y": make(x)})


def test_feeds_are_checked() -> None:
    session = load(models.linear())
    with pytest.raises(FeedError, match="expected f32"):
        session.run({"x": torch.zeros(2, 33, dtype=torch.float64)})
    with pytest.raises(FeedError, match="rank 2"):
        session.run({"x": torch.zeros(33)})
    with pytest.raises(FeedError, match="complex64"):
        session.run({"x": torch.zeros(2, 33, dtype=torch.complex64)})
    with pytest.raises(FeedError, match="outputs that the model does not have"):
        session.run({"x": torch.zeros(2, 33)}, out={"z": torch.zeros(2, 20)})


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_precisions(precision: str) -> None:
    model = models.linear()
    session = load(model, precision=precision)
    x = rows(4)
    check(session, {"x": x}, model)
    (wide,), (narrow,) = load(model).run({"x": x}), session.run({"x": x})
    assert narrow.dtype == np.float32
    assert np.abs(wide - narrow).max() > 1e-5  # it did compute in fewer bits


def test_shapes_are_kept_up_to_a_limit_and_share_their_constants() -> None:
    model = models.linear()
    session = load(model, max_cached_shapes=2)
    for count in (33, 34, 35, 34):
        check(session, {"x": rows(count)}, model)
    stats = session.stats
    assert stats["compiled"] == 2
    assert stats["kernels_per_run"] == stats["launches_per_run"] == 1
    assert session.gpu is not None
    constants = session.gpu.constants  # type: ignore[union-attr]
    assert constants.uploads == 1
    assert stats["constant_bytes"] == constants.nbytes < 2 * 4 * 33 * 20
    assert stats["device_bytes"] > stats["constant_bytes"]


def test_memory_goes_with_the_session() -> None:
    session = load(models.linear())
    session.run({"x": rows(2)})
    executable: Any = session.executable({"x": rows(2)}).executable
    held = [*executable.buffers.values(), *executable._constants.tensors]
    known = [weakref.ref(t) for t in held]
    del held, executable, session
    gc.collect()
    assert known
    assert all(ref() is None for ref in known)


def test_an_executable_that_is_dropped_frees_what_it_alone_has() -> None:
    session = load(models.linear(), max_cached_shapes=1)
    session.run({"x": rows(2)})
    executable: Any = session.executable({"x": rows(2)}).executable
    arena = weakref.ref(next(iter(executable.buffers.values())))
    del executable
    session.run({"x": rows(5)})
    gc.collect()
    assert arena() is None


def test_several_threads() -> None:
    session = load(models.linear())
    inputs = [rows(1 + i % 2) for i in range(6)]
    right = [session.run({"x": x})[0] for x in inputs]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        found[number] = session.run({"x": inputs[number]})[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, expected in enumerate(right):
        np.testing.assert_array_equal(found[number], expected)


@pytest.mark.parametrize("wrap", [np.asarray, tensor])
def test_data_that_do_not_fit_are_named(wrap: Any) -> None:
    session = load(models.lookup())
    session.run({"at": wrap([0, 4])})
    with pytest.raises(ExecutionError, match="row"):
        session.run({"at": wrap([0, 7])})
    (found,) = session.run({"at": wrap([1, 1])})
    assert np.array_equal(host(found)[0], host(found)[1])


def test_what_only_the_host_can_do_runs_there() -> None:
    model = models.sequences()
    session = load(model)
    x = rng.normal(size=(3, 4)).astype(np.float32)
    check(session, {"x": x}, model)
    assert session.stats["host_steps"]
    assert session.stats["kernels_per_run"] >= 1
    (found,) = session.run({"x": tensor(x)})
    assert isinstance(found, torch.Tensor)


@pytest.mark.parametrize("wrap", [np.asarray, tensor])
def test_sizes_that_data_decide(wrap: Any) -> None:
    session = load(models.cut())
    x = np.arange(6, dtype=np.float32)
    for count in (2, 5, 2):
        (found,) = session.run({"x": wrap(x), "count": wrap(np.array([count]))})
        assert isinstance(found, type(wrap(x)))
        np.testing.assert_allclose(host(found), 2 * np.exp(x[:count]), rtol=1e-6)
    assert session.stats["specialisations"] == 2
    given = wrap(np.zeros(5, np.float32))
    fed = {"x": wrap(x), "count": wrap(np.array([5]))}
    assert session.run(fed, out={"y": given})[0] is given
    np.testing.assert_allclose(host(given), 2 * np.exp(x[:5]), rtol=1e-6)
    with pytest.raises(FeedError, match="does not fit"):
        session.run({"x": wrap(x), "count": wrap(np.array([4]))}, out={"y": given})


def test_a_number_that_no_kernel_computes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "family", lambda anchor: None)
    with pytest.raises(UnsupportedError, match="no GPU kernel") as caught:
        load(models.linear()).run({"x": rows(2)})
    assert caught.value.op == "dot"
    assert "product" in str(caught.value.node)
    assert 'target="cpu"' in str(caught.value.hint)


def test_tensors_as_state() -> None:
    session = load(cache_model(), donate={"present": "past"})
    mine = torch.zeros(2, 16, 4, device=PLACE)
    right = np.zeros((2, 16, 4), np.float32)
    state = mine
    for position in (3, 9, 3):
        feeds = step(right, position)
        right = monograph.load(cache_model(), target="reference").run(feeds)[0]
        tensors = {n: tensor(x) for n, x in feeds.items()}
        after, _ = session.run(tensors | {"past": state})
        assert after is state or state is mine
        state = after
        np.testing.assert_array_equal(host(state), right)
    assert not mine.any()
    session.run(tensors | {"past": mine}, out={"present": mine})
    assert mine.any()


def test_copies_of_state_are_counted_one_by_one() -> None:
    node = helper.make_node("Add", ["past", "new"], ["present"])
    rows = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [9]) for n in ("past", "new")]
    present = helper.make_tensor_value_info("present", TensorProto.FLOAT, [9])
    graph = helper.make_graph([node], "sum", rows, [present])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = load(model, donate={"present": "past"}, capture="off")
    new = torch.ones(9, device=PLACE)

    def copies(past: Any, **out: Any) -> int:
        before = session.stats["donation_copies"]
        session.run({"past": past, "new": new}, out=out)
        return int(session.stats["donation_copies"] - before)

    mine, other = (torch.zeros(9, device=PLACE) for _ in range(2))
    unaligned = torch.zeros(10, device=PLACE)[1:]
    assert copies(mine, present=mine) == 0
    assert copies(mine) == 1  # it stays the caller's
    assert copies(mine, present=other) == 1
    # The kernel writes to memory of its own: the state goes there first, and comes from there.
    assert copies(mine, present=unaligned) == 2
    assert [x.tolist() for x in (mine, other, unaligned)] == [[1.0] * 9, [2.0] * 9, [2.0] * 9]


def test_a_state_is_not_written_over_an_input_in_part() -> None:
    session = load(cache_model(), donate={"present": "past"})
    memory = torch.zeros(2 * 16 * 4 + 4, device=PLACE)
    past, present = (memory[i : i + 128].reshape(2, 16, 4) for i in (0, 4))
    feeds = {n: tensor(x) for n, x in step(np.zeros((2, 16, 4)), 1).items()}
    with pytest.raises(FeedError, match="lies in the memory of the input"):
        session.run(feeds | {"past": past}, out={"present": present})


def test_out_of_memory_says_what_needs_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 3 GiB")

    session = load(models.linear())
    monkeypatch.setattr(bound_program.GpuProgram, "_bytes", none_left)
    with pytest.raises(ExecutionError, match="not enough memory") as caught:
        session.run({"x": rows(2)})
    text = str(caught.value)
    for word in ("of constants", "of temporaries", "bytes free", "3 GiB"):
        assert word in text


def test_out_of_memory_for_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 3 GiB")

    session = load(models.linear(), capture="off")
    session.run({"x": rows(2)})
    monkeypatch.setattr(bound_program.GpuProgram, "fresh_output", none_left)
    with pytest.raises(ExecutionError, match="not enough memory"):
        session.run({"x": rows(2)})


def test_an_architecture_runs_nothing() -> None:
    session = monograph.load(models.linear(), target="gpu:sm_90", cache_dir="")
    assert session.arch == "sm_90"
    for run in (session.run, session.run_async):
        with pytest.raises(ConfigError, match="compiles, and runs nothing"):
            run({"x": rows(2)})
