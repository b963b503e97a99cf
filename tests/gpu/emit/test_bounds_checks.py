"""Checked mode of interpreted kernels: planted faults are found."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from monograph.codegen.triton.emit import elements
from monograph.errors import InternalError
from monograph.ir import Graph, constant
from monograph.ops.elementwise import Neg
from monograph.ops.reduce import CumSum, ReduceSum
from monograph.ops.shape import Reshape, Slice, Transpose
from monograph.program.index import Index
from monograph.runtime.gpu.driver.devices import Interpreter
from monograph.runtime.gpu.driver.interpreter_checks import checked_access
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from tests.rules.checks import graph_of, value

pytestmark = pytest.mark.skipif(
    os.environ.get("MONOGRAPH_TEST_DEVICE", "") == "cuda", reason="a device checks nothing"
)
DATA = np.arange(210, dtype=np.float32).reshape(6, 35)


def compiled(graph: Graph, checked: bool = True) -> GpuExecutable:
    device = Interpreter(checked)
    return GpuExecutable(compile_for_gpu(graph, device.arch), device)


def shown() -> Graph:
    turned = Reshape((210,))(Transpose((1, 0))(value("f32[6, 35]")))
    return graph_of(Neg()(Slice((209,), (-211,), (-1,))(turned)))


def run(executable: GpuExecutable) -> np.ndarray:
    (found,) = executable.run({"x": DATA})
    return np.asarray(found)


def astray(monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    """Every address of an index map is so many elements off."""
    plain = elements.TritonElements.integer

    def integer(self: elements.TritonElements, index: Index, point: Any) -> str:
        return self.w.let(f"{plain(self, index, point)} + {by}", "i")

    monkeypatch.setattr(elements.TritonElements, "integer", integer)


@pytest.mark.parametrize("by", [1, -1, 1000])
@pytest.mark.parametrize("graph", [shown, lambda: graph_of(ReduceSum((1,))(value("f32[6, 35]")))])
def test_access_outside_of_its_buffer_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, graph: Any, by: int
) -> None:
    run(compiled(graph()))
    astray(monkeypatch, by)
    with pytest.raises(InternalError, match="outside of its buffer") as error:
        run(compiled(graph()))
    assert "bytes of argument" in str(error.value)


def test_unproven_addresses_are_masked_reported_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert compiled(shown()).bounds_checks == 0
    monkeypatch.setattr(elements, "inside", lambda *given: False)
    executable = compiled(shown())
    assert executable.bounds_checks > 0
    np.testing.assert_array_equal(run(executable), -DATA.T.reshape(-1)[::-1])
    astray(monkeypatch, 1)
    with pytest.raises(InternalError, match="outside of its buffer"):
        run(compiled(shown()))


def test_addresses_proven_outside_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = elements.flatten
    monkeypatch.setattr(elements, "flatten", lambda *given: plain(*given) + 1)
    with pytest.raises(InternalError, match="outside of its buffer"):
        compiled(shown())


@pytest.mark.parametrize("reverse", [False, True])
def test_masked_elements_before_the_first_are_not_outside(reverse: bool) -> None:
    graph = graph_of(CumSum(1, exclusive=True, reverse=reverse)(value("f32[6, 35]")))
    given = DATA[:, ::-1] if reverse else DATA
    right = given.cumsum(1) - given
    np.testing.assert_allclose(run(compiled(graph)), right[:, ::-1] if reverse else right)


def test_constants_end_where_their_values_end() -> None:
    weights = constant(np.ones((6, 35), np.float32) * np.arange(35, dtype=np.float32))
    graph = graph_of(Neg()(value("f32[6, 35]")), ReduceSum((1,))(Neg()(weights)))
    negated, total = compiled(graph).run({"x": DATA})
    np.testing.assert_array_equal(negated, -DATA)
    np.testing.assert_array_equal(total, np.full(6, -np.arange(35).sum()))


def test_interpreter_is_as_it_was_after_a_checked_kernel() -> None:
    with pytest.raises(ValueError, match="other"), checked_access("k", [(0, 1, "nothing")]):
        raise ValueError("other")
    graph = shown()
    np.testing.assert_array_equal(run(compiled(graph, False)), run(compiled(graph)))
