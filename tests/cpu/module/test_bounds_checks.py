"""Checked mode: planted faults are found, on any number of threads, and nothing crashes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import monograph
from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit import elements
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.module import bounds_checks
from monograph.codegen.llvm.module.bounds_checks import Extent, Instrumented
from monograph.codegen.llvm.module.kernel import KernelContext
from monograph.errors import InternalError
from monograph.ir import DType, Graph, unpack
from monograph.ops.elementwise import Exp, Neg
from monograph.ops.linear import Dot
from monograph.ops.recurrent import Rnn
from monograph.ops.scalar import Scalar
from monograph.ops.shape import Reshape, Slice, Transpose
from monograph.program import index
from monograph.program.fusion import index_bounds
from monograph.program.legalise.recurrence import Recurrence
from monograph.report.commands.launch_regions import launching_json, launching_of
from monograph.runtime.cpu import executable
from monograph.runtime.cpu.executable import CpuExecutable, compile_graph
from tests.cpu.indexing.moving import check, host
from tests.reversed_models import MODELS
from tests.rules.checks import graph_of, value

SHAPES = ["f32[6]", "f32[67]", "f32[64]", "u8[64]", "f64[3, 5]"]
"""Single elements, vectors and a rest, whole vectors."""


@pytest.fixture(autouse=True)
def many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small programs are run by as many threads as are asked for, too."""
    monkeypatch.setattr(executable, "ALONE_SECONDS", 0.0)


def compiled(graph: Graph, threads: int, checked: bool = True) -> CpuExecutable:
    return compile_graph(graph, host(), threads, checked=checked)


def feeds_of(graph: Graph) -> dict[str, np.ndarray]:
    types = zip(graph.input_names, graph.inputs, strict=True)
    return {n: np.ones(v.tensor.static, v.dtype.numpy) for n, v in types}


def moved(by: int, way: str) -> Callable[..., Any]:
    """Loads or stores that go so many elements astray."""
    plain = getattr(LlvmScalars, way)

    def load(self: LlvmScalars, dtype: DType, pointer: Reg, lanes: int = 0) -> Scalar:
        return plain(self, dtype, self.b.offset(pointer, by * dtype.itemsize), lanes)

    def store(self: LlvmScalars, x: Scalar, pointer: Reg) -> None:
        plain(self, x, self.b.offset(pointer, by * x.dtype.itemsize))

    return load if way == "load" else store


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", ["load", "store"])
@pytest.mark.parametrize("by", [1, -1, 1 << 40])
def test_access_outside_of_its_buffer_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, by: int, way: str, shape: str, threads: int
) -> None:
    graph = graph_of(Neg()(value(shape)))
    monkeypatch.setattr(LlvmScalars, way, moved(by, way))
    run = compiled(graph, threads)
    assert run.threads == threads
    for _ in range(2):  # the fault is told every time
        with pytest.raises(InternalError, match="outside of its buffer") as error:
            run.run(feeds_of(graph))
    assert error.value.internal
    buffer = graph.inputs[0].tensor
    assert f"{buffer.size * buffer.dtype.itemsize} bytes" in str(error.value)
    assert "step 0, pointwise" in str(error.value)
    assert "report" in str(error.value)


def test_neighbours_in_the_arena_are_outside_too(monkeypatch: pytest.MonkeyPatch) -> None:
    x = value("f32[16, 16]")
    graph = graph_of(Dot()(Dot()(x, Exp()(x)), Exp()(Neg()(x))))
    compiled(graph, 2).run(feeds_of(graph))
    monkeypatch.setattr(LlvmScalars, "store", moved(1, "store"))
    with pytest.raises(InternalError, match="temporary"):
        compiled(graph, 2).run(feeds_of(graph))


@pytest.mark.parametrize("threads", [1, 2])
def test_old_split_of_indices_is_found(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """The defect that this mode was built for: remainders of negative numbers."""

    def split(self: index.Index, by: int) -> tuple[index.Index, index.Index]:
        whole = tuple((a, f // by) for a, f in self.terms if f % by == 0)
        rest = tuple((a, f) for a, f in self.terms if f % by)
        return index.Index(self.constant // by, whole), index.Index(self.constant % by, rest)

    model = MODELS[0]
    monkeypatch.setattr(index.Index, "_split", split)
    with pytest.raises(InternalError, match=r"outside of its buffer|may be negative"):
        monograph.load(model.model(), cache_dir="", threads=threads).run(model.feeds())
    monkeypatch.setattr(index._Divided, "__post_init__", lambda self: None)
    monkeypatch.setattr(elements, "inside", lambda *given: True)
    session = monograph.load(model.model(), cache_dir="", checked=True, threads=threads)
    with pytest.raises(InternalError, match="outside of its buffer") as error:
        session.run(model.feeds())
    assert "Transpose#0" in str(error.value)


def test_unproven_addresses_are_checked_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x = value("f32[6, 35]")
    shown = Slice((209,), (-211,), (-1,))(Reshape((210,))(Transpose((1, 0))(x)))
    graph = graph_of(Neg()(shown))
    assert compiled(graph, 2, False).bounds_checks == 0
    monkeypatch.setattr(elements, "inside", lambda *given: False)
    run = compiled(graph, 2, False)
    assert run.bounds_checks > 0
    data = np.arange(210, dtype=np.float32).reshape(6, 35)
    np.testing.assert_array_equal(run.run({"x": data})[0], -data.T.reshape(-1)[::-1])
    plain = elements.LlvmElements.integer
    monkeypatch.setattr(
        elements.LlvmElements,
        "integer",
        lambda self, index, point: self.b.add(plain(self, index, point), 1),
    )
    with pytest.raises(InternalError, match="outside of its buffer"):
        compiled(graph, 2, False).run({"x": data})


def test_addresses_proven_outside_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = elements.flatten
    monkeypatch.setattr(elements, "flatten", lambda *given: plain(*given) + 1)
    with pytest.raises(InternalError, match="outside of its buffer") as error:
        compiled(graph_of(Neg()(value("f32[4, 6]"))), 1)
    for part in ("0..23", "1..24", "input 0 'x'", "step 0, pointwise", "report"):
        assert part in str(error.value), part


def test_checked_and_unchecked_code_differ_only_when_asked() -> None:
    graph = graph_of(Neg()(value("f32[5]")))
    assert not any(f.buffers for f in compiled(graph, 1, False).layout.faults)
    assert any(f.buffers for f in compiled(graph, 1, True).layout.faults)


def test_vectors_do_not_read_beyond_the_arrays_of_callers() -> None:
    """The operands of a recurrent cell may be a caller's: the last vector of a row is not full."""
    given, r, h = value("f32[6, 5]"), value("f32[5, 5]", "r"), value("f32[2, 5]", "h")
    cell = Recurrence(Rnn(), 3, 2)
    every, last = unpack(cell(given, r, h))
    run = check(graph_of(every, last))
    assert "recurrence" in str(run.program)


@pytest.mark.parametrize(
    "line",
    ["%v1 = call ptr @somewhere(ptr %p0)", "call void @llvm.memmove(ptr %p0, ptr %p0, i64 4)"],
)
def test_instructions_that_are_not_known_are_refused(line: str) -> None:
    with pytest.raises(InternalError, match="uses a pointer without a check"):
        Instrumented([f"  {line}", "  ret void"], {"%p0": Extent(4)}).text()


def test_every_kernel_is_instrumented(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch reaches kernels inside of others."""
    seen: list[bool] = []
    plain = KernelContext.finish
    monkeypatch.setattr(
        KernelContext,
        "finish",
        lambda self, b: seen.append(b.checked) or plain(self, b),
    )
    compiled(graph_of(Dot()(value("f32[9, 9]"), Exp()(value("f32[9, 9]")))), 2)
    assert seen
    assert all(seen)
    assert bounds_checks.SLACK == 256


def test_checked_code_has_keys_of_its_own_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(MODELS[0].model(), path)
    for mode in (True, False, True, False):
        session = monograph.load(path, cache_dir=str(tmp_path / "cache"), checked=mode)
        session.run(MODELS[0].feeds())
        seen = session.stats["from_disk"]
        assert session.stats["bounds_checks"] == 0
        (made,) = session._bindings.made()
        assert any(f.buffers for f in made.layout.faults) == mode
    assert seen == 1


def test_inspect_counts_what_no_proof_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(Neg()(Reshape((6,))(Transpose((1, 0))(value("f32[3, 2]")))))
    assert launching_json(launching_of(graph, "cpu"))["bounds_checks"] == 0
    monkeypatch.setattr(index_bounds, "inside", lambda *given: False)
    assert launching_json(launching_of(graph, "cpu"))["bounds_checks"] == 2
