"""Views that trade places with the work behind them, where that joins the work to what is before.

Views move one way: down, behind elementwise work, concats and dots, until they meet others that
they merge with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from monograph.ir import Array, Constant, Op, Value, constant, known
from monograph.ops import OPS
from monograph.ops.base import Binary, Unary
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Where
from monograph.ops.linear import Dot
from monograph.ops.shape import Broadcast, Concat, Reshape, Transpose
from monograph.rewrite import Context, Reject, Rule, const, rewrite, variables
from monograph.rules.arrangement import Sizes, groups, inverse
from monograph.rules.views import is_static, without_leading_ones

x, y, a = variables("x y a")
w = const("w")

MAX_WORK = 16
"""Elementwise ops moved together: enough for an activation that reads its operand twice."""
ELEMENTWISE: tuple[type[Op], ...] = tuple(
    op for op in OPS.values() if issubclass(op, (Unary, Binary, Where, Cast))
)


@dataclass
class Expression:
    """Elementwise work between a value and the views of one kind that it reads."""

    root: Value
    order: list[Value] = field(default_factory=list)
    """The work, operands before users."""
    views: dict[Value, int] = field(default_factory=dict)
    """The views, and how often the work reads each."""
    others: dict[Value, None] = field(default_factory=dict)
    """Everything else that is read."""


def expression(root: Value, kind: type[Op], context: Context) -> Expression:
    """The work of a value on views; work that others read too is left as it is."""
    found = Expression(root)
    reads: dict[Value, int] = {root: 0}
    stack = [(root, False)]
    done: set[Value] = set()
    while stack:
        value, expanded = stack.pop()
        if expanded:
            found.order.append(value)
            continue
        if value in done:
            continue
        done.add(value)
        stack.append((value, True))
        for v in value.inputs:
            reads[v] = reads.get(v, 0) + 1
        for v in reversed(value.inputs):
            if isinstance(v.op, kind):
                found.views[v] = reads[v]
            elif _may_move(v, kind, found) and len(done) < MAX_WORK:
                stack.append((v, False))
            else:
                found.others[v] = None
    return found
