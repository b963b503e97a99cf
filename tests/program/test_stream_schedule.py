"""Steps side by side, and memory that stays apart for that."""

from __future__ import annotations

import random

from monograph.program.memory.schedules import narrowed, schedule
from monograph.program.memory.stream_schedule import Uses, plan_concurrent


def test_a_chain_stays_in_one_stream() -> None:
    found = schedule([set(), {0}, {1}, {2}], 4)
    assert found.stream == (0, 0, 0, 0)
    assert found.waits == ((), (), (), ())


def test_branches_run_side_by_side_and_join() -> None:
    found = schedule([set(), {0}, {0}, {1}, {2}, {3, 4}], 4)
    assert found.stream[1] == found.stream[3]
    assert found.stream[2] == found.stream[4] != found.stream[1]
    assert found.waits[2] == (0,)
    assert len(found.waits[5]) == 1
    assert not found.ordered(3, 4)
    assert found.ordered(2, 5)


def test_streams_are_limited() -> None:
    found = schedule([set()] * 7, 3)
    assert found.streams == 3


def test_buffers_share_memory_only_in_order() -> None:
    found = schedule([set(), {0}, {0}, {1}, {2}, {3, 4}], 4)
    left, right, late = Uses(0, 100, (1, 3)), Uses(1, 100, (2, 4)), Uses(2, 100, (5,))
    plan = plan_concurrent([left, right, late], found)
    assert abs(plan.offsets[0] - plan.offsets[1]) >= 100
    assert plan.size < 3 * 128


def test_any_graph_is_waited_for_and_kept_apart() -> None:
    generator = random.Random(5)
    for _ in range(50):
        count = generator.randint(2, 40)
        needed = [
            {generator.randrange(i) for _ in range(generator.randint(0, 3))} if i else set()
            for i in range(count)
        ]
        found = schedule(needed, 4)
        for step, wanted in enumerate(needed):
            assert all(found.ordered(other, step) for other in wanted)
        buffers = [
            Uses(
                i,
                generator.randint(1, 500),
                (i, *(j for j in range(count) if i in needed[j])),
            )
            for i in range(count)
        ]
        plan = plan_concurrent(buffers, found)
        for a in buffers:
            for b in buffers[a.key + 1 :]:
                apart = (
                    plan.offsets[a.key] + a.nbytes <= plan.offsets[b.key]
                    or plan.offsets[b.key] + b.nbytes <= plan.offsets[a.key]
                )
                in_order = all(found.ordered(x, y) for x in a.steps for y in b.steps) or all(
                    found.ordered(y, x) for x in a.steps for y in b.steps
                )
                assert apart or in_order


def test_fewer_streams_keep_the_order() -> None:
    """A step that is over before another stays so: the memory plan depends on it."""
    generator = random.Random(7)
    gained = 0
    for _ in range(50):
        count = generator.randint(2, 40)
        needed = [
            {generator.randrange(i) for _ in range(generator.randint(0, 3))} if i else set()
            for i in range(count)
        ]
        wide = schedule(needed, 6)
        for limit in (1, 2, 3):
            narrow = narrowed(wide, limit)
            assert narrow.streams <= limit
            assert all(a & b == a for a, b in zip(wide.before, narrow.before, strict=True))
            fresh = schedule(needed, limit)
            gained += any(a & b != a for a, b in zip(wide.before, fresh.before, strict=True))
    assert gained  # dealing out anew would have lost some of it


def test_one_stream_waits_for_nothing() -> None:
    wide = schedule([set(), {0}, {0}, {1}, {2}, {3, 4}], 4)
    assert wide.crossings == 2
    narrow = narrowed(wide, 1)
    assert narrow.stream == (0,) * 6
    assert narrow.crossings == 0
