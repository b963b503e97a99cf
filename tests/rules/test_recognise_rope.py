"""Rotary embedding in the spellings of exporters: halves and pairs, whole and in part."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Op, Value, constant
from monograph.ir.dtype import f32
from monograph.ops.attention import Rope
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Cos, Div, Mul, Neg, Sin, Sub
from monograph.ops.index import Gather
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Transpose, Unsqueeze
from monograph.rewrite import rules_in
from monograph.rules import recognise_rope as rules
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

x = value("f32[2, 3, 5, 8]")
freqs = value("f32[2, 5, 4]", "freqs")
RULES = rules_in(rules)
RULE = [rules.recognise_rope]
ANGLES = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)


def part(v: Value, start: int, stop: int, step: int = 1) -> Value:
    sizes = v.tensor.static
    rest = len(sizes) - 1
    return Slice((0,) * rest + (start,), (*sizes[:-1], stop), (1,) * rest + (step,))(v)


def halves(v: Value) -> tuple[Value, Value]:
    size = v.tensor.static[-1]
    return part(v, 0, size // 2), part(v, size // 2, size)


def pairs(v: Value) -> tuple[Value, Value]:
    size = v.tensor.static[-1]
    return part(v, 0, size, 2), part(v, 1, size, 2)


def by_turns(a: Value, b: Value) -> Value:
    last = a.tensor.rank
    joined = Concat(last)(Unsqueeze((last,))(a), Unsqueeze((last,))(b))
    return Reshape((*a.tensor.static[:-1], 2 * a.tensor.static[-1]))(joined)


def rotate_half(v: Value) -> Value:
    a, b = halves(v)
    return Concat(v.tensor.rank - 1)(Neg()(b), a)


def rope(v: Value, cos: Value, sin: Value) -> Value:
    return Add()(Mul()(v, cos), Mul()(rotate_half(v), sin))


def doubled(v: Value) -> Value:
    return Concat(v.tensor.rank - 1)(v, v)


def test_angles_from_frequencies() -> None:
    """As transformers write it: cos(concat(f, f)) of the positions, heads put in after."""
    both = doubled(freqs)
    cos, sin = (Unsqueeze((1,))(op(both)) for op in (Cos(), Sin()))
    after = check_rewrite(graph_of(rope(x, cos, sin)), RULES)
    result = after.outputs[0][1]
    assert isinstance(result.op, Rope)
    assert [v.tensor.static for v in result.inputs] == [(2, 3, 5, 8), (2, 5, 4), (2, 5, 4)]


@pytest.mark.parametrize("shape", [(5, 8), (1, 5, 8), (1, 1, 5, 8)])
def test_constant_angles(shape: tuple[int, ...]) -> None:
    cos, sin = (constant(np.tile(f(ANGLES), 2).reshape(shape)) for f in (np.cos, np.sin))
    before = Add()(Mul()(rotate_half(x), sin), Mul()(cos, x))
    once = [constant(f(ANGLES)[None]) for f in (np.cos, np.sin)]
    after = check_rewrite(graph_of(before), RULES)
    result = after.outputs[0][1]
    assert isinstance(result.op, Rope)
    assert [v.tensor.static for v in result.inputs[1:]] == [c.tensor.static for c in once]


def test_angles_from_a_table() -> None:
    places = value("i64[2, 5]", "places")
    tables = [constant(np.tile(f(ANGLES), 2)) for f in (np.cos, np.sin)]
    cos, sin = (Unsqueeze((1,))(Gather(0)(t, places)) for t in tables)
    after = check_rewrite(graph_of(rope(x, cos, sin)), RULES)
    assert isinstance(after.outputs[0][1].op, Rope)


def test_angles_scaled_cast_and_repeated() -> None:
    both = doubled(value("f16[5, 4]", "freqs"))
    wide = [Mul()(Cast(f32)(op(both)), constant(np.float32(1.5))) for op in (Cos(), Sin())]
    cos, sin = (Broadcast((2, 1, 5, 8))(v) for v in wide)
    after = check_rewrite(graph_of(rope(x, cos, sin)), RULES)
    assert isinstance(after.outputs[0][1].op, Rope)


def test_heads_behind_positions() -> None:
    late = value("f32[2, 5, 3, 8]")
    cos, sin = (Unsqueeze((2,))(op(doubled(freqs))) for op in (Cos(), Sin()))
    after = check_rewrite(graph_of(rope(late, cos, sin)), RULES)
    result = after.outputs[0][1]
    assert isinstance(result.op, Transpose)
    assert isinstance(result.inputs[0].op, Rope)


def test_parts_that_are_joined() -> None:
    a, b = halves(x)
    cos, sin = (Unsqueeze((1,))(op(freqs)) for op in (Cos(), Sin()))
    first = Sub()(Mul()(a, cos), Mul()(b, sin))
    second = Add()(Mul()(sin, a), Mul()(b, cos))
    before = Concat(3)(first, second)
    after = check_rewrite(graph_of(before), RULES)
    assert after.outputs[0][1].op == Rope()


def test_pairs_that_are_joined() -> None:
    a, b = pairs(x)
    cos, sin = (Unsqueeze((1,))(op(freqs)) for op in (Cos(), Sin()))
    first = Sub()(Mul()(a, cos), Mul()(b, sin))
    second = Add()(Mul()(b, cos), Mul()(a, sin))
    after = check_rewrite(graph_of(by_turns(first, second)), RULES)
    assert after.outputs[0][1].op == Rope(interleaved=True)


@pytest.mark.parametrize("how", ["stack", "broadcast", "constant"])
def test_interleaved(how: str) -> None:
    a, b = pairs(x)
    if how == "constant":
        cos, sin = (constant(np.repeat(f(ANGLES), 2, axis=1)) for f in (np.cos, np.sin))
    else:
        wide = Broadcast((2, 5, 4, 2))(Unsqueeze((3,))(freqs))
        twice = by_turns(freqs, freqs) if how == "stack" else Reshape((2, 5, 8))(wide)
        cos, sin = (Unsqueeze((1,))(op(twice)) for op in (Cos(), Sin()))
    before = Add()(Mul()(x, cos), Mul()(by_turns(Neg()(b), a), sin))
    after = check_rewrite(graph_of(before), RULES)
    assert after.outputs[0][1].op == Rope(interleaved=True)


def test_part_of_each_vector() -> None:
    few = value("f32[2, 5, 2]", "freqs")
    cos, sin = (Unsqueeze((1,))(op(doubled(few))) for op in (Cos(), Sin()))
    before = Concat(3)(rope(part(x, 0, 4), cos, sin), part(x, 4, 8))
    after = check_rewrite(graph_of(before), RULES)
    result = after.outputs[0][1]
    assert isinstance(result.op, Rope)
    assert result.inputs[0] is x


ROPE = Rope()(part(x, 0, 4), value("f32[1, 5, 2]", "c"), value("f32[1, 5, 2]", "s"))


def test_what_is_not_the_rest_stays() -> None:
    for rest in (part(x, 3, 7), part(value("f32[2, 3, 5, 8]", "y"), 4, 8)):
        check_declines(graph_of(Concat(3)(ROPE, rest)), [rules.extend_rope], "not the rest")


def test_a_part_with_another_user_stays() -> None:
    before = graph_of(Concat(3)(ROPE, part(x, 4, 8)), ROPE)
    check_declines(before, [rules.extend_rope], "rope has another user")


def angles(v: Value, axis: int = 1) -> tuple[Value, Value]:
    return Unsqueeze((axis,))(Cos()(v)), Unsqueeze((axis,))(Sin()(v))


WIDE = value("f32[2, 5, 8]", "wide")
HEADS = doubled(value("f32[2, 3, 5, 4]", "heads"))


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (rope(x, *angles(WIDE)), "angles of halves are not seen to be the same"),
        (rope(x, *angles(by_turns(freqs, freqs))), "not seen to be the same"),
        (rope(x, Cos()(HEADS), Sin()(HEADS)), "do not vary by position"),
    ],
)
def test_other_angles_stay(before: Value, reason: str) -> None:
    check_declines(graph_of(before), RULE, reason)


def test_rank_three_stays() -> None:
    both = doubled(value("f32[5, 4]", "freqs"))
    before = graph_of(rope(value("f32[3, 5, 8]"), Cos()(both), Sin()(both)))
    check_declines(before, RULE, "not of rank 4")


def test_a_turned_part_with_another_user_stays() -> None:
    cos, sin = angles(doubled(freqs))
    before = graph_of(rope(x, cos, sin), rotate_half(x))
    check_declines(before, RULE, "concat has another user")


@pytest.mark.parametrize("wrong", ["sign", "order", "halves"])
def test_another_turn_is_left_alone(wrong: str) -> None:
    a, b = halves(x)
    turned = {
        "sign": Concat(3)(b, a),
        "order": Concat(3)(Neg()(a), b),
        "halves": Concat(3)(Neg()(part(x, 3, 7)), a),
    }[wrong]
    cos, sin = angles(doubled(freqs))
    before = Add()(Mul()(x, cos), Mul()(turned, sin))
    assert rules.recognise_rope.function(value=before, context=None) is before


@pytest.mark.parametrize("op", [Div(), Sub(), Add()], ids=lambda op: op.name)
@pytest.mark.parametrize("side", ["straight", "across", "unary"])
def test_a_sum_of_other_things_than_two_products_is_left_alone(op: Op, side: str) -> None:
    cos, sin = angles(doubled(freqs))
    across: dict[str, Value] = {
        "straight": Mul()(rotate_half(x), sin),
        "across": op(rotate_half(x), sin),
        "unary": Neg()(rotate_half(x)),
    }
    straight = op(x, cos) if side == "straight" else Mul()(x, cos)
    for pair in ((straight, across[side]), (across[side], straight)):
        before = Add()(*pair)
        assert rules.recognise_rope.function(value=before, context=None) is before


def test_parts_of_different_angles_stay() -> None:
    a, b = halves(x)
    cos, sin = angles(freqs)
    first = Sub()(Mul()(a, cos), Mul()(b, sin))
    second = Add()(Mul()(a, cos), Mul()(b, sin))
    before = graph_of(Concat(3)(first, second))
    check_declines(before, [rules.recognise_rope_of_halves], "have different angles")
