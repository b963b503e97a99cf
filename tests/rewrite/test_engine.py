"""The engine: matching, fixpoint, reasons, loops, bisection."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import VerifyError
from monograph.ir import Graph, Input, Value, constant, parse_type
from monograph.ops.elementwise import Abs, Add, Clip, Exp, Mul, Neg, Sigmoid, Sub
from monograph.ops.shape import Reshape
from monograph.rewrite import (
    ANY,
    Context,
    Reject,
    RewriteLoopError,
    Rule,
    Trace,
    apply_rules,
    const,
    number,
    rewrite,
    variables,
)
from monograph.rewrite.pattern import match

x, y, a, b = variables("x y a b")


def make(text: str = "f32[4]", name: str = "x") -> Value:
    return Input(name, parse_type(text))()


def graph_of(value: Value, **origins: Value) -> Graph:
    inputs = tuple(v for v in Graph((), (("y", value),)).values if isinstance(v.op, Input))
    return Graph(inputs, (("y", value),), origins={v: k for k, v in origins.items()})


@rewrite(Neg()(Neg()(x)), exact=True)
def cancel(x: Value) -> Value:
    """-(-x) -> x"""
    return x


@rewrite(Sub()(x, y), exact=True)
def subtract(x: Value, y: Value) -> Value:
    """x - y -> x + -y"""
    return Add()(x, Neg()(y))


def test_patterns_bind_values_and_attributes() -> None:
    v = make()
    (found,) = match(Clip(a, b)(Neg()(x)), Clip(1.0, 2.0)(Neg()(v)))
    assert found == {"a": 1.0, "b": 2.0, "x": v}
    assert not list(match(Clip(a, b)(Neg()(x)), Clip(1.0, 2.0)(Abs()(v))))


def test_a_variable_used_twice_matches_one_value() -> None:
    v, w = make(), make(name="w")
    pattern = Mul()(x, Sigmoid()(x))
    assert list(match(pattern, Mul()(v, Sigmoid()(v))))
    assert not list(match(pattern, Mul()(w, Sigmoid()(v))))
    assert list(match(Clip(a, a)(x), Clip(1.0, 1.0)(v)))
    assert not list(match(Clip(a, a)(x), Clip(0.0, -0.0)(v)))


def test_commutative_operands_match_either_way() -> None:
    v = make()
    pattern = Mul()(x, Sigmoid()(x))
    assert list(match(pattern, Mul()(Sigmoid()(v), v)))
    assert not list(match(Sub()(x, Sigmoid()(x)), Sub()(Sigmoid()(v), v)))
    # Both orders are tried at every level: the inner sum decides which outer order fits.
    nested = Add()(Add()(Neg()(x), y), x)
    assert list(match(nested, Add()(v, Add()(make(name="z"), Neg()(v)))))


def test_left_out_attributes_must_have_their_default_and_any_leaves_them_open() -> None:
    v = Clip(0.0, 6.0)(make())
    assert not list(match(Clip(lo=0.0)(x), v))
    assert list(match(Clip(0.0, ANY)(x), v))


def test_numbers_match_constants_by_value_and_sign() -> None:
    v = make()
    ones = constant(np.ones((4,), np.float32))
    assert list(match(Mul()(x, number(1.0)), Mul()(ones, v)))
    assert not list(match(Mul()(x, number(1.0)), Mul()(constant(np.float32(2)), v)))
    zero = constant(np.float32(-0.0))
    assert list(match(Add()(x, number(-0.0)), Add()(v, zero)))
    assert not list(match(Add()(x, number(0.0)), Add()(v, zero)))
    assert not list(match(Mul()(x, number(1.0)), Mul()(v, make(name="z"))))


def test_const_matches_constants_only() -> None:
    v = make()
    k = const("k")
    assert list(match(Mul()(x, k), Mul()(v, constant(np.float32(3)))))
    assert not list(match(Mul()(x, k), Mul()(v, make(name="z"))))


def test_rules_run_to_a_fixpoint_through_what_they_make() -> None:
    v = make()
    value = v
    for _ in range(9):
        value = Sub()(make(name="w"), Neg()(value))
    after = apply_rules(graph_of(value), [subtract, cancel])
    names = [u.op.name for u in after.values]
    assert "sub" not in names
    assert "neg" not in names
    assert names.count("add") == 9


def test_a_chain_of_ten_thousand_is_rewritten_without_recursion() -> None:
    v = value = make()
    for _ in range(10_000):
        value = Neg()(value)
    after = apply_rules(graph_of(Exp()(value)), [cancel])
    assert after.values == (v, Exp()(v))


def test_a_rule_that_declines_leaves_its_reason_and_both_values() -> None:
    @rewrite(Clip(a, b)(x), exact=True)
    def drop(x: Value, a: float, b: float) -> Value | Reject:
        """Clip(x) -> x"""
        return Reject("too tight", expected=9.0, given=b) if b < 9 else x

    trace = Trace()
    clipped = Clip(0.0, 6.0)(make())
    graph = graph_of(Clip(0.0, 10.0)(Neg()(clipped)), Clip_7=clipped)
    after = apply_rules(graph, [drop], trace=trace)
    assert [f.rule for f in trace.fired] == ["drop"]
    (miss,) = trace.nearest("drop")
    assert miss.reason == "too tight (expected 9.0, given 6.0)"
    assert miss.origin == "Clip_7"
    assert clipped in after.values


def test_a_near_miss_of_the_pattern_says_what_stood_in_the_way() -> None:
    trace = Trace()
    value = Neg()(Abs()(make()))
    apply_rules(graph_of(value, Neg_0=value), [cancel], trace=trace)
    (miss,) = trace.nearest("cancel")
    assert "is not neg" in miss.reason
    assert miss.origin == "Neg_0"


def test_a_pattern_that_matches_further_is_a_nearer_miss() -> None:
    @rewrite(Add()(Mul()(x, const("a")), const("b")), exact=False)
    def scale(x: Value) -> Value:
        """x * a + b -> x"""
        return x

    trace = Trace()
    plain, k = make(), constant(np.float32(2))
    no_factor, no_addend = Add()(Mul()(plain, plain), k), Add()(Mul()(plain, k), Abs()(plain))
    graph = graph_of(Sub()(no_factor, no_addend), Factor=no_factor, Addend=no_addend)
    apply_rules(graph, [scale], trace=trace)
    assert [m.origin for m in trace.nearest("scale")] == ["Addend", "Factor"]


def nearest_reason(rule: Rule, value: Value) -> str:
    trace = Trace()
    apply_rules(graph_of(value), [rule], trace=trace)
    return trace.nearest(rule.name)[0].reason


def test_the_operand_beside_one_that_fits_is_the_nearer_miss() -> None:
    """Operands of commutative ops, in both orders: the reason is the same."""

    @rewrite(Mul()(Mul()(x, const("a")), const("b")), exact=False)
    def merge(x: Value) -> Value:
        """(x * a) * b -> x"""
        return x

    @rewrite(Mul()(x, Neg()(x)), exact=False)
    def square(x: Value) -> Value:
        """x * -x -> x"""
        return x

    @rewrite(Add()(x, number(0.0)), exact=True)
    def add_zero(x: Value) -> Value:
        """x + 0 -> x"""
        return x

    data, k = Abs()(make()), constant(np.arange(2.0, 6.0, dtype=np.float32))
    for a, b in ((data, k), (k, data)):
        assert nearest_reason(merge, Mul()(a, b)) == f"{data!r} is not mul"
        assert nearest_reason(square, Mul()(a, b)) == f"{data!r} is not neg"
        assert nearest_reason(add_zero, Add()(a, b)) == "the constant is not 0"
    both = Mul()(data, Mul()(data, make()))
    assert nearest_reason(merge, both).endswith("not a constant")


def test_a_value_of_another_form_is_the_farthest_miss() -> None:
    @rewrite(Abs, exact=True)
    def drop(value: Value) -> Value | Reject:
        """|e^x| -> e^x"""
        given = value.inputs[0]
        if not isinstance(given.op, Exp):
            return Reject("not of an exponential", near=False)
        return Reject("costs more", "below 1 us", "2 us")

    trace = Trace()
    other, near = Abs()(make()), Abs()(Exp()(make()))
    apply_rules(graph_of(Add()(other, near), Other=other, Near=near), [drop], trace=trace)
    assert [(m.origin, m.score) for m in trace.nearest("drop")] == [("Near", 101), ("Other", 1)]


def test_use_counts_reach_the_guards() -> None:
    @rewrite(Neg()(Abs()(x)), exact=True)
    def only_user(x: Value, root: Value, context: Context) -> Value | Reject:
        """-|x| -> -(|x|) where |x| has one user"""
        inner = root.inputs[0]
        if context.use_count(inner) > 1:
            return Reject("another user", 1, context.use_count(inner))
        return Neg()(x)

    v = make()
    inner = Abs()(v)
    shared = Graph((v,), (("a", Neg()(inner)), ("b", Exp()(inner))))
    assert apply_rules(shared, [only_user]) == shared
    alone = Graph((v,), (("a", Neg()(inner)),))
    assert apply_rules(alone, [only_user]) != alone


def test_rules_in_circles_are_caught_and_named() -> None:
    @rewrite(Add()(x, y), exact=True)
    def to_sub(x: Value, y: Value) -> Value:
        """x + y -> x - -y"""
        return Sub()(x, Neg()(y))

    with pytest.raises(RewriteLoopError, match=r"subtract|to_sub"):
        apply_rules(graph_of(Add()(make(), make(name="y"))), [to_sub, subtract, cancel])


def test_a_rule_that_only_grows_is_caught_and_named() -> None:
    @rewrite(Neg()(x), exact=True)
    def grow(x: Value) -> Value:
        """-x -> --(-x)"""
        return Neg()(Abs()(Neg()(Abs()(x))))

    with pytest.raises(RewriteLoopError, match="grow"):
        apply_rules(graph_of(Neg()(make())), [grow])


def test_a_rule_that_changes_a_type_is_caught_and_named() -> None:
    @rewrite(Neg()(x), exact=True)
    def flatten(x: Value) -> Value:
        """wrong on purpose"""
        return Reshape((-1,))(x)

    with pytest.raises(VerifyError, match="flatten"):
        apply_rules(graph_of(Neg()(make("f32[2, 2]"))), [flatten])


def test_origins_join_what_a_rule_replaced() -> None:
    v, w = make(), make(name="w")
    inner = Neg()(w)
    outer = Sub()(v, inner)
    trace = Trace()
    after = apply_rules(graph_of(outer, Neg_0=inner, Sub_1=outer), [subtract, cancel], trace=trace)
    (_, result) = after.outputs[0]
    assert result is Add()(v, w)
    assert "Sub_1" in (after.origin(result) or "")


def test_origins_join_for_rules_that_take_whole_values() -> None:
    @rewrite(Exp, exact=True)
    def shorten(value: Value) -> Value | Reject:
        """exp(-(-x)) -> exp(x)"""
        inner = value.inputs[0]
        if inner.op.name != "neg" or inner.inputs[0].op.name != "neg":
            return Reject("not a double negation", "neg", inner.op.name)
        return Exp()(inner.inputs[0].inputs[0])

    first = Neg()(make())
    second = Neg()(first)
    third = Exp()(second)
    trace = Trace()
    graph = graph_of(third, Neg_0=first, Neg_1=second, Exp_2=third)
    after = apply_rules(graph, [shorten], trace=trace)
    assert set(trace.fired[0].origin.split(" + ")) == {"Neg_0", "Neg_1", "Exp_2"}
    assert after.origin(after.outputs[0][1]) == trace.fired[0].origin


def test_a_limit_stops_after_that_many_rewrites() -> None:
    v, w = make(), make(name="w")
    value = Sub()(Sub()(v, w), w)
    for count in range(4):
        trace = Trace()
        apply_rules(graph_of(value), [subtract], trace=trace, limit=count)
        assert len(trace.fired) == min(count, 2)


def test_a_rule_needs_its_equation() -> None:
    with pytest.raises(TypeError, match="no equation"):

        @rewrite(Neg()(x), exact=True)
        def nameless(x: Value) -> Value:
            return x


def test_a_shared_graph_is_rewritten_in_linear_time() -> None:
    value = v = make()
    for _ in range(300):
        value = Sub()(value, Neg()(value))
    trace = Trace()
    after = apply_rules(graph_of(value), [subtract, cancel], trace=trace)
    assert len(after.values) == 301
    assert trace.counts() == {"subtract": 300, "cancel": 300}
    assert v in after.values
