"""Products in TF32: operands are rounded to the nearest, never truncated.

Triton's interpreter multiplies whatever it is given in f32, so here it drops the bits that the
matrix units drop. Of positive operands that are truncated each product is too small by 2^-11 on
average (both operands lose up to 2^-10 of themselves); of rounded ones errors cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from monograph.codegen.triton.matmul import product
from monograph.codegen.triton.module import select
from monograph.codegen.triton.module.kernel import Branch, Candidate, GpuContext, RepeatWork, Work
from monograph.codegen.triton.module.launch import ARCHES, Launch
from monograph.ir import Graph, Input, TensorType, Value, constant, dtype, evaluate, unpack
from monograph.ops.attention import Attention
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.elementwise import Abs
from monograph.ops.linear import Dot
from monograph.ops.recurrent import Rnn
from monograph.ops.shape import Transpose
from monograph.ops.window import CHANNELS_LAST
from monograph.program.program import Step
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu, lower_for_gpu
from tests.gpu.against import device
from tests.rules.checks import graph_of

TRUNCATED = 2.0**-12
"""The least loss of sums of positive products whose operands are truncated."""
ROUNDED = 2.0**-15
"""... and where they are rounded, by no more than this: the average of many errors."""
INTERPRETED = pytest.mark.skipif(not device().arch.interpreted, reason="it shows on the device")


@pytest.fixture
def truncating(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter whose products of f32 drop the bits that TF32 does not have."""
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    plain = builder.create_dot

    def cut(operand: Any) -> Any:
        bits = np.ascontiguousarray(operand.data).view(np.int32) & product.KEPT
        return interpreter.TensorHandle(bits.view(np.float32), operand.dtype)

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, most: Any) -> Any:
        if a.data.dtype == np.float32 and "TF32" in str(precision):
            a, b = cut(a), cut(b)
        return plain(self, a, b, d, precision, most)

    monkeypatch.setattr(builder, "create_dot", create_dot)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2, shape).astype(np.float32)


def tensor(name: str, *shape: int) -> Value:
    return Input(name, TensorType(dtype("f32"), shape))()


def conv(x: Value, w: Value, **options: Any) -> Value:
    return Conv((1, 1), (1, 1), (1, 1), (1, 1), **options)(x, w)


def dot(rows: int) -> Graph:
    return graph_of(Dot()(tensor("x", rows, 96), constant(positive(96, 32))))


def products() -> Graph:
    return graph_of(Dot()(tensor("x", 2, 32, 96), tensor("y", 2, 96, 32)))


def turned() -> Graph:
    return graph_of(Dot()(tensor("x", 32, 96), Transpose((1, 0))(tensor("y", 32, 96))))


def chained() -> Graph:
    first = Abs()(Dot()(tensor("x", 40, 96), constant(positive(96, 32))))
    return graph_of(Dot()(first, constant(positive(32, 1))))


def image(channels: int, last: bool) -> Graph:
    shape = (1, 6, 7, channels) if last else (1, channels, 6, 7)
    options = {"layout": CHANNELS_LAST} if last else {}
    return graph_of(conv(tensor("x", *shape), constant(positive(32, channels, 3, 3)), **options))


def free_weights() -> Graph:
    return graph_of(conv(tensor("x", 1, 32, 6, 7), tensor("w", 32, 32, 3, 3)))


def attended() -> Graph:
    q, k, v = (tensor(n, 1, 2, 33, 32) for n in "qkv")
    return graph_of(Attention(scale=0.01)(q, k, v))


def upscaled() -> Graph:
    x, w = tensor("x", 1, 32, 6, 7), constant(positive(32, 16, 2, 2))
    return graph_of(ConvTranspose((2, 2), (0, 0), (0, 0), (1, 1), (0, 0))(x, w))


def recurrent() -> Graph:
    """A cell without curves, whose first state is large and whose input is not."""
    x, w, h = tensor("x", 1, 24, 4), constant(positive(32, 4) / 64), tensor("h", 24, 32)
    r, b = constant(positive(32, 32)), constant(np.zeros(32, np.float32))
    return graph_of(unpack(Rnn((("affine", 1.0, 0.0),))(x, w, r, b, h))[0])


Make = Callable[[], Graph]
GRAPHS: dict[str, Make] = {
    "dot": lambda: dot(40),
    "few rows": lambda: dot(3),
    "dot of two inputs": products,
    "dot of a transposed input": turned,
    "chained": chained,
    "conv": lambda: image(32, False),
    "conv, channels last": lambda: image(32, True),
    "conv of few channels": lambda: image(8, True),
    "conv of given weights": free_weights,
    "transposed conv": upscaled,
    "attention": attended,
    "recurrent": recurrent,
}


def dots(context: GpuContext) -> list[str]:
    """The candidates of a step whose kernels multiply on the matrix units."""
    found = []
    for candidate in select.candidates(context):
        if candidate.name.startswith("library"):
            continue
        work = nested(candidate.make())
        if any(isinstance(w, Launch) and "tl.dot(" in w.source for w in work):
            found.append(candidate.name)
    return found


def nested(work: Iterable[Work]) -> list[Work]:
    """Work, and the work inside it."""
    flat: list[Work] = []
    for one in work:
        flat.append(one)
        if isinstance(one, (Branch, RepeatWork)):
            flat += [inner for body in one.bodies for inner in nested(body)]
    return flat


def biases(graph: Graph, count: int = 3) -> dict[str, float]:
    """By how much results are too small, on average, by the first candidates that use `tl.dot`."""
    feeds = {
        name: positive(*t.static, seed=i + 1)
        for i, (name, t) in enumerate(zip(graph.input_names, graph.input_types, strict=True))
        if isinstance(t, TensorType)
    }
    expected, *_ = evaluate(graph, feeds)
    program = lower_for_gpu(graph)
    last = program.steps[-1]
    found = {}
    for name in dots(GpuContext(program, last, device().arch, tf32=True))[:count]:

        def choose(step: Step, among: list[Candidate], name: str = name) -> Candidate:
            return next((c for c in among if c.name == name), among[0])

        module = compile_for_gpu(graph, device().arch, choose, tf32=True)
        given, *_ = GpuExecutable(module, device()).run(feeds)
        found[name] = float(np.mean(1 - given.astype(np.float64) / expected))
    assert found, "no candidate uses the matrix units"
    return found


@INTERPRETED
@pytest.mark.usefixtures("truncating")
@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
def test_sums_of_positive_products_are_not_biased(make: Make) -> None:
    found = biases(make())
    assert found
    assert all(abs(b) < ROUNDED for b in found.values()), found


@INTERPRETED
@pytest.mark.usefixtures("truncating")
@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
def test_truncated_operands_would_show(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "rounding", lambda: product.OFF)
    monkeypatch.setattr(product, "round_array", lambda x: x)
    found = biases(make(), 1)
    assert all(b > TRUNCATED for b in found.values()), found


def test_weights_are_rounded_to_the_nearest() -> None:
    step = 2.0**-10
    given = [1, 1 + step / 2, 1 + step / 2 - 2**-23, -1 - step / 2, 1 + step * 0.75, 2 - step / 4]
    right = [1, 1 + step, 1, -1 - step, 1 + step, 2]
    np.testing.assert_array_equal(product.round_array(np.float32(given)), np.float32(right))


def test_special_numbers_stay() -> None:
    most = float(np.finfo(np.float32).max)
    given = np.float32([np.inf, -np.inf, np.nan, -np.nan, most, -most, 0, -0.0])
    given = np.append(given, np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32))
    found = product.round_array(given)
    np.testing.assert_array_equal(found, given)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(given))


@pytest.mark.usefixtures("truncating")
def test_special_numbers_go_through_a_product() -> None:
    given = np.zeros((16, 16), np.float32)
    given[0, :2] = np.inf, 1
    given[1, 0] = np.array(0x7FFFFFFF, np.uint32).view(np.float32)
    given[2, 3] = -np.inf
    given[3, 4] = np.finfo(np.float32).max
    graph = graph_of(Dot()(tensor("x", 16, 16), tensor("y", 16, 16)))
    module = compile_for_gpu(graph, device().arch, tf32=True)
    ones = np.full((16, 16), 0.25, np.float32)
    (found,) = GpuExecutable(module, device()).run({"x": given, "y": ones})
    assert (found[0] == np.inf).all()
    assert np.isnan(found[1]).all()
    assert (found[2] == -np.inf).all()
    np.testing.assert_allclose(found[3], 0.25 * np.finfo(np.float32).max, rtol=2**-10)
    assert (found[4:] == 0).all()


@pytest.mark.parametrize(
    ("name", "precision"),
    [("sm_80", "tf32"), ("sm_90", "tf32"), ("gfx942", "tf32")]
    + [(n, "ieee") for n in ("gfx1100", "gfx1151", "gfx1201")],
)
def test_each_device_is_asked_for_what_it_has(name: str, precision: str) -> None:
    """Triton refuses TF32 where a device has none; operands are rounded where it has."""
    program = lower_for_gpu(products())
    context = GpuContext(program, program.steps[0], ARCHES[name], tf32=True)
    (work,) = next(c for c in select.candidates(context) if c.name.startswith("tiles")).make()
    assert isinstance(work, Launch)
    assert f'input_precision="{precision}"' in work.source
    assert ("bitcast=True" in work.source) == (precision == "tf32")


def test_f32_without_tf32_is_not_rounded() -> None:
    program = lower_for_gpu(products())
    for arch in (*ARCHES.values(), device().arch):
        context = GpuContext(program, program.steps[0], arch)
        for candidate in select.candidates(context)[:3]:
            (work, *_) = candidate.make()
            assert not isinstance(work, Launch) or "tf32" not in work.source
