"""Products of 2 to 64 rows on the matrix units: every tiling, weights of all kinds, fused work."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.triton.matmul.matrix_weights import FRACTIONS, decoding
from monograph.codegen.triton.module import select
from monograph.codegen.triton.module.kernel import GpuContext
from monograph.codegen.triton.module.launch import ARCHES, Launch
from monograph.ir import Graph, Value, constant, dtype
from monograph.ops.composite import RmsNorm, Silu
from monograph.ops.elementwise import Add, Mul
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Transpose
from monograph.runtime.gpu.executable import lower_for_gpu
from tests.gpu.against import candidate_names, check
from tests.gpu.matmul.test_gemv import RNG, coded, columns, tensor, weights
from tests.gpu.matmul.test_int4_f16x2 import as_halves, as_word, run


def together(graph: Graph) -> list[str]:
    """The candidates that multiply all rows at once."""
    return [n for names in candidate_names(graph) for n in names if n.startswith("matrix rows")]


def gated(x: Value, right: Value, scale: list[Value], normed: bool) -> Value:
    half = right.tensor.static[1] // 2
    y = Dot()(RmsNorm((1,), 1e-3)(x, *scale) if normed else x, right)
    return Mul()(Silu()(columns(y, 0, half)), columns(y, half, 2 * half))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("rows", "norm"), [(2, "scaled"), (16, "plain"), (64, ""), (5, "")])
def test_rows_are_normalised_and_gated_in_one_kernel(kind: str, rows: int, norm: str) -> None:
    x, r = tensor("x", (rows, 200), kind), tensor("r", (rows, 33), kind)
    scale = [weights((200,), kind)] if norm == "scaled" else []
    y = Add()(r, gated(x, weights((200, 66), kind), scale, bool(norm)))
    graph = Graph((x, r), (("y", y),))
    names = together(graph)
    assert len(names) > 3
    check(graph, steps=1, chosen=[names[0], names[-1]])


def test_every_tiling_of_numbers() -> None:
    x, r = tensor("x", (3, 1024), "f16"), tensor("r", (3, 40), "f16")
    graph = Graph((x, r), (("y", Add()(r, Dot()(x, weights((1024, 40), "f16")))),))
    names = together(graph)
    assert any("split" in n for n in names)
    assert any("left" in n for n in names)
    check(graph, steps=1, chosen=names)


def test_a_batch_of_weights() -> None:
    x = tensor("x", (3, 4, 72), "f16")
    graph = Graph((x,), (("y", Dot()(x, weights((3, 72, 24), "f16"))),))
    check(graph, steps=1, chosen=together(graph)[:3])


@pytest.mark.parametrize(
    ("codes", "group", "zeros", "kind"),
    [
        ("u4", 32, "codes", "f16"),
        ("u4", 128, "codes", "bf16"),
        ("u4", 16, "float", "f16"),
        ("i4", 32, "", "f16"),
        ("i4", 1024, "codes", "f16"),
        ("u4", 0, "", "bf16"),
        ("i8", 32, "codes", "f16"),
        ("u8", 64, "codes", "f16"),
        ("i8", 0, "", "f16"),
        ("u8", 0, "codes", "bf16"),
    ],
)
@pytest.mark.parametrize(("rows", "scaled"), [(2, True), (12, False)])
def test_coded_weights(
    codes: str, group: int, zeros: str, kind: str, rows: int, scaled: bool
) -> None:
    x = tensor("x", (rows, 1376), kind)
    scale = [weights((1376,), kind)] if scaled else []
    graph = Graph((x,), (("y", gated(x, coded(42, 1376, codes, group, zeros, kind), scale, True)),))
    names = together(graph)
    check(graph, steps=1, chosen=[names[0], names[-1]])


@pytest.mark.parametrize("codes", ["", "u4"])
def test_rows_of_a_batch_share_weights(codes: str) -> None:
    """A decoding step has one row for each sequence of a batch."""
    x, r = tensor("x", (5, 1, 256), "f16"), tensor("r", (5, 1, 40), "f16")
    right = coded(80, 256, codes, 32, "codes", "f16") if codes else weights((256, 80), "f16")
    y = Dot()(RmsNorm((2,), 1e-3)(x), right)
    y = Add()(r, Mul()(Silu()(columns(y, 0, 40)), columns(y, 40, 80)))
    graph = Graph((x, r), (("y", y),))
    names = together(graph)
    check(graph, steps=1, chosen=[names[0], names[-1]])
    x = tensor("x", (2, 3, 512), "f16")
    y = Dot()(x, coded(40, 512, codes, 32, "codes", "f16") if codes else weights((512, 40), "f16"))
    graph = Graph((x,), (("y", y),))
    names = [n for n in together(graph) if "split" in n]
    check(graph, steps=1, chosen=names[:2])


def test_every_tiling_of_codes() -> None:
    x = tensor("x", (9, 2048), "f16")
    graph = Graph((x,), (("y", Dot()(x, coded(24, 2048, "u4", 128, "codes", "f16"))),))
    names = together(graph)
    assert any("split" in n for n in names)
    check(graph, steps=1, chosen=names)


def test_a_stack_of_coded_weights() -> None:
    x = tensor("x", (2, 3, 64), "f16")
    data = constant(RNG.integers(0, 16, (2, 20, 64)).astype(dtype("u4").numpy))
    scales = constant((RNG.random((2, 20, 2)) * 0.1).astype(np.float16))
    right = Transpose((0, 2, 1))(Dequantize(axis=2, block=32, to=dtype("f16"))(data, scales))
    graph = Graph((x,), (("y", Dot()(x, right)),))
    check(graph, steps=1, chosen=together(graph)[:2])


def test_large_rows_and_scales_do_not_overflow() -> None:
    x = tensor("x", (2, 256), "f16")
    scale = constant(RNG.uniform(100, 3000, 256).astype(np.float16))
    right = constant((RNG.normal(size=(256, 8)) * 1e-4).astype(np.float16))
    graph = Graph((x,), (("y", Dot()(RmsNorm((1,))(x, scale), right)),))
    data = RNG.normal(size=(2, 256)) * [[15000.0], [0.02]]
    feeds = {"x": np.clip(data, -65504, 65504).astype(np.float16)}
    check(graph, feeds, steps=1, chosen=together(graph)[:2])


@pytest.mark.parametrize(
    ("rows", "kind", "there"),
    [(1, "f16", False), (2, "f16", True), (65, "f16", False), (4, "f32", False)],
)
def test_rows_and_types_that_the_units_take(rows: int, kind: str, there: bool) -> None:
    x = tensor("x", (rows, 64), kind)
    assert bool(together(Graph((x,), (("y", Dot()(x, weights((64, 32), kind))),)))) == there


def test_unknown_weights_are_left_to_other_kernels() -> None:
    x, y = tensor("x", (4, 64), "f16"), tensor("y", (64, 32), "f16")
    assert not together(Graph((x, y), (("z", Dot()(x, y)),)))
    # A norm of more rows than are multiplied one by one then has a kernel of its own.
    x = tensor("x", (12, 64), "f16")
    check(Graph((x, y), (("z", Dot()(RmsNorm((1,))(x), y)),)), steps=2, every=False)


@pytest.mark.parametrize("bits", [4, 8])
def test_pairs_of_codes_are_decoded_exactly(bits: int) -> None:
    """The machine code, by an interpreter: each code less its zero point, times its scale."""
    draw = np.random.default_rng(bits)
    for place in range(16 // bits):
        text, raised = decoding("f16", bits, place, scaled=True)
        for _ in range(20):
            pair, zero = draw.integers(0, 1 << bits, 2), int(draw.integers(0, 1 << bits))
            noise = int(draw.integers(0, 1 << 32)) & ~(((1 << bits) - 1) * 0x10001 << bits * place)
            word = noise | (int(pair[0]) | int(pair[1]) << 16) << bits * place
            added = -(FRACTIONS["f16"].value + zero) + raised
            given = [as_word(np.array([x, x])) for x in (added, 0.25)]
            found = as_halves(run(text, 1, word, *given).of["$0"])
            assert found.tolist() == [(int(q) - zero) * 0.25 for q in pair]


@pytest.mark.parametrize(("arch", "paired"), [("sm_80", True), ("sm_90", True), ("gfx942", False)])
def test_machine_code_is_for_one_backend(arch: str, paired: bool) -> None:
    x = tensor("x", (4, 256), "f16")
    graph = Graph((x,), (("y", Dot()(x, coded(32, 256, "u4", 32, "codes", "f16"))),))
    program = lower_for_gpu(graph)
    found = select.candidates(GpuContext(program, program.steps[0], ARCHES[arch]))
    works = [w for c in found if c.name.startswith("matrix rows") for w in c.make()]
    assert works
    for work in works:
        assert isinstance(work, Launch)
        assert ("inline_asm" in work.source) == paired
        assert ("gdc_wait" in work.source) == (arch == "sm_90")


def test_weights_are_loaded_before_the_wait() -> None:
    x = tensor("x", (8, 1024), "f16")
    program = lower_for_gpu(Graph((x,), (("y", Dot()(x, weights((1024, 64), "f16"))),)))
    found = select.candidates(GpuContext(program, program.steps[0], ARCHES["sm_90"]))
    (work,) = next(c for c in found if c.name.startswith("matrix rows")).make()
    assert isinstance(work, Launch)
    before, after = work.source.split("gdc_wait()")
    weight = next(i for i, a in enumerate(work.arguments) if not isinstance(a, Value))
    assert f"tl.load(p{weight}" in before
    assert f"tl.load(p{weight}" in after
