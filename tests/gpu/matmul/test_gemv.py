"""Products of few rows: normalised rows, gates and residuals inside one kernel, coded weights."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.triton.module import select
from monograph.codegen.triton.module.kernel import GpuContext
from monograph.codegen.triton.module.launch import ARCHES, Launch
from monograph.ir import Graph, Input, TensorType, Value, constant, dtype
from monograph.ops.composite import Gelu, RmsNorm, Silu
from monograph.ops.elementwise import Add, Mul, Sigmoid
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Reshape, Slice, Transpose
from monograph.passes.base import Environment
from monograph.pipeline import PassOptions, optimise
from monograph.rewrite import GPU_COST
from monograph.runtime.gpu.executable import lower_for_gpu
from tests.gpu.against import candidate_names, check

RNG = np.random.default_rng(7)


def tensor(name: str, shape: tuple[int, ...], kind: str = "f32") -> Value:
    return Input(name, TensorType(dtype(kind), shape))()


def weights(shape: tuple[int, ...], kind: str = "f32") -> Value:
    data = np.random.default_rng(1).normal(size=shape) * 0.2
    return constant(data.astype(dtype(kind).numpy))


def columns(value: Value, start: int, stop: int) -> Value:
    rank = value.tensor.rank
    sizes = value.tensor.static[:-1]
    return Slice((0,) * (rank - 1) + (start,), (*sizes, stop), (1,) * rank)(value)


def coded(n: int, k: int, codes: str, group: int, zeros: str, kind: str = "f32") -> Value:
    """Weights [k, n] of few bits: a scale for so many elements of a column, 0 for one a column."""
    if codes.startswith("f"):
        data = RNG.normal(size=(n, k)).astype(dtype(codes).numpy)
    else:
        low, high = {"u4": (0, 16), "i4": (-8, 8), "i8": (-128, 128), "u8": (0, 256)}[codes]
        data = RNG.integers(low, high, (n, k)).astype(dtype(codes).numpy)
    groups = (n, -(-k // group)) if group else (n,)
    scales = constant((RNG.random(groups) * 0.1).astype(dtype(kind).numpy))
    given = [constant(data), scales]
    if zeros == "float":
        given.append(constant((RNG.random(groups) * 8).astype(dtype(kind).numpy)))
    elif zeros:
        given.append(constant(RNG.integers(0, 8, groups).astype(dtype(codes).numpy)))
    op = Dequantize(axis=1, block=group, to=dtype(kind)) if group else None
    return Transpose((1, 0))((op or Dequantize(axis=0, to=dtype(kind)))(*given))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_rows_are_normalised_inside_the_product(kind: str, rows: int) -> None:
    x = tensor("x", (rows, 72), kind)
    y = Dot()(RmsNorm((1,), 1e-3)(x), weights((72, 33), kind))
    check(Graph((x,), (("y", y),)), steps=1, every=kind != "bf16")


def test_a_scale_of_the_norm_is_applied_on_the_way() -> None:
    x = tensor("x", (2, 72))
    y = Dot()(RmsNorm((1,))(x, weights((72,))), weights((72, 20)))
    check(Graph((x,), (("y", y),)), steps=1)


def test_normalised_rows_are_read_through_reshapes() -> None:
    x = tensor("x", (2, 3, 40))
    y = Dot()(Reshape((6, 40))(RmsNorm((2,))(x, weights((40,)))), weights((40, 20)))
    check(Graph((x,), (("y", y),)), steps=1, every=False)


def test_what_else_reads_a_norm_gets_it_stored() -> None:
    x = tensor("x", (1, 40))
    h = RmsNorm((1,))(x)
    check(Graph((x,), (("y", Dot()(h, weights((40, 20)))), ("h", h))), steps=2, every=False)


def test_many_rows_are_normalised_before() -> None:
    x = tensor("x", (9, 40))
    check(Graph((x,), (("y", Dot()(RmsNorm((1,))(x), weights((40, 20)))),)), steps=2, every=False)


def test_every_product_normalises_for_itself() -> None:
    x = tensor("x", (1, 40))
    h = RmsNorm((1,))(x)
    outputs = tuple((f"y{n}", Dot()(h, weights((40, n)))) for n in (16, 17, 18))
    check(Graph((x,), outputs), steps=3, every=False)


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_gate_is_applied_in_registers(kind: str, rows: int) -> None:
    x = tensor("x", (rows, 48), kind)
    y = Dot()(RmsNorm((1,))(x), weights((48, 66), kind))
    gated = Mul()(Silu()(columns(y, 0, 33)), columns(y, 33, 66))
    check(Graph((x,), (("y", gated),)), steps=1)


def test_any_work_on_parts_and_before_them_is_done_in_registers() -> None:
    x, r = tensor("x", (2, 48)), tensor("r", (2, 24))
    y = Add()(Dot()(x, weights((48, 72))), weights((72,)))
    parts = [columns(y, s, s + 24) for s in (48, 0, 24)]
    made = Add()(Mul()(Gelu()(parts[0]), parts[1]), Mul()(parts[2], r))
    check(Graph((x, r), (("y", made),)), steps=1, every=False)


def test_parts_of_different_widths_are_stored() -> None:
    x = tensor("x", (1, 48))
    y = Dot()(x, weights((48, 72)))
    made = Mul()(columns(y, 0, 36), columns(y, 71, 72))
    check(Graph((x,), (("y", made),)), steps=2, every=False)


def test_parts_of_many_rows_are_stored() -> None:
    x = tensor("x", (12, 48))
    y = Dot()(x, weights((48, 64)))
    made = Mul()(Silu()(columns(y, 0, 32)), columns(y, 32, 64))
    check(Graph((x,), (("y", made),)), steps=2, every=False)


def decoder_layer(x: Value, product, width: int, hidden: int, kind: str) -> Value:
    """The linears of a layer: qkv (of which queries go on), o, gate and up, down."""
    scale = weights((width,), kind)
    h = product(RmsNorm((1,))(x, scale), width, width + 16)
    x = Add()(x, product(columns(h, 0, width), width, width))
    both = product(RmsNorm((1,))(x, scale), width, 2 * hidden)
    gated = Mul()(Silu()(columns(both, 0, hidden)), columns(both, hidden, 2 * hidden))
    return Add()(x, product(gated, hidden, width))


@pytest.mark.parametrize("form", ["plain", "coded"])
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_a_layer_of_a_decoder_is_four_kernels(form: str, kind: str) -> None:
    def product(x: Value, k: int, n: int) -> Value:
        if form == "plain":
            return Dot()(x, weights((k, n), kind))
        return Dot()(x, coded(n, k, "u4", 32, "codes", kind))

    x = tensor("x", (1, 64), kind)
    y = x
    for _ in range(2):
        y = decoder_layer(y, product, 64, 96, kind)
    check(Graph((x,), (("y", y),)), steps=8, every=False)


@pytest.mark.parametrize("form", ["plain", "coded"])
def test_the_pipeline_makes_four_kernels_of_nine_linears_and_norms(form: str) -> None:
    """Queries, keys, values, gate and up stand apart in a model, each norm with its scale."""

    def product(x: Value, k: int, n: int) -> Value:
        data = RNG.normal(size=(k, n)).astype(np.float32) * 0.2
        right = constant(data) if form == "plain" else coded(n, k, "i4", 32, "")
        return Dot()(x, right)

    x = first = tensor("x", (1, 64))
    outputs = []
    for number in range(2):
        h = RmsNorm((1,))(x, weights((64,)))
        q, k, v = (product(h, 64, n) for n in (64, 16, 16))
        outputs += [(f"k{number}", k), (f"v{number}", v)]
        x = Add()(x, product(q, 64, 64))
        h = RmsNorm((1,))(x, weights((64,)))
        gate, up = (product(h, 64, 96) for _ in range(2))
        x = Add()(x, product(Mul()(Mul()(gate, Sigmoid()(gate)), up), 96, 64))
    # Codes this small would be decoded once and for all.
    options = PassOptions({"fold_constants": {"small": 0}})
    graph = Graph((first,), (("y", x), *outputs))
    graph = optimise(graph, environment=Environment(cost=GPU_COST), options=options)
    program = lower_for_gpu(graph)
    kinds = [s.region.kind for s in program.steps]
    assert kinds.count("dot") == 8, str(program)
    # Keys and values are copied out of the joined product; nothing else is left.
    assert set(kinds) == {"dot", "pointwise"}
    assert kinds.count("pointwise") == 4
    folded = [v for v in graph.values if isinstance(v.op, RmsNorm) and len(v.inputs) == 1]
    assert len(folded) == (4 if form == "plain" else 0)
    check(graph, every=False)


@pytest.mark.parametrize(
    ("codes", "group", "zeros"),
    [
        ("u4", 32, "codes"),
        ("u4", 128, "codes"),
        ("u4", 16, "float"),
        ("i4", 32, ""),
        ("i4", 256, "codes"),
        ("u4", 0, ""),
        ("i8", 32, ""),
        ("u8", 64, "codes"),
        ("i8", 0, ""),
        ("u8", 0, "codes"),
        ("f8e4m3fn", 0, ""),
        ("f4e2m1", 32, ""),
    ],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_coded_weights(codes: str, group: int, zeros: str, rows: int) -> None:
    x = tensor("x", (rows, 320))
    y = Dot()(RmsNorm((1,))(x, weights((320,))), coded(42, 320, codes, group, zeros))
    gated = Mul()(Silu()(columns(y, 0, 21)), columns(y, 21, 42))
    graph = Graph((x,), (("y", gated),))
    assert candidate_names(graph)[0][0].startswith("coded rows")
    check(graph, steps=1, every=False)


def test_every_candidate_of_coded_weights() -> None:
    x = tensor("x", (3, 256), "f16")
    y = Add()(Dot()(x, coded(40, 256, "u4", 32, "codes", "f16")), weights((40,), "f16"))
    check(Graph((x,), (("y", y),)), steps=1)


def test_codes_along_rows() -> None:
    x = tensor("x", (1, 96))
    data = constant(RNG.integers(-8, 8, (96, 20)).astype(dtype("i4").numpy))
    scales = constant(RNG.random((3, 20)).astype(np.float32))
    y = Dot()(x, Dequantize(axis=0, block=32, to=dtype("f32"))(data, scales))
    graph = Graph((x,), (("y", y),))
    assert candidate_names(graph)[0][0].startswith("coded rows")
    check(graph, steps=1, every=False)


def in_halves(graph: Graph) -> list[str]:
    """The candidates that make two products at once."""
    return [n for names in candidate_names(graph) for n in names if "halves" in n]


@pytest.mark.parametrize(
    ("rows", "k", "n", "codes", "group", "zeros"),
    [
        (1, 256, 40, "u4", 32, "codes"),
        (1, 512, 24, "u4", 128, "codes"),
        (2, 320, 42, "i4", 32, ""),
        (5, 384, 16, "i4", 128, "codes"),
        (8, 320, 20, "u4", 64, "codes"),
        (1, 1024, 24, "i4", 0, ""),
        (2, 96, 20, "u4", 16, "codes"),
        (1, 97, 24, "u4", 0, "codes"),
    ],
)
@pytest.mark.parametrize("norm", ["none", "plain", "scaled"])
def test_two_products_at_once(
    rows: int, k: int, n: int, codes: str, group: int, zeros: str, norm: str
) -> None:
    x, r = tensor("x", (rows, k), "f16"), tensor("r", (rows, n // 2), "f16")
    scale = [weights((k,), "f16")] if norm == "scaled" else []
    h = x if norm == "none" else RmsNorm((1,))(x, *scale)
    y = Dot()(h, coded(n, k, codes, group, zeros, "f16"))
    gated = Mul()(Silu()(columns(y, 0, n // 2)), columns(y, n // 2, n))
    graph = Graph((x, r), (("y", Add()(r, gated)),))
    names = in_halves(graph)
    assert len(names) > 2
    check(graph, steps=1, chosen=names[:5])


@pytest.mark.parametrize("start", [0, 2, 3])
def test_pairs_of_parts_of_rows(start: int) -> None:
    """Rows that start within a pair, or within others, are read element by element."""
    x = tensor("x", (3, 140), "f16")
    rows = columns(x, start, start + 128)
    graph = Graph((x,), (("y", Dot()(rows, coded(16, 128, "u4", 32, "codes", "f16"))),))
    program = lower_for_gpu(graph)
    found = select.candidates(GpuContext(program, program.steps[-1], ARCHES["sm_90"]))
    (work,) = next(c for c in found if "halves" in c.name).make()
    assert isinstance(work, Launch)
    assert ("pointer_type(tl.int32)" in work.source) == (start % 2 == 0)
    check(graph, chosen=in_halves(graph)[:2])


def test_large_and_small_rows_and_scales_fit_in_halves() -> None:
    """A norm makes the same of rows of any size; its scales are halved until they fit."""
    x = tensor("x", (2, 256), "f16")
    scale = constant(RNG.uniform(100, 3000, 256).astype(np.float16))
    small = constant((RNG.random((8, 8)) * 2e-5).astype(np.float16))
    codes = constant(RNG.integers(0, 16, (8, 256)).astype(dtype("u4").numpy))
    zeros = constant(RNG.integers(0, 16, (8, 8)).astype(dtype("u4").numpy))
    right = Transpose((1, 0))(Dequantize(axis=1, block=32, to=dtype("f16"))(codes, small, zeros))
    graph = Graph((x,), (("y", Dot()(RmsNorm((1,))(x, scale), right)),))
    data = RNG.normal(size=(2, 256)) * [[15000.0], [0.02]]
    feeds = {"x": np.clip(data, -65504, 65504).astype(np.float16)}
    check(graph, feeds, steps=1, chosen=in_halves(graph)[:2])


@pytest.mark.parametrize("what", ["zero points", "scales"])
def test_what_halves_cannot_hold_is_multiplied_in_f32(what: str) -> None:
    x = tensor("x", (1, 128), "f16")
    codes = constant(RNG.integers(0, 16, (16, 128)).astype(dtype("u4").numpy))
    kind = np.float32 if what == "scales" else np.float16
    given = [codes, constant((RNG.random((16, 4)) * 0.1).astype(kind))]
    if what == "zero points":
        given.append(constant((RNG.random((16, 4)) * 8).astype(np.float16)))
    right = Transpose((1, 0))(Dequantize(axis=1, block=32, to=dtype("f16"))(*given))
    graph = Graph((x,), (("y", Dot()(x, right)),))
    assert not in_halves(graph)
    assert candidate_names(graph)[0][0].startswith("coded rows")


def test_long_rows_are_first_tried_in_two_steps() -> None:
    x = tensor("x", (1, 8192), "f16")
    graph = Graph((x,), (("y", Dot()(x, coded(16, 8192, "i4", 128, "", "f16"))),))
    words = [int(n.split("x")[1].split()[0]) for n in in_halves(graph)]
    assert words[0] >= 512
    assert [w < 512 for w in words] == sorted(w < 512 for w in words)


def test_a_residual_is_asked_for_before_the_products() -> None:
    x, r = tensor("x", (1, 256), "f16"), tensor("r", (1, 16), "f16")
    y = Add()(r, Dot()(x, coded(16, 256, "u4", 128, "codes", "f16")))
    program = lower_for_gpu(Graph((x, r), (("y", y),)))
    found = select.candidates(GpuContext(program, program.steps[0], ARCHES["sm_90"]))
    (work,) = next(c for c in found if "halves" in c.name).make()
    assert isinstance(work, Launch)
    before, after = work.source.split("gdc_wait()")
    given = work.arguments.index(program.graph.inputs[1])
    assert f"tl.load(p{given}" not in before
    assert after.index(f"tl.load(p{given}") < after.index("fma.rn.f16x2")
    assert after.count(f"tl.load(p{given}") == 1


@pytest.mark.parametrize(
    ("arch", "kind", "there"),
    [("sm_90", "f16", True), ("sm_90", "f32", False), ("gfx942", "f16", False)],
)
def test_halves_are_for_one_backend(arch: str, kind: str, there: bool) -> None:
    x = tensor("x", (1, 256), kind)
    y = Dot()(RmsNorm((1,))(x), coded(16, 256, "u4", 128, "codes", kind))
    program = lower_for_gpu(Graph((x,), (("y", y),)))
    found = select.candidates(GpuContext(program, program.steps[0], ARCHES[arch]))
    assert "halves" not in found[0].name
    sources = [w.source for c in found for w in c.make() if isinstance(w, Launch)]
    assert any("inline_asm" in s for s in sources) == there


def test_weights_are_under_way_before_the_wait() -> None:
    x = tensor("x", (1, 256), "f16")
    for weight in (weights((256, 16), "f16"), coded(16, 256, "u4", 128, "codes", "f16")):
        program = lower_for_gpu(Graph((x,), (("y", Dot()(RmsNorm((1,))(x), weight)),)))
        found = select.candidates(GpuContext(program, program.steps[0], ARCHES["sm_90"]))
        (work,) = found[0].make()
        assert isinstance(work, Launch)
        before, after = work.source.split("gdc_wait()")
        assert before.index("gdc_launch_dependents()") < before.index("evict_first")
        given = work.arguments.index(program.graph.inputs[0])
        assert f"tl.load(p{given}" not in before
        assert f"tl.load(p{given}" in after


def test_groups_of_another_size_are_decoded_one_by_one() -> None:
    x = tensor("x", (1, 96))
    y = Dot()(x, coded(20, 96, "u4", 24, "codes"))
    graph = Graph((x,), (("y", y),))
    assert candidate_names(graph)[0][0].startswith("rows")
    check(graph, steps=1, every=False)
