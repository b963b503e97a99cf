"""Classes of towers and joins: dots left, kernels left, numbers, and the twins that decline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from monograph.ir import Value, constant
from monograph.ops.composite import RmsNorm, Softmax
from monograph.ops.elementwise import Abs, Add, Exp, Mul, Neg, Sigmoid, Sub, Tanh
from monograph.ops.linear import Dot
from monograph.pipeline import optimise
from monograph.rewrite import CPU_COST, GPU_COST
from tests.cpu.against import check as check_cpu
from tests.passes.towers import (
    Step,
    count,
    fuse,
    kernels,
    layer,
    norm,
    relu,
    root_norm,
    silu,
    tower,
    weight,
)
from tests.rules.checks import graph_of, value

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
