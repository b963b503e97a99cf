"""A product of one column in the kernel of the product before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks import models

import monograph
from monograph.codegen.triton.module import select
from monograph.codegen.triton.module.kernel import GpuContext
from monograph.codegen.triton.module.launch import ARCHES
from monograph.ir import Value, constant, dtype
from monograph.ops.composite import RmsNorm, Silu
from monograph.ops.elementwise import Add
from monograph.ops.functions import Log, Sigmoid
from monograph.ops.linear import Dot
from monograph.ops.shape import Reshape, Transpose
from monograph.passes.base import Environment
from monograph.pipeline import PassOptions, optimise
from monograph.program.fusion import fuse
from monograph.program.fusion.fuse import inner_product
from monograph.rewrite import GPU_COST
from monograph.runtime.gpu.executable import lower_for_gpu
from tests.gpu.against import candidate_names, check
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(2)


def weight(kind: str, *shape: int) -> Value:
    return constant((rng.normal(size=shape) / np.sqrt(shape[-2])).astype(dtype(kind).numpy))


def layers(x: Value, *widths: int, batch: tuple[int, ...] = ()) -> Value:
    """Layers with SiLU, the last with a sigmoid."""
    kind = x.dtype.name
    for number, width in enumerate(widths):
        product = Dot()(x, weight(kind, *batch, x.tensor.static[-1], width))
        x = Add()(product, weight(kind, *batch, 1, width))
        x = Silu()(x) if number + 1 < len(widths) else Sigmoid()(x)
    return x


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("rows", [1, 5, 20])
def test_two_layers_are_one_kernel(kind: str, rows: int) -> None:
    check(graph_of(layers(value(f"{kind}[{rows}, 33]"), 20, 1)), steps=1, every=kind == "f32")


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("rows", [1, 5, 20])
def test_columns_that_fit_one_tile(kind: str, rows: int) -> None:
    """The sums of the second product are rounded, and not those of the first taken for them."""
    check(graph_of(layers(value(f"{kind}[{rows}, 33]"), 8, 1)), steps=1)


@pytest.mark.parametrize("rows", [1, 17])
def test_towers(rows: int) -> None:
    x = value(f"f32[{rows}, 24]")
    ends = layers(layers(x, 16), 40, 36, 1, batch=(3,))
    scores = Transpose((1, 0))(Reshape((3, rows))(ends))
    check(graph_of(scores), steps=3, every=False)


def test_operands_that_are_no_constants() -> None:
    for rows in (1, 18):
        first = Dot()(value(f"f32[2, {rows}, 30]"), value("f32[2, 30, 40]", "y"))
        check(graph_of(Dot()(first, value("f32[2, 40, 1]", "z"))), steps=1, every=False)


def test_columns_beside_the_last_do_not_count() -> None:
    """The work between the products may make infinities where there is no column."""
    for rows in (1, 18):
        first = Dot()(value(f"f32[{rows}, 30]"), weight("f32", 30, 21))
        positive = Log()(Add()(Sigmoid()(first), value("f32[21]", "b")))
        made = graph_of(Dot()(positive, weight("f32", 21, 1)))
        feeds = {
            n: np.abs(rng.normal(size=v.tensor.static)).astype(np.float32)
            for n, v in zip(made.input_names, made.inputs, strict=True)
        }
        check(made, feeds, steps=1)


@pytest.mark.parametrize("rows", [1, 20])
def test_many_columns_are_added_up_by_the_last_program(rows: int) -> None:
    made = graph_of(layers(value(f"f32[{rows}, 16]"), 300, 1))
    names = candidate_names(made)[0]
    assert names
    assert all(name.startswith("chained") for name in names)
    assert len(set(names)) == len(names)
    check(made, steps=1, every=False)


def steps_of(*outputs: Value) -> int:
    return len(lower_for_gpu(graph_of(*outputs)).steps)


def test_what_is_needed_elsewhere_is_stored() -> None:
    hidden = Silu()(Dot()(value("f32[4, 30]"), weight("f32", 30, 20)))
    fuse = Dot()(hidden, weight("f32", 20, 1))
    assert steps_of(fuse) == 1
    assert steps_of(fuse, hidden) == 2
    assert steps_of(Add()(fuse, hidden)) == 3
    assert steps_of(fuse, Dot()(hidden, weight("f32", 20, 7))) == 3


def test_what_is_not_taken_along() -> None:
    x = value("f32[4, 30]")
    hidden = Dot()(x, weight("f32", 30, 20))
    assert steps_of(Dot()(hidden, weight("f32", 20, 2))) == 2  # two columns
    assert steps_of(Dot()(Reshape((8, 10))(hidden), weight("f32", 10, 1))) == 2  # other rows
    fuse = Dot()(hidden, weight("f32", 20, 1))
    assert steps_of(Dot()(fuse, weight("f32", 1, 1))) == 2  # three in a row
    normed = RmsNorm((1,), 1e-5)(x, constant(np.ones(30, np.float32)))
    assert steps_of(Dot()(Dot()(normed, weight("f32", 30, 20)), weight("f32", 20, 1))) >= 2


def test_large_results_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    made = layers(value("f32[4, 33]"), 20, 1)
    monkeypatch.setattr(fuse, "MOST", 79)
    assert steps_of(made) == 2
    monkeypatch.setattr(fuse, "MOST", 80)
    assert steps_of(made) == 1


def test_the_product_inside() -> None:
    made = graph_of(layers(value("f32[4, 33]"), 20, 1))
    (step,) = lower_for_gpu(made).steps
    inner = inner_product(step.region)
    assert inner is not None
    assert inner.tensor.static == (4, 20)
    plain = lower_for_gpu(graph_of(Dot()(value("f32[4, 33]"), weight("f32", 33, 1)))).steps[0]
    assert inner_product(plain.region) is None


@pytest.mark.parametrize("batch", [1, 128])
def test_the_towers_of_the_benchmarks_are_four_kernels(tmp_path: Path, batch: int) -> None:
    models.towers(tmp_path / "towers.onnx", batch)
    session = monograph.load(tmp_path / "towers.onnx", target="reference")
    graph = session.bound_graph({"x": np.zeros((batch, 1024), np.float32)})
    options = PassOptions(overrides={"convert_precision": {"to": "f16"}})
    program = lower_for_gpu(optimise(graph, environment=Environment(GPU_COST), options=options))
    assert len(program.steps) == 4, str(program)
    for step in program.steps:
        found = select.candidates(GpuContext(program, step, ARCHES["sm_90"]))
        # Whichever is the fastest: only a library leaves the rest of a step to a second kernel.
        assert all(len(c.make()) == 1 for c in found[::5] if not c.name.startswith("library"))
