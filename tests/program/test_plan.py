"""The memory plan: nothing that lives at once overlaps, and memory is reused."""

from __future__ import annotations

import random

import pytest

from monograph.program.memory.memory_planner import ALIGNMENT, Lifetime, fullest, plan


def overlaps(lives: list[Lifetime], offsets: dict[int, int]) -> bool:
    for a in lives:
        for b in lives:
            if a.key >= b.key or a.last < b.first or b.last < a.first:
                continue
            if (
                offsets[a.key] < offsets[b.key] + b.nbytes
                and offsets[b.key] < offsets[a.key] + a.nbytes
            ):
                return True
    return False


@pytest.mark.parametrize("seed", range(30))
def test_no_two_buffers_that_live_at_once_overlap(seed: int) -> None:
    rng = random.Random(seed)
    lives = []
    for key in range(40):
        first = rng.randrange(50)
        lives.append(Lifetime(key, rng.randrange(1, 5000), first, first + rng.randrange(10)))
    made = plan(lives)
    assert not overlaps(lives, made.offsets)
    assert all(o % ALIGNMENT == 0 for o in made.offsets.values())
    assert made.size >= max(made.offsets[x.key] + x.nbytes for x in lives)


def test_memory_is_reused_along_a_chain() -> None:
    # Each step reads the buffer before it and writes its own: two are enough.
    lives = [Lifetime(k, 1024, k, k + 1) for k in range(100)]
    assert plan(lives).size == 2 * 1024


def test_a_gap_is_filled_before_memory_grows() -> None:
    lives = [Lifetime(0, 4096, 0, 9), Lifetime(1, 2048, 0, 3), Lifetime(2, 2048, 4, 9)]
    assert plan(lives).size == 4096 + 2048


def test_nothing_takes_nothing() -> None:
    assert plan([]).size == 0
    assert plan([Lifetime(0, 0, 0, 0)]).size == ALIGNMENT


def test_buffers_of_no_elements_share_no_address() -> None:
    lives = [Lifetime(k, nbytes, 0, 9) for k, nbytes in enumerate((64, 64, 0, 0))]
    made = plan(lives)
    assert len(set(made.offsets.values())) == 4


def test_buffers_written_over_another_lie_where_it_does() -> None:
    lives = [Lifetime(0, 640, 0, 9, over=(5, 7)), Lifetime(1, 640, 4, 4)]
    made = plan(lives)
    assert made.offsets[0] == made.offsets[5] == made.offsets[7] != made.offsets[1]


@pytest.mark.parametrize("seed", range(10))
def test_the_fullest_step_is_what_counting_every_step_finds(seed: int) -> None:
    rng = random.Random(seed)
    lives = []
    for key in range(30):
        first = rng.randrange(40)
        lives.append(Lifetime(key, rng.randrange(1, 5000), first, first + rng.randrange(10)))
    step, needed = fullest(lives)
    each = [sum(x.nbytes for x in lives if x.first <= s <= x.last) for s in range(50)]
    assert sum(x.nbytes for x in needed) == max(each) == each[step]
    assert plan(lives).size >= max(each)


def test_nothing_is_full() -> None:
    assert fullest([]) == (0, [])
