"""A part of the sweep (`make sweep`): each case on one machine, the machines taking turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from monograph.ir import constant
from monograph.ops.elementwise import Add, Exp
from tests.cpu import sweep, sweep_cases
from tests.cpu.sweep_cases import Case
from tests.rules.checks import graph_of, random_feeds, value

SELECTED: dict[str, tuple[Callable[[], Iterator[Case]], int]] = {
    "samples": (sweep_cases.samples, 2),
    "specials": (sweep_cases.specials, 7),
    "odd": (sweep_cases.odd, 3),
    "random": (lambda: sweep_cases.random(0, 20), 1),
    "random-specials": (lambda: sweep_cases.random_specials(0, 14), 2),
}
"""Cases, and how many of them to pass over for each that is run, that one counted."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("part", SELECTED)
def test_cases_take_turns_on_machines(part: str) -> None:
    cases, step = SELECTED[part]
    machines = itertools.cycle(sweep.machines())
    wrong = []
    for case, machine in zip(itertools.islice(cases(), 0, None, step), machines, strict=False):
        if (found := sweep.problem(case, machine)) is not None:
            wrong.append(f"{case.name} on {machine[0].name}, {machine[1]} threads: {found}")
    assert not wrong, "\n".join(wrong)


def test_the_sweep_runs_each_sample_and_machine() -> None:
    assert len({c.name for c in sweep_cases.samples()}) > 350
    assert len({t for _, t in sweep.machines()}) == 3
    kinds = {c.name.rpartition("-")[2] for c in itertools.islice(sweep_cases.specials(), 50)}
    assert kinds == {"nan", "inf", "sparse", "dense"}


def test_a_wrong_number_is_found() -> None:
    """The sweep names a graph whose compiled form differs in one constant."""
    x = value("f32[3, 37]")
    right, wrong = (graph_of(Exp()(Add()(x, constant(np.float32(c))))) for c in (1.0, 1.0001))
    feeds = random_feeds(right)
    machine = sweep.machines()[1]
    assert sweep.problem(Case("right", right, feeds), machine) is None
    compiled = sweep._compiled
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "_compiled", lambda _, machine: compiled(wrong, machine))
        found = sweep.problem(Case("wrong", right, feeds), machine)
    assert found is not None
    assert "beyond the tolerance" in found
