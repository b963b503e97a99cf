"""The search of a graph for ops that draw random numbers."""

from __future__ import annotations

import numpy as np

from monograph.ir import Graph, Input, constant, dtype, parse_type, unpack
from monograph.ops.control import Fail, If
from monograph.ops.deferred import Deferred
from monograph.ops.elementwise import Neg
from monograph.ops.random import RandomNormal, fresh_uid
from monograph.program.legalise.lower_random import random_op_names

F32 = dtype("f32")


def branch(value) -> Graph:
    return Graph((), (("r", value),), "branch")


def test_ops_that_are_impure_for_other_reasons_are_not_random() -> None:
    condition = Input("c", parse_type("bool[]"))()
    fails = branch(Fail("it cannot run", parse_type("f32[2]"))())
    right = branch(Neg()(constant(np.ones(2, np.float32))))
    value = unpack(If(right, fails)(condition))[0]
    assert not value.op.pure or not value.inputs[0].op.pure
    assert random_op_names(Graph((condition,), (("y", value),))) == []


def test_random_op_names_are_found_in_sub_graphs_and_behind_sizes_of_run_time() -> None:
    condition = Input("c", parse_type("bool[]"))()
    drawn = RandomNormal((2,), F32, uid=fresh_uid())()
    value = unpack(If(branch(drawn), branch(Neg()(drawn)))(condition))[0]
    assert random_op_names(Graph((condition,), (("y", value),))) == ["random_normal"]
    size = Input("s", parse_type("i64[1]"))()
    static = (("dtype", F32), ("uid", fresh_uid()))
    late = Deferred("random_uniform", ("shape",), static)(size)
    assert random_op_names(Graph((size,), (("y", late),))) == ["random_uniform"]
