"""Limits for a small file in total: its weights, its strings, its functions, its folding."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.errors import ExecutionError
from monograph.frontend.onnx import fold as accounts
from monograph.frontend.onnx import read_model
from monograph.frontend.onnx.fold import (
    FILE_FACTOR,
    FOLD_BYTES,
    SPARSE_FREE,
    VALUE_WORK,
    Account,
    fold,
    fold_budget,
)
from monograph.frontend.onnx.tensors import read_sparse, read_tensor
from monograph.frontend.onnx.validate import INLINED_FREE, MAX_INLINED
from monograph.ir import Constant, Graph, Input, constant, evaluate, memory, parse_tensor_type
from monograph.ops.elementwise import Add
from monograph.ops.recurrent import Rnn
from monograph.ops.roi import NonMaxSuppression
from monograph.ops.text import StringConcat
from tests.effort import at_most
from tests.frontend.untrusted.hostile import info, model, refused


def run_limited(program: str, folder: Path, mebibytes: int = 700) -> None:
    """Runs a program in a process that may not have more address space than that."""
    limits = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({mebibytes << 20},) * 2)\n"
    command = [sys.executable, "-c", limits + textwrap.dedent(program)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# Weights


def sparse(name: str, size: int, count: int = 1) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.ones(count, "f4"), name)
    indices = numpy_helper.from_array(np.arange(count), f"{name}_indices")
    return helper.make_sparse_tensor(values, indices, [size])


def test_a_sparse_tensor_is_held_to_what_it_stores():
    with refused("too large for the few elements"):
        read_sparse(sparse("w", 1 << 30), None)
    free = SPARSE_FREE // 4
    assert read_sparse(sparse("w", free), None).array.shape == (free,)
    with refused("too large for the few elements"):
        read_sparse(sparse("w", free + 1001), None)
    assert read_sparse(sparse("w", free + 999), None).array.shape == (free + 999,)


def test_sparse_tensors_are_not_copied():
    literal = read_sparse(sparse("w", 1000), None)
    assert literal.array.base is not None, "a copy owns its memory"
    assert not literal.array.flags.writeable


def test_all_tensors_share_one_budget():
    account = Account(limit=1 << 20)
    for _ in range(4):
        read_sparse(sparse("w", 1 << 16), None, account)
    with refused("too large together", "'w'", "1,048,576"):
        read_sparse(sparse("w", 1 << 16), None, account)


def test_the_budget_covers_sub_graphs_and_attributes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accounts, "machine_memory", lambda: 3 << 16)
    nodes = [
        helper.make_node("Constant", [], [f"c{i}"], sparse_value=sparse(f"w{i}", 1 << 14))
        for i in range(4)
    ]
    monograph.load(model([*nodes[:2], helper.make_node("Identity", ["x"], ["y"])]))
    whole = model([*nodes, helper.make_node("Identity", ["x"], ["y"])])
    with refused("too large together"):
        monograph.load(whole)


def test_every_import_has_the_whole_budget(monkeypatch: pytest.MonkeyPatch):
    """A session imports again for other shapes, and that must not add up."""
    monkeypatch.setattr(accounts, "machine_memory", lambda: 3 << 16)
    shape = helper.make_node("Constant", [], ["c"], sparse_value=sparse("w", 1 << 14))
    made = model(
        [shape, helper.make_node("Add", ["x", "c"], ["y"])], [info("x", ["N"])], [info("y", ["N"])]
    )
    session = monograph.load(made, optimise=True)
    for size in (1, 1 << 14):
        session.run({"x": np.ones(size, "f4")})
    for _ in range(9):
        session._bindings.graphs.clear()
        session.run({"x": np.ones(1, "f4")})


def external(name: str, offset: int, size: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.UINT8, dims=[size])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "hole.bin", "offset": offset, "length": size}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_tensors_share_the_bytes_that_they_share_in_the_file(tmp_path: Path):
    (tmp_path / "hole.bin").write_bytes(bytes(range(200)))
    account = Account()
    first, again = (read_tensor(external(n, 8, 64), tmp_path, account).array for n in "ab")
    assert np.shares_memory(first, again)
    assert first.tolist() == list(range(8, 72))
    assert account.taken == 64


def test_a_file_is_read_only_so_often(tmp_path: Path):
    (tmp_path / "hole.bin").write_bytes(bytes(1000))
    account = Account()
    kept = [read_tensor(external("w", i, 900), tmp_path, account) for i in range(FILE_FACTOR)]
    assert len(kept) == FILE_FACTOR
    with refused("too often", f"at most {FILE_FACTOR} times its 1,000 bytes"):
        read_tensor(external("w", 50, 900), tmp_path, account)


def test_a_few_bytes_do_not_become_gigabytes(tmp_path: Path):
    """Twelve tensors over one hole of 64 MiB, and two sparse ones of 4 GiB, in 700 MiB."""
    (tmp_path / "hole.bin").touch()
    os.truncate(tmp_path / "hole.bin", 1 << 26)
    shared = [external(f"w{i}", 0, 1 << 26) for i in range(12)]
    made = model([helper.make_node("Identity", ["x"], ["y"])], initializer=shared)
    (tmp_path / "shared.onnx").write_bytes(made.SerializeToString())
    wide = [sparse(f"w{i}", 1 << 30) for i in range(2)]
    made = model([helper.make_node("Identity", ["x"], ["y"])], sparse_initializer=wide)
    (tmp_path / "sparse.onnx").write_bytes(made.SerializeToString())
    run_limited(
        """
        import monograph, monograph.errors
        monograph.load("shared.onnx")
        try:
            monograph.load("sparse.onnx")
        except monograph.errors.ModelError as e:
            assert "few elements" in str(e), e
        else:
            raise AssertionError("not refused")
        """,
        tmp_path,
    )


def test_a_session_holds_weights_once():
    weight = numpy_helper.from_array(np.ones(1 << 20, "f4"), "w")
    body = helper.make_node("Relu", ["a"], ["b"])
    function = helper.make_function("f", "F", ["a"], ["b"], [body], [helper.make_opsetid("", 21)])
    made = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [info("x", [1])],
        [info("y", [1 << 20])],
        initializer=[weight],
        functions=[function],
        opsets={"": 21, "f": 1},
    )
    session = monograph.load(made)
    assert session._bindings.model.file.proto.ByteSize() < 1000
    assert session._bindings.model.file.proto.graph.initializer[0].dims == [1 << 20]
    assert [f.name for f in session._bindings.model.file.functions.values()] == ["F"]
    assert made.graph.initializer[0].raw_data == weight.raw_data, "the caller's model is untouched"
    (y,) = session.run({"x": np.ones(1, "f4")})
    assert y.tolist() == [2.0] * (1 << 20)


def test_a_caller_may_change_his_model_afterwards():
    """The rank of y is known with the feeds only, so that the model is imported late."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["z"]),
        helper.make_node("Add", ["z", "w"], ["y"]),
    ]
    w = numpy_helper.from_array(np.float32(1), "w")
    shape = info("shape", ["R"], TensorProto.INT64)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    made = model(nodes, [info("x", [4]), shape], [y], initializer=[w])
    session = monograph.load(made)
    made.graph.node[1].op_type = "Sub"
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32(9), "w"))
    del made.graph.node[0].input[:]
    (y,) = session.run({"x": np.arange(4, dtype="f4"), "shape": np.array([2, 2])})
    assert y.tolist() == [[1, 2], [3, 4]]


# Strings


def doubling(count: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("StringConcat", [f"s{i}", f"s{i}"], [f"s{i + 1}"]) for i in range(count)
    ]
    seed = helper.make_tensor("s0", TensorProto.STRING, [1], [b"0123456789abcdef"])
    output = info(f"s{count}", [1], TensorProto.STRING)
    return model(nodes, [], [output], initializer=[seed])


def test_strings_that_double_are_not_folded_and_do_not_run():
    """16 characters, doubled 60 times."""
    with at_most(200_000):
        session = monograph.load(doubling(60))
    with memory.lend(1 << 20), refused("too large", error=ExecutionError):
        session.run({})


def test_strings_that_double_stop_at_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch):
    session = monograph.load(doubling(60))
    monkeypatch.setattr(memory, "machine_memory", lambda: 1 << 24)
    with refused("too large", "8,388,608 bytes", error=ExecutionError):
        session.run({})


def test_broadcast_texts_count_every_time():
    x, y = (Input(n, parse_tensor_type("str[N]"))() for n in "xy")
    graph = Graph((x, y), (("z", StringConcat()(x, y)),))
    long, many = np.array(["a" * 5000], object), np.array(["b"] * 1000, object)
    with memory.lend(5_001_000):
        (z,) = evaluate(graph, [long, many])
    assert z[-1] == "a" * 5000 + "b"
    with memory.lend(5_000_999), refused("too large", error=ExecutionError):
        evaluate(graph, [long, many])


def test_small_texts_are_folded_and_long_ones_are_not():
    def joined(length: int):
        text = constant(np.array(["a" * length], object))
        return fold(StringConcat()(text, text)).op

    assert isinstance(joined(100), Constant)
    assert not isinstance(joined(FOLD_BYTES // 2 + 1), Constant)


# Functions


def calling(levels: int, width: int) -> onnx.ModelProto:
    """Functions that call the next one `width` times: width^levels nodes from a few."""
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    functions = []
    for level in range(levels):
        op, domain = (f"F{level + 1}", "f") if level + 1 < levels else ("Neg", "")
        nodes = [
            helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], domain=domain) for i in range(width)
        ]
        functions.append(
            helper.make_function("f", f"F{level}", ["v0"], [f"v{width}"], nodes, imports)
        )
    call = helper.make_node("F0", ["x"], ["y"], domain="f")
    return model([call], functions=functions, opsets={"": 21, "f": 1})


def test_functions_expand_only_so_far():
    with refused("too many nodes once its functions are inlined", "of the 37 in the file"):
        read_model(calling(18, 2))
    monograph.load(calling(6, 2))
    limit = 100 * (1 + 2 * 13) + INLINED_FREE
    assert 2**12 < limit < 2**14, "the next two lie on both sides of the limit"
    read_model(calling(12, 2))
    with refused("too many nodes once its functions are inlined"):
        read_model(calling(14, 2))
    with refused(f"at most {MAX_INLINED:,}", calls=10_000_000):
        read_model(calling(3, 700))


def test_functions_in_proportion_are_fine():
    """As many nodes as there are in the file, and each function called a hundred times."""
    assert read_model(calling(2, 90)).functions


# Folding


def test_folding_has_a_budget():
    def sums(count: int) -> int:
        """Return how many of these sums are folded."""
        made = [fold(Add()(constant(float(i)), constant(0.5))) for i in range(count)]
        return sum(isinstance(v.op, Constant) for v in made)

    one = 3 * (8 + VALUE_WORK)
    with fold_budget(10 * one):
        assert sums(20) == 10
        with fold_budget(20 * one):
            assert sums(20) == 20
    assert sums(20) == 20, "what the budget left out is folded later"


def test_every_import_folds_within_a_budget(monkeypatch: pytest.MonkeyPatch):
    made = []
    real = monograph.frontend.onnx.importer.fold_budget

    def counted():
        made.append(True)
        return real()

    monkeypatch.setattr("monograph.frontend.onnx.importer.fold_budget", counted)
    monograph.load(model([helper.make_node("Relu", ["x"], ["y"])]))
    assert made == [True]


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        (Rnn(), [(5, 1, 3), (2, 3), (2, 2), (2,), (1, 2)]),
        (NonMaxSuppression(), [(1, 6, 4), (1, 1, 6)]),
    ],
    ids=["rnn", "non_max_suppression"],
)
def test_laborious_ops_are_never_folded(op, operands):
    value = op(*[constant(np.ones(shape, "f4")) for shape in operands])
    assert value.closed
    assert fold(value) is value


# What a run holds


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch):
    """Of 4 GiB; what the process holds is what the test says."""
    held = [0]
    monkeypatch.setattr(memory, "machine_memory", lambda: 4 << 30)
    monkeypatch.setattr(memory, "resident", lambda: held[0])
    return held


def test_what_the_process_holds_counts(small_machine):
    memory.check_room(1 << 30)
    small_machine[0] = 2 << 30
    memory.check_room(1 << 30)
    small_machine[0] = (2 << 30) + 1
    with refused("more memory than is left", "3,221,225,472", error=ExecutionError):
        memory.check_room(1 << 30)


def test_small_steps_are_counted_together(small_machine):
    """Nobody asks the system at every step, yet many small ones do not slip through."""
    memory.check_room(memory.ROOM_STEP)
    small_machine[0] = 4 << 30
    for _ in range(9):
        memory.check_room(memory.ROOM_STEP // 10)
    with refused("more memory than is left", error=ExecutionError):
        memory.check_room(memory.ROOM_STEP // 5)


def test_a_run_counts_its_operands_as_wide_as_they_are_computed(small_machine):
    """f16 is computed in f64: 4 times as wide, two operands and a result."""
    x = Input("x", parse_tensor_type("f16[4194304]"))()
    graph = Graph((x,), (("y", Add()(x, x)),))
    feeds = [np.ones(1 << 22, np.float16)]
    widened = 3 * 8 << 22
    small_machine[0] = (3 << 30) - widened
    evaluate(graph, feeds)
    small_machine[0] += 1
    with refused("more memory than is left", error=ExecutionError):
        evaluate(graph, feeds)


def test_the_system_says_what_the_process_holds():
    before = memory.resident()
    with mmap.mmap(-1, 1 << 25) as block:  # Fresh pages: an allocator may have had others before.
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
        assert memory.resident() >= before + len(block) // 2 > 0
