"""Classes of towers and joins: dots left, kernels left, numbers, and the twins that decline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Array, Graph, Value, constant, dtype, verify
from monograph.ops.composite import LayerNorm, RmsNorm, Softmax
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Abs, Add, Clip, Exp, Mul, Neg, Sigmoid, Sub, Tanh
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.reduce import ReduceMax, ReduceSum
from monograph.ops.shape import Reshape, Slice, Transpose
from monograph.passes.base import Environment, Pass, run_pass
from monograph.passes.horizontal.batch_towers import BatchTowers
from monograph.passes.horizontal.fuse_shared_input import FuseEmbeddings, FuseSharedInput
from monograph.passes.horizontal.hoist_slices import HoistRows
from monograph.pipeline import optimise
from monograph.program.lowering import lower
from monograph.rewrite import CPU_COST, GPU_COST, CostModel
from tests.cpu.against import check as check_cpu
from tests.rules.checks import check_numbers, graph_of, value

rng = np.random.default_rng(0)
Step = Callable[[Value], Value]
relu = Clip(lo=0.0)


def weight(*shape: int, kind: str = "f32") -> Value:
    return constant(rng.normal(size=shape).astype(dtype(kind).numpy))


def silu(x: Value) -> Value:
    return Mul()(x, Sigmoid()(x))


def norm(x: Value) -> Value:
    width = x.tensor.static[-1]
    return LayerNorm((-1,))(x, weight(width), weight(width))


def root_norm(x: Value) -> Value:
    return RmsNorm((-1,))(x, weight(x.tensor.static[-1]))


def layer(x: Value, width: int, kind: str = "f32") -> Value:
    return Add()(Dot()(x, weight(x.tensor.static[-1], width, kind=kind)), weight(width, kind=kind))


def tower(x: Value, widths: Sequence[int], *steps: Step) -> Value:
    """Layers of these widths, and steps after all but the last."""
    for i, width in enumerate(widths):
        x = layer(x, width)
        if i < len(widths) - 1:
            for step in steps:
                x = step(x)
    return x


def fuse(
    before: Graph, *passes: Pass, cost: CostModel = CPU_COST, exact: bool = False
) -> tuple[Graph, list[str]]:
    """The graph after the passes, checked, and the reasons of all rewrites that declined."""
    environment = Environment(cost)
    after = before
    for step in passes or (BatchTowers(), FuseSharedInput()):
        after = verify(run_pass(step, after, environment))
    check_numbers(before, after, exact=exact)
    misses = environment.trace.misses.values()
    return after, [m.reason for found in misses for m in found]


def count(graph: Graph, *names: str) -> list[int]:
    found = Counter(v.op.name for v in graph.values)
    return [found[n] for n in names]


def kernels(graph: Graph, cost: CostModel = CPU_COST) -> int:
    """The kernels of a graph behind the whole pipeline."""
    return len(lower(optimise(graph, environment=Environment(cost)), CpuTarget()).whole.steps)


# Norms and softmax between layers


@pytest.mark.parametrize(("towers", "depth"), [(2, 2), (6, 4), (5, 3)])
@pytest.mark.parametrize("between", [norm, root_norm, Softmax(-1)], ids=["layer", "rms", "softmax"])
def test_normalised_towers_stay_stacked(towers: int, depth: int, between: Step) -> None:
    x = value("f32[3, 16]")
    widths = [8] * (depth - 1) + [4]
    before = graph_of(*(tower(x, widths, between, silu) for _ in range(towers)))
    after, _ = fuse(before)
    name = between(x).op.name
    assert count(after, "dot", "concat", "sigmoid", name) == [depth, 0, depth - 1, depth - 1]
    plain = graph_of(*(tower(x, widths, silu) for _ in range(towers)))
    assert kernels(before) == kernels(plain) + depth - 1


def test_normalised_towers_run_on_the_cpu() -> None:
    x = value("f32[3, 16]")
    check_cpu(optimise(graph_of(*(tower(x, [8, 8, 4], norm, silu) for _ in range(3)))))


def test_norms_that_differ_are_batches_of_their_own() -> None:
    x = value("f32[3, 16]")
    steps = [norm, norm, root_norm, root_norm]
    after, _reasons = fuse(graph_of(*(tower(x, [8, 4], s) for s in steps)))
    assert count(after, "layer_norm", "rms_norm") == [1, 1]
    assert count(after, "dot")[0] <= 4
    lone, _ = fuse(graph_of(tower(x, [8, 4], norm), tower(x, [8, 4], root_norm)))
    assert count(lone, "layer_norm", "rms_norm") == [1, 1]


# Congruent layers with different epilogues


EPILOGUES: tuple[Step, ...] = (silu, relu, Tanh(), Abs(), lambda v: v)


@pytest.mark.parametrize("towers", [2, 4, 5])
def test_layers_with_different_epilogues_are_one_batch(towers: int) -> None:
    xs = [Abs()(value("f32[3, 16]", f"x{i}")) for i in range(towers)]
    ends = [EPILOGUES[i](layer(x, 8)) for i, x in enumerate(xs)]
    after, _ = fuse(graph_of(*ends), cost=GPU_COST)
    assert count(after, "dot", "add") == [1, 1]


def test_towers_with_different_activations_stay_stacked() -> None:
    x = value("f32[3, 16]")
    before = graph_of(*(tower(x, [8, 8, 4], EPILOGUES[i]) for i in (0, 1, 0, 2)))
    after, _ = fuse(before)
    assert count(after, "dot", "concat", "sigmoid", "clip", "tanh") == [3, 0, 2, 2, 2]
    check_cpu(optimise(before))


def test_an_epilogue_selects_and_never_mixes() -> None:
    """Numbers that overflow under another member's epilogue must not reach this one."""
    x = value("f32[2, 4]")
    large = [Exp()(Mul()(layer(x, 4), constant(np.float32(1000)))), relu(layer(x, 4))]
    after, _ = fuse(graph_of(*(Dot()(v, weight(4, 4)) for v in large)), cost=GPU_COST)
    assert count(after, "dot") == [2]


def test_costly_epilogues_are_batches_of_their_own() -> None:
    x = value("f32[512, 64]")
    long: list[Step] = [Tanh(), Sigmoid(), Exp()]

    def steps(v: Value, first: int) -> Value:
        for i in range(6):
            v = long[(first + i) % 3](v)
        return v

    towers = [layer(steps(layer(x, 64), i % 3), 64) for i in range(6)]
    after, _reasons = fuse(graph_of(*towers))
    assert count(after, "where") == [0]
    assert count(after, "dot") == [6]


# Independent layers at different depths


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("equal", [True, False])
def test_towers_at_different_depths_meet(depth: int, equal: bool) -> None:
    """One tower stands behind a layer of another kind: 2 d + 1 dots become d + 1."""
    widths = [8] * depth if equal else [8 - i for i in range(depth)]
    stem = silu(layer(value("f32[3, 16]"), 8))
    before = graph_of(tower(stem, widths, silu), tower(value("f32[3, 8]", "y"), widths, silu))
    after, _ = fuse(before, cost=GPU_COST)
    assert count(before, "dot") == [2 * depth + 1]
    assert count(after, "dot") == [depth + 1]


def test_crossing_towers_make_no_cycle() -> None:
    """a1 -> b2 and b1 -> a2: pairs (a1, a2) and (b1, b2) would need each other."""
    x = value("f32[3, 8]")
    a1, b1 = relu(layer(x, 8)), relu(layer(x, 6))
    a2 = layer(Dot()(b1, weight(6, 8)), 8)
    b2 = layer(Dot()(a1, weight(8, 8)), 6)
    after, reasons = fuse(graph_of(a1, b1, a2, b2), cost=GPU_COST)
    assert count(after, "dot")[0] >= 4
    assert any("needs the other" in r for r in reasons)


def test_an_input_that_needs_another_is_not_read_from_the_stack() -> None:
    """exp(x) and exp(y) may not be joined where y comes from exp(x)."""
    x = value("f32[3, 8]")
    y = Neg()(Exp()(x))
    before = graph_of(tower(x, [8, 8, 4], relu), tower(y, [8, 8, 4], relu), Exp()(y))
    after, _ = fuse(before, cost=GPU_COST)
    assert count(after, "dot") == [3]


# Subsets of a family


def test_members_that_do_not_adjoin_are_joined() -> None:
    """Members 0 and 2 (then 0 and 3) have a layer that the others lack."""
    x = value("f32[3, 16]")
    for chosen, members in (((0, 2), 3), ((0, 3), 4), ((0, 1, 3), 4)):
        first = [layer(x, 8) for _ in range(members)]
        tops = [layer(silu(v), 8) for v in first]
        extra = [layer(Neg()(tops[i]), 4) for i in chosen]
        others = [Softmax(-1)(Exp()(v)) for i, v in enumerate(tops) if i not in chosen]
        after, _ = fuse(graph_of(*extra, *others), cost=GPU_COST)
        assert count(after, "dot") == [3]


@pytest.mark.parametrize(("chosen", "softmaxes"), [((1, 2, 3), 1), ((0, 1, 3), 3)])
def test_members_of_wide_layers_are_not_copied_to_adjoin(
    chosen: Sequence[int], softmaxes: int
) -> None:
    """Members 1 to 3 are a slice of the stack; members 0, 1 and 3 would have to be copied."""
    x = value("f32[2048, 512]")
    members = [layer(x, 64) for _ in range(4)]
    ends = [Softmax(-1)(v) if i in chosen else Tanh()(v) for i, v in enumerate(members)]
    after, reasons = fuse(graph_of(*ends), cost=GPU_COST)
    assert count(after, "dot", "softmax") == [1, softmaxes]
    assert ("the members that agree do not adjoin" in reasons) == (softmaxes > 1)


def test_users_of_unknown_sizes_are_not_stacked() -> None:
    x, other = value("f32[3, 16]"), value("f32[N, 3, 8]", "other")
    members = [relu(layer(x, 8)) for _ in range(3)]
    after, _ = fuse(graph_of(*(Mul()(v, other) for v in members)), cost=GPU_COST)
    assert count(after, "dot", "clip", "mul") == [1, 1, 3]


def test_subsets_of_layers_that_need_each_other() -> None:
    """c needs a: b joins one of them, and three dots become two."""
    x, y = Abs()(value("f32[3, 8]")), Abs()(value("f32[3, 8]", "y"))
    a = layer(x, 8)
    c = layer(relu(a), 8)
    b = layer(y, 8)
    after, reasons = fuse(graph_of(c, b), cost=GPU_COST)
    assert count(after, "dot") == [2]
    assert any("needs the other" in r for r in reasons)


# Layers in groups


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 3, 1)])
def test_a_batch_does_not_break_up_a_join(order: Sequence[int]) -> None:
    """Five layers of one input, two pairs of which have layers of their own."""
    x = value("f32[3, 16]")
    first = [layer(x, 8) for _ in range(5)]
    ends = [
        layer(silu(first[0]), 8),
        layer(silu(first[1]), 8),
        layer(relu(first[2]), 4),
        layer(relu(first[3]), 4),
        Tanh()(first[4]),
    ]
    before = graph_of(*(ends[i] for i in order))
    after, _ = fuse(before)
    assert count(after, "dot") == [3]
    # One kernel per layer, and a copy for each output.
    assert kernels(before) == 3 + 5
    check_cpu(optimise(before))


@pytest.mark.parametrize("same", [True, False])
def test_a_batch_does_not_break_up_a_join_of_different_widths(same: bool) -> None:
    """Two towers and a layer of another width over one input: one wide dot, and a batch of two."""
    x = value("f32[3, 16]")
    first = [layer(x, n) for n in (8, 8, 4)]
    last = silu(first[2]) if same else Tanh()(first[2])
    before = graph_of(layer(silu(first[0]), 8), layer(silu(first[1]), 8), last)
    after, reasons = fuse(before)
    assert count(after, "dot", "sigmoid") == [2, 1]
    assert any("left to shared-input fusion" in r for r in reasons)
    check_cpu(optimise(before))


def test_keys_of_all_layers_stay_with_the_queries_of_their_own() -> None:
    """Keys leave the model in every layer: they may wait, but a wide layer has them for nothing."""
    x = value("f32[1, 16]")
    ends = []
    for _ in range(3):
        h = RmsNorm((1,))(x, weight(16))
        ends += [Dot()(h, weight(16, 4)) for _ in range(2)]
        x = Add()(x, Dot()(Dot()(h, weight(16, 16)), weight(16, 16)))
    for cost in (CPU_COST, GPU_COST):
        after, _ = fuse(graph_of(x, *ends), cost=cost)
        assert count(after, "dot", "concat") == [6, 0]


@pytest.mark.parametrize("widths", [(8, 8, 8), (8, 4, 6)])
def test_projections_with_different_epilogues_are_one_kernel(widths: Sequence[int]) -> None:
    x = value("f32[3, 16]")
    before = graph_of(*(f(layer(x, n)) for f, n in zip(EPILOGUES, widths, strict=False)))
    after, _ = fuse(before)
    assert count(after, "dot") == [1]
    # One kernel, and a copy for each output.
    assert kernels(before) == 1 + len(widths)


# Operands in another order


@pytest.mark.parametrize("towers", [2, 3, 6])
def test_operands_of_commutative_ops_come_in_any_order(towers: int) -> None:
    x = value("f32[3, 16]")
    ends = []
    for i in range(towers):
        bias, w = weight(8), weight(16, 8)
        made = Dot()(x, w)
        made = Add()(bias, made) if i % 2 else Add()(made, bias)
        gate = Sigmoid()(made)
        made = Mul()(gate, made) if i % 3 else Mul()(made, gate)
        ends.append(layer(made, 4))
    before = graph_of(*ends)
    after, _ = fuse(before)
    assert count(after, "dot", "add", "mul", "sigmoid") == [2, 2, 1, 1]
    assert kernels(before) == 2 + towers


def test_operands_of_a_difference_keep_their_order() -> None:
    x = value("f32[3, 16]")
    bias = weight(8)
    pairs = [Sub()(bias, Dot()(x, weight(16, 8))), Sub()(Dot()(x, weight(16, 8)), bias)]
    after, _ = fuse(graph_of(*(layer(v, 4) for v in pairs)))
    assert count(after, "sub") == [2]


# Weights of few bits


def coded(k: int, n: int, codes: str, form: str, size: int = 4) -> Value:
    """Weights [k, n] as codes with one scale, one for each column, or one for each block."""
    by_column = form.startswith("transposed")
    shape = (n, k) if by_column else (k, n)
    block, axis = 0, None
    scales: tuple[int, ...] = ()
    if form.endswith("blocks"):
        block, axis = size, 1 if by_column else 0
        scales = (n, -(-k // size)) if by_column else (-(-k // size), n)
    elif form.endswith("columns"):
        axis, scales = (0 if by_column else 1), (n,)
    given: list[Array] = [
        rng.integers(0, 8, shape),
        rng.random(scales) / 4,
        rng.integers(0, 8, scales),
    ]
    kinds = (dtype(codes), dtype("f32"), dtype(codes))
    data = [constant(np.asarray(g).astype(t.numpy)) for g, t in zip(given, kinds, strict=True)]
    made = Dequantize(dtype("f32"), axis, block)(*data)
    return Transpose((1, 0))(made) if by_column else made


FORMS = ["blocks", "transposed blocks", "columns", "transposed columns", "scalar"]


def coded_tower(x: Value, widths: Sequence[int], codes: str, form: str, size: int = 4) -> Value:
    for width in widths:
        weights = coded(x.tensor.static[-1], width, codes, form, size)
        x = silu(Add()(Dot()(x, weights), weight(width)))
    return x


@pytest.mark.parametrize("codes", ["i8", "u8", "u4", "i4"])
@pytest.mark.parametrize("form", FORMS)
def test_towers_of_codes_are_batched(codes: str, form: str) -> None:
    x = value("f32[2, 16]")
    before = graph_of(*(coded_tower(x, [8, 8, 8], codes, form) for _ in range(4)))
    after, _ = fuse(before)
    assert count(before, "dot") == [12]
    assert count(after, "dot", "dequantize", "sigmoid") == [3, 3, 3]
    # One kernel per layer, and a copy for each output.
    assert kernels(before) == 3 + 4


@pytest.mark.parametrize("codes", ["i8", "u4"])
@pytest.mark.parametrize("form", FORMS)
def test_stacked_codes_run_on_the_cpu(codes: str, form: str) -> None:
    x = value("f32[2, 16]")
    check_cpu(fuse(graph_of(*(coded_tower(x, [8, 5], codes, form) for _ in range(3))))[0])


@pytest.mark.parametrize(
    ("shape", "width"), [("[1, 12]", 40), ("[5, 12]", 1), ("[2, 3, 12]", 5), ("[40, 12]", 32)]
)
def test_stacked_codes_of_odd_sizes(shape: str, width: int) -> None:
    x = value(f"f32{shape}")
    before = graph_of(*(coded_tower(x, [width, width], "u4", "blocks") for _ in range(3)))
    after, _ = fuse(before)
    assert count(after, "dot") == [2]
    check_cpu(after)


def test_stacked_codes_multiply_integers_where_the_file_permits() -> None:
    x = value("f32[2, 64]")
    op = Dot(None, 8)

    def made(v: Value) -> Value:
        return silu(op(v, coded(64, 64, "u4", "transposed blocks", 32)))

    before = graph_of(*(made(made(x)) for _ in range(3)))
    after, _ = fuse(before)
    assert count(after, "dot") == [2]
    check_cpu(after)


def test_codes_of_other_types_stay_apart() -> None:
    x = value("f32[2, 16]")
    towers = [coded_tower(x, [8, 8], c, f) for c, f in (("u4", "blocks"), ("u8", "blocks"))]
    towers.append(coded_tower(x, [8, 8], "u4", "columns"))
    after, _ = fuse(graph_of(*towers))
    assert count(after, "dot") == [6]


# Reductions over slices


def cut(x: Value, start: int, stop: int) -> Value:
    sizes = x.tensor.static
    starts, stops = (0,) * (len(sizes) - 1), sizes[:-1]
    return Slice((*starts, start), (*stops, stop), (1,) * len(sizes))(x)


REDUCTIONS = [
    ReduceSum((-1,)),
    ReduceSum((-1,), True),
    ReduceMax((-1,)),
    ReduceSum((0,)),
    Softmax(-1),
]


@pytest.mark.parametrize("op", REDUCTIONS, ids=str)
@pytest.mark.parametrize("parts", [2, 3, 12])
def test_reductions_of_slices_become_one(op, parts: int) -> None:
    x = value("f32[2, 12]")
    width = 12 // parts
    before = graph_of(*(Exp()(op(Neg()(cut(x, i, i + width)))) for i in range(0, 12, width)))
    after, _ = fuse(before, HoistRows())
    assert count(after, op.name, "neg", "exp") == [1, 1, 1]
    assert run_pass(HoistRows(), after, Environment()) == after
    assert kernels(before) < 2 * parts + 1
    check_cpu(optimise(before))


def test_norms_of_slices_take_their_own_scales() -> None:
    x = value("f32[2, 12]")
    after, _ = fuse(graph_of(*(norm(cut(x, i, i + 4)) for i in (0, 4, 8))), HoistRows())
    assert count(after, "layer_norm") == [1]


def test_a_reduction_along_another_axis_takes_slices_of_any_width() -> None:
    x = value("f32[2, 12]")
    ranges = ((0, 5), (5, 6), (6, 12))
    after, _ = fuse(graph_of(*(ReduceSum((0,))(cut(x, a, b)) for a, b in ranges)), HoistRows())
    assert count(after, "reduce_sum") == [1]


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        (((0, 5), (5, 12)), "slices of different widths"),
        (((0, 4), (5, 9)), "leave a gap (expected a start at 4, given 5)"),
        (((0, 4), (3, 7)), "overlap (expected a start at 4, given 3)"),
    ],
)
def test_reductions_that_do_not_tile_stay(ranges, reason: str) -> None:
    x = value("f32[2, 12]")
    before = graph_of(*(ReduceSum((1,))(cut(x, a, b)) for a, b in ranges))
    after, reasons = fuse(before, HoistRows())
    assert after == before
    assert any(reason in r for r in reasons)


# Gathers


@pytest.mark.parametrize(
    "shapes", [("3", "5", "1", "4"), ("2, 3", "5", "2, 3", "1, 1"), ("", "3", "2")]
)
@pytest.mark.parametrize("kind", ["i64", "i32"])
def test_lookups_of_different_lengths_become_one(shapes: Sequence[str], kind: str) -> None:
    tables = [weight(5 + i, 4) for i in range(len(shapes))]
    indices = [value(f"{kind}[{s}] ", f"i{i}") for i, s in enumerate(shapes)]
    pairs = zip(tables, indices, strict=True)
    before = graph_of(*(Gather(0)(t, i) for t, i in pairs))
    after, _ = fuse(before, FuseEmbeddings(), cost=GPU_COST, exact=True)
    assert count(after, "gather") == [1]


def test_lookups_too_long_to_offset_stay() -> None:
    indices = [value(f"i64[{n}]", f"i{n}") for n in (200_000, 300_000, 100_000)]
    before = graph_of(*(Gather(0)(weight(5, 4), i) for i in indices))
    environment = Environment(CPU_COST)
    assert run_pass(FuseEmbeddings(), before, environment) == before
    assert "costs as much" in environment.trace.nearest("fuse_embeddings")[0].reason


# One weight for all members


def weight_bytes(graph: Graph) -> int:
    return sum(v.tensor.nbytes for v in graph.values if v.op.name == "constant")


@pytest.mark.parametrize("members", [2, 8])
def test_a_weight_of_all_members_is_stored_once(members: int) -> None:
    widths = [32, 16, 8]
    weights = [weight(a, b) for a, b in zip([64, *widths], widths, strict=False)]
    ends = []
    for i in range(members):
        v = value("f32[2, 64]", f"x{i}")
        for w in weights:
            v = silu(Dot()(v, w))
        ends.append(v)
    before = graph_of(*ends)
    after, _ = fuse(before, cost=GPU_COST)
    assert count(after, "dot") == [3]
    assert weight_bytes(after) <= weight_bytes(before)
    # One kernel per layer, and copies of the inputs and for each output.
    assert kernels(before, GPU_COST) == 3 + 2 * members
    check_cpu(optimise(before, environment=Environment(GPU_COST)))


def siamese(x: Value, kernels: Sequence[Value], top: Value) -> Value:
    for w in kernels:
        x = relu(Conv((1, 1), (1, 1), (1, 1), (1, 1), 1)(x, w))
    pooled = ReduceSum((2, 3))(x)
    return Dot()(Reshape((x.tensor.static[0], x.tensor.static[1]))(pooled), top)


@pytest.mark.parametrize("images", [1, 2])
def test_siamese_convolutions_are_one_of_more_images(images: int) -> None:
    weights = [weight(8, 3, 3, 3), weight(8, 8, 3, 3)]
    top = weight(8, 4)
    xs = [value(f"f32[{images}, 3, 5, 5]", f"x{i}") for i in range(4)]
    before = graph_of(*(siamese(x, weights, top) for x in xs))
    after, _ = fuse(before, cost=GPU_COST)
    assert count(after, "conv", "dot", "concat") == [2, 1, 1]
    assert weight_bytes(after) <= weight_bytes(before)
    assert {v.op.groups for v in after.values if isinstance(v.op, Conv)} == {1}
    check_cpu(optimise(before, environment=Environment(GPU_COST)))


def test_weights_of_some_members_only_are_stacked() -> None:
    shared = weight(16, 8)
    xs = [value("f32[2, 16]", f"x{i}") for i in range(3)]
    weights = [shared, shared, weight(16, 8)]
    ends = [layer(silu(Dot()(x, w)), 4) for x, w in zip(xs, weights, strict=True)]
    after, _ = fuse(graph_of(*ends), cost=GPU_COST)
    assert count(after, "dot") == [2]
