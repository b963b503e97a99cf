"""The proof that streams do not race: what it finds, and what it lets pass."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from monograph.program.memory.schedules import Schedule, schedule
from monograph.program.memory.stream_schedule import Uses, plan_concurrent
from tests.program.races import Task, Touch, ends_before, races


def touch(start: int, count: int, writes: bool, memory: str = "arena") -> Touch:
    return Touch(memory, start, 4, (count,), (1,), writes)


def test_two_streams_that_share_memory_race() -> None:
    tasks = [Task(0, 0, (), (touch(0, 8, True),)), Task(1, 1, (), (touch(28, 8, True),))]
    assert races(tasks) == [(0, 1)]


@pytest.mark.parametrize(
    "second",
    [
        Task(0, 1, (), (touch(0, 8, True),)),  # one stream
        Task(1, 1, (0,), (touch(0, 8, True),)),  # waits
        Task(1, 1, (), (touch(32, 8, True),)),  # beside it
        Task(1, 1, (), (touch(0, 8, True, "port"),)),  # other memory
        Task(1, 1, (), (touch(0, 0, True),)),  # nothing
    ],
)
def test_what_is_ordered_or_apart_does_not_race(second: Task) -> None:
    assert not races([Task(0, 0, (), (touch(0, 8, True),)), second])


def test_readers_do_not_race_but_a_writer_behind_one_does() -> None:
    reader, other = (Task(stream, stream, (), (touch(0, 8, False),)) for stream in (0, 1))
    assert not races([reader, other])
    assert races([reader, other, Task(1, 2, (), (touch(0, 8, True),))]) == [(0, 2)]


def test_to_wait_for_a_step_is_to_wait_for_its_last_work() -> None:
    parts = [Task(0, 0, (), (touch(0, 8, True),)), Task(0, 0, (), (touch(32, 8, True),))]
    reader = Task(1, 1, (0,), (touch(0, 16, False),))
    assert not races([*parts, reader])
    assert races([parts[0], reader, parts[1]]) == [(1, 2)]


def test_a_step_without_work_orders_nothing() -> None:
    tasks = [Task(0, 0, (), (touch(0, 8, True),)), Task(1, 2, (1,), (touch(0, 8, False),))]
    assert ends_before(tasks) == [0, 0]
    assert races(tasks) == [(0, 1)]


def test_columns_beside_each_other_do_not_race() -> None:
    left = Touch("port", 0, 2, (4, 3), (6, 1), True)
    right = Touch("port", 6, 2, (4, 3), (6, 1), True)
    wide = Touch("port", 4, 2, (4, 2), (6, 1), False)
    assert not races([Task(0, 0, (), (left,)), Task(1, 1, (), (right,))])
    assert races([Task(0, 0, (), (left,)), Task(1, 1, (), (wide,))]) == [(0, 1)]


def launched(
    needed: list[set[int]], order: Schedule, uses: list[Uses], offsets: Mapping[int, int]
) -> list[Task]:
    """Steps that each write a buffer, and read those of the steps that they need."""

    def of(step: int) -> Task:
        made = touch(offsets[step], uses[step].nbytes // 4, True)
        read = [touch(offsets[i], uses[i].nbytes // 4, False) for i in needed[step]]
        return Task(order.stream[step], step, order.waits[step], (made, *read))

    return [of(step) for step in range(len(needed))]


def test_any_schedule_with_its_plan_is_without_races() -> None:
    generator = random.Random(9)
    for _ in range(40):
        count, streams = generator.randint(2, 40), generator.randint(1, 6)
        needed = [
            {generator.randrange(i) for _ in range(generator.randint(0, 3))} if i else set()
            for i in range(count)
        ]
        order = schedule(needed, streams)
        uses = [
            Uses(i, 4 * generator.randint(1, 90), (i, *(j for j in range(count) if i in needed[j])))
            for i in range(count)
        ]
        assert not races(launched(needed, order, uses, plan_concurrent(uses, order).offsets))
        if order.streams > 1:
            everything_at_once = dict.fromkeys(range(count), 0)
            assert races(launched(needed, order, uses, everything_at_once))
