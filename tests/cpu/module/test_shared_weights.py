"""A constant that is a kernel's weights and something else too: packed, and read from memory."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Value, constant
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Abs, Add, Mul
from monograph.ops.linear import Dot
from monograph.ops.shape import Reshape
from tests.cpu.against import check
from tests.rules.checks import graph_of, value

LAST = "channels_last"


def shared(*shape: int, kind: type[np.generic] = np.float32) -> Value:
    return constant(np.random.default_rng(1).normal(size=shape).astype(kind))


@pytest.mark.parametrize("rows", [1, 19])
def test_a_dot_adds_its_weights_to_its_result(rows: int) -> None:
    w = shared(rows, 19) if rows == 19 else shared(1, 1)
    x = value(f"f32[{rows}, {w.tensor.static[0]}]")
    check(graph_of(Add()(Dot()(x, w), w)), steps=1)


def test_a_dot_of_a_constant_with_itself() -> None:
    """Passes leave such a dot where they find out late that an operand is constant."""
    w = shared(2, 5, 5, kind=np.float64)
    check(graph_of(Add()(Dot()(w, w), value("f64[2, 5, 5]"))), steps=1)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_convolution_multiplies_its_result_by_its_weights(
    groups: int, kind: type[np.generic]
) -> None:
    w = shared(8, 1, 1, 1, kind=kind)
    op = Conv((1, 1), (0, 0), (0, 0), (1, 1), groups=groups, layout=LAST)
    y = op(Abs()(value(f"{w.dtype}[1, 2, 3, {groups}]")), w)
    check(graph_of(Mul()(y, Reshape((1, 1, 1, 8))(w))))
