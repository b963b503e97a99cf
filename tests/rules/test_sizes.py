"""Sizes that become known, and ops that waited for them."""

from __future__ import annotations

import numpy as np

from monograph.ir import constant
from monograph.ops.deferred import Deferred
from monograph.ops.elementwise import Add, Mul
from monograph.ops.index import Gather
from monograph.ops.shape import Concat, Reshape, ShapeOf, Unsqueeze
from monograph.rewrite import rules_in
from monograph.rules import sizes as rules
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

x = value("f32[2, 3, 4]")
RESHAPE = Deferred("reshape", ("shape",))


def test_a_known_shape_is_a_constant() -> None:
    before = graph_of(Add()(ShapeOf()(x), value("i64[3]", "n")))
    after = graph_of(Add()(constant(np.array([2, 3, 4])), value("i64[3]", "n")), x)
    done = check_rewrite(before, [rules.known_shape])
    assert done.outputs[0] == after.outputs[0]
    unknown = graph_of(ShapeOf()(value("f32[N, 3]")))
    check_declines(unknown, [rules.known_shape], "not known")


def test_a_deferred_op_settles_through_the_arithmetic_of_its_sizes() -> None:
    first = Gather(0)(ShapeOf()(x), constant(np.int64(0)))
    rows = Unsqueeze((0,))(Mul()(first, constant(np.int64(3))))
    before = graph_of(RESHAPE(x, Concat(0)(rows, constant(np.array([-1])))))
    check_rewrite(before, rules_in(rules), graph_of(Reshape((6, 4))(x)))


def test_a_deferred_op_that_depends_on_data_stays() -> None:
    before = graph_of(RESHAPE(x, value("i64[2]", "shape")))
    check_declines(before, [rules.settle_deferred], "shape depends on an input")


def test_a_deferred_op_that_refuses_its_attributes_is_left_to_fail_when_it_runs() -> None:
    before = graph_of(RESHAPE(x, constant(np.array([5, 5]))))
    check_declines(before, [rules.settle_deferred], "does not accept its attributes")


def test_what_is_too_long_for_an_attribute_stays() -> None:
    before = graph_of(Deferred("tile", ("repeats",))(x, constant(np.ones(2000, np.int64))))
    check_declines(before, [rules.settle_deferred], "too long")
