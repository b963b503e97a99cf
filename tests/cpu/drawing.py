"""Graphs that draw random numbers, and what holds for them on every target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from monograph.ir import Graph, Value, constant, evaluate, unpack
from monograph.ir.dtype import DType, f32
from monograph.ops.control import If, Loop
from monograph.ops.elementwise import Add
from monograph.ops.random import RandomNormal, RandomUniform, fresh_uid
from tests.cpu.dynamic.staging import body
from tests.rules.checks import graph_of, value

Compiler = Callable[[Graph], Any]
"""A function that makes an executable of a graph."""


def uniform(shape: tuple[int, ...], dtype: DType = f32, seed: float | None = None) -> Value:
    return RandomUniform(shape, dtype, -2.0, 3.0, seed, fresh_uid())()


def normal(shape: tuple[int, ...], dtype: DType = f32, seed: float | None = None) -> Value:
    return RandomNormal(shape, dtype, 1.0, 0.5, seed, fresh_uid())()


def drawing_loop(trips: Value) -> Graph:
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[4]", "s")
    drawn = normal((4,), seed=3.0)
    step = body((i, go, s), go, Add()(s, drawn), drawn)
    return graph_of(*unpack(Loop(step, 1)(trips, constant(np.array(True)), value("f32[4]"))))


def check_a_loop(compiled: Compiler, known: bool) -> None:
    """Every turn draws anew; how many there are is known, or data."""

    def trips() -> Value:
        return constant(np.int64(3)) if known else value("i64[]", "n")

    wanted, executable = drawing_loop(trips()), compiled(drawing_loop(trips()))
    feeds = {"x": np.zeros(4, np.float32)} | ({} if known else {"n": np.int64(3)})
    for _ in range(2):
        for a, b in zip(executable.run(feeds), evaluate(wanted, feeds), strict=True):
            np.testing.assert_allclose(a, b, 1e-6)
    assert not executable.host_steps


def check_a_branch(compiled: Compiler) -> None:
    """Only the side that is taken draws."""

    def branching() -> Graph:
        sides = If(body((), uniform((3,), seed=5.0)), body((), constant(np.zeros(3, np.float32))))
        return graph_of(*unpack(sides(value("bool[]", "c"))))

    wanted, executable = branching(), compiled(branching())
    for side in (True, False, False, True):
        feeds = {"c": np.array(side)}
        np.testing.assert_array_equal(executable.run(feeds), evaluate(wanted, feeds))
