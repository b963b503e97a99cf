"""Plans of buffers whose sizes are open: they hold for all sizes, and waste nothing at the hint."""

from __future__ import annotations

import random

import pytest

from monograph.codegen.llvm.module.memory import ARENA, ByteSpan
from monograph.ir.size_expressions import evaluate
from monograph.ir.sizes import SizeScope, hint_of, is_open
from monograph.program.memory.memory_planner import Lifetime, plan
from tests.samples import SEED


@pytest.mark.parametrize("number", range(12))
def test_live_buffers_never_overlap_at_any_size(number: int) -> None:
    rng = random.Random(SEED + number)
    scope = SizeScope()
    h, w = scope.symbol("h", 30), scope.symbol("w", 50)
    sizes = [h * w * 4, (h + 2) * (w + 2) * 4, w * 300, h // 2 * w * 7, 640, (w + 31) // 32 * 5, 0]
    lives = []
    for key in range(30):
        first = rng.randrange(20)
        last = first + rng.randrange(5)
        lives.append(Lifetime(key, rng.choice(sizes) * rng.randrange(1, 4), first, last))
    made = plan(lives)
    exact = plan([Lifetime(x.key, hint_of(x.nbytes), x.first, x.last) for x in lives])
    assert hint_of(made.size) <= exact.size
    assert not scope.guards
    for values in ((30, 50), (2, 2), (2, 900), (700, 3), (31, 33)):
        given = dict(zip(scope.hints, values, strict=True))

        def at(n: int, given: dict = given) -> int:
            return evaluate(n.expression, given) if is_open(n) else n

        for x in lives:
            start = at(made.offsets[x.key])
            assert start % 64 == 0
            assert start + at(x.nbytes) <= at(made.size)
            for y in lives:
                if y.key > x.key and y.first <= x.last and x.first <= y.last:
                    other = at(made.offsets[y.key])
                    apart = start + at(x.nbytes) <= other or other + at(y.nbytes) <= start
                    assert apart, f"seed {SEED + number}: {x} and {y} at {values}"


def test_memory_of_open_sizes_meets_unless_it_is_apart_for_all() -> None:
    scope = SizeScope()
    h, w = scope.symbol("h", 30), scope.symbol("w", 50)
    first = ByteSpan(ARENA, 0, h * 4)
    assert not first.meets(ByteSpan(ARENA, h * 4, h * 8))
    assert not first.meets(ByteSpan(ARENA, h * w * 4, h * w * 8))
    assert first.meets(ByteSpan(ARENA, h * 2, h * 3))
    assert first.meets(ByteSpan(ARENA, w * 4, w * 8)), "w may be smaller than h"
    assert first.meets(ByteSpan(ARENA, 200, 264)), "h may be larger"
    assert not first.meets(ByteSpan(7))
    assert not scope.guards
