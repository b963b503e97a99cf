"""Open sizes: arithmetic, proofs, guards. Random programs check that guards cover all decisions."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from monograph.ir import Literal, TensorType, constant, known
from monograph.ir.dtype import f32, i64
from monograph.ir.size_expressions import Symbol, evaluate
from monograph.ir.size_guards import described
from monograph.ir.sizes import (
    Size,
    SizeScope,
    common_divisor,
    divides,
    hint_of,
    is_one,
    is_open,
    largest,
    proven,
)
from tests.samples import SEED


@pytest.fixture
def scope() -> SizeScope:
    return SizeScope()


def symbols(scope: SizeScope, **hints: int) -> list[Any]:
    return [scope.symbol(name, hint) for name, hint in hints.items()]


def test_arithmetic_is_canonical(scope: SizeScope) -> None:
    h, w = symbols(scope, h=6, w=8)
    assert repr((h + 1) * (w + 2) - h * w) == repr(w + 2 * h + 2)
    assert (w * 4) // 4 is not w
    assert repr((w * 4) // 4) == repr(w)
    assert (w - w) == 0
    assert type(w - w) is int
    assert repr(h * w % w) == "0"
    assert not scope.guards


def test_nested_quotients_become_one(scope: SizeScope) -> None:
    (w,) = symbols(scope, w=320)
    half = (w + 1) // 2
    assert repr((half + 1) // 2) == repr((w + 3) // 4)
    assert repr((w + 7) // 4) == repr((w + 3) // 4 + 1)
    assert repr(w // (w * 3)) == "0"
    assert repr(w % (w * 3)) == repr(w)


def test_size_passes_for_an_int(scope: SizeScope) -> None:
    (w,) = symbols(scope, w=5)
    assert isinstance(w, int)
    assert is_open(w)
    assert not is_open(5)
    assert hint_of(w + 1) == 6
    assert TensorType(f32, (w, 2)).is_static
    assert hash(w + 1) == hash(1 + w)
    assert not scope.guards


def test_proven_comparisons_record_nothing(scope: SizeScope) -> None:
    b, s = symbols(scope, b=2, s=37)
    assert s >= 2
    assert s != 1
    assert s < s + 1
    assert 2 * s != 2 * b + 1
    assert b * s > s
    assert (s + 3) // 4 >= 1
    assert not scope.guards


def test_unproven_comparison_records_its_answer(scope: SizeScope) -> None:
    (w,) = symbols(scope, w=320)
    assert w > 64
    assert w < 1000
    assert w != 77
    symbol = next(iter(scope.hints))
    (guard,) = scope.guards.values()
    assert (guard.least, guard.most, guard.other_than) == (65, 999, {77})
    assert scope.holds({symbol: 65})
    assert not scope.holds({symbol: 77})
    assert "must be in 65..999 and must not be 77" in described(guard)
    # What is known now needs no guard.
    assert w >= 65
    assert not (w > 5000)
    assert len(scope.guards) == 1


def test_guard_on_a_quotient_becomes_one_on_the_symbol(scope: SizeScope) -> None:
    (w,) = symbols(scope, w=320)
    assert (w + 3) // 4 > 16
    ((expression, guard),) = scope.guards.items()
    assert str(expression) == f"w@{scope.number}"
    assert guard.least == 65


@pytest.mark.parametrize(
    "use",
    [
        lambda w: range(w),
        lambda w: int(w),
        lambda w: float(w),
        lambda w: [0] * w,
        lambda w: np.zeros(w),
        lambda w: w / 3,
        lambda w: f"{w:d}",
        lambda w: 0.5 * w,
        lambda w: w.bit_length(),
    ],
)
def test_plain_int_is_the_hint_under_a_guard(scope: SizeScope, use: Any) -> None:
    (w,) = symbols(scope, w=6)
    use(w)
    (guard,) = scope.guards.values()
    assert guard.least == guard.most == 6


def test_text_is_a_register_of_the_table(scope: SizeScope) -> None:
    h, w = symbols(scope, h=6, w=8)
    assert f"{h * w}" == "%size.0"
    assert str(w) == "%size.1"
    assert f"{w * h}" == "%size.0"
    assert len(scope.table) == 2
    assert not scope.guards


def test_divisors(scope: SizeScope) -> None:
    h, w = symbols(scope, h=6, w=8)
    assert divides(w, 4 * h * w)
    assert not divides(8, w)  # it is true of the hint only
    assert repr(common_divisor(4 * h * w, 6 * w)) == repr(2 * w)
    assert common_divisor(12, 18) == 6
    assert not scope.guards


def test_largest_needs_no_guard(scope: SizeScope) -> None:
    h, w = symbols(scope, h=6, w=8)
    assert repr(largest((w, 2 * w, 1))) == repr(2 * w)
    most = largest((h, w))
    assert hint_of(most) == 8
    assert proven(2, "<=", most)
    assert not scope.guards


def test_value_keeps_sizes_as_a_constant(scope: SizeScope) -> None:
    (w,) = symbols(scope, w=8)
    made = constant([w, 3], i64)
    found = known(made)
    assert found is not None
    assert made.type == TensorType(i64, (2,))
    assert not made.closed
    assert is_open(found[0])
    assert Literal([w, 3]) == Literal([w, 3])
    assert Literal([w, 3]) != Literal([w + 1, 3])
    assert not scope.guards


def test_scopes_do_not_share_values() -> None:
    a, b = (constant([SizeScope().symbol("w", 8)], i64) for _ in range(2))
    assert a is not b


def _program(rng: random.Random, numbers: list[Any]) -> list[Any]:
    """Do random arithmetic that branches on comparisons; return everything that was seen."""
    seen: list[Any] = []
    for _ in range(12):
        a, b = rng.choice(numbers), rng.choice(numbers)
        n = rng.randint(1, 9)
        kind = rng.randrange(8)
        if kind < 3:
            made = (a + b, a * n, a - n)[kind]
        elif kind < 5:
            made = a // n if kind == 3 else a % n
        elif kind == 5:
            made = largest((a, b))
        else:
            answer = bool(a < b) if kind == 6 else bool(a == n)
            seen.append(answer)
            made = a + 1 if answer else b + 2
        numbers = [*numbers, made]
        seen.append(made)
    return seen


@pytest.mark.parametrize("seed", range(SEED, SEED + 60))
def test_decisions_hold_wherever_guards_hold(seed: int) -> None:
    scope = SizeScope()
    start = symbols(scope, h=random.Random(seed).randint(2, 40), w=17)
    made = _program(random.Random(seed), [*start, 5])
    values = random.Random(-seed)
    tried = 0
    for _ in range(200):
        sizes: dict[Symbol, int] = {s: values.randint(2, 60) for s in scope.hints}
        if not scope.holds(sizes):
            continue
        tried += 1
        plain = _program(random.Random(seed), [*sizes.values(), 5])
        found = [evaluate(x.expression, sizes) if type(x) is Size else x for x in made]
        assert found == plain
    assert scope.holds(scope.hints)
    assert tried or scope.guards


def test_quotients_of_sums_are_exact(scope: SizeScope) -> None:
    n, w = symbols(scope, n=2, w=100)
    assert (4 * w - 24) // (w - 6) == 4
    assert repr((n * w * 3 - n * 18) // (w - 6)) == repr(3 * n)
    assert repr((w * w - 36) // (w + 6)) == repr(w - 6)
    assert type((4 * w - 23) // (w - 6)) is Size
    assert not scope.guards


def test_quotients_that_nearly_cancel_have_near_bounds(scope: SizeScope) -> None:
    (w,) = symbols(scope, w=320)
    added = (w + 255) // 256 * 256 - w
    assert proven(-1, "<", added)
    assert proven(added, "<", 256)
    assert not proven(added, "<", 255)
    assert proven((w + 255) // 256 - w // 256, "<=", 1)
    assert proven(w // 3 * 3 - w // 2 * 2, "<", 3)
    assert not scope.guards


def test_equal_sizes_replace_each_other(scope: SizeScope) -> None:
    h, w = symbols(scope, h=64, w=96)
    small, large = (w + 31) // 32, (w + 15) // 16
    assert large == 2 * small  # a guard from here on
    (guard,) = scope.guards
    assert divides(2, (w + 15) // 16)
    assert repr((w + 15) // 16 + 1) == repr(2 * small + 1)
    assert proven(large * 3, "==", small * 6)
    assert common_divisor(large * 4, 12) == 4
    assert list(scope.guards) == [guard]
    assert h == 64
    assert repr(h + w) == repr(w + 64)


def test_one_guard_names_all_who_asked(scope: SizeScope) -> None:
    (w,) = symbols(scope, w=8)

    def first() -> bool:
        return w > 4

    def second() -> bool:
        return w > 6

    assert first()
    assert second()
    ((guard),) = scope.guards.values()
    assert "first" in guard.reason
    assert "second" in guard.reason


def test_one_is_what_is_one_in_the_compiling_run() -> None:
    scope = SizeScope(least=1)
    n = scope.symbol("n", 5)
    assert is_one(1)
    assert is_one(n // n)
    assert not is_one(0)
    assert not is_one("n")
    assert not is_one(n)
    assert not is_one((n + 8) // 8 + 1)
    assert not scope.guards
    assert is_one((n + 7) // 8)  # in this run
    assert n != 1  # this asks for a guard
    assert [described(g).split(" (")[0] for g in scope.guards.values()] == ["must be in 2..8"]


def test_sizes_from_2_on_keep_their_guards(scope: SizeScope) -> None:
    n = scope.symbol("n", 5)
    assert not is_one(n)
    assert not is_one((n + 7) // 8 + 1)
    assert not scope.guards
    assert is_one((n + 7) // 8)
    assert len(scope.guards) == 1
