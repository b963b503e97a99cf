"""Sizes that data decide, by the GPU target's kernels: what is done with a part of a buffer."""

from __future__ import annotations

import pytest

from tests.cpu import bounded_chains
from tests.cpu.bounded_consumers import model_of
from tests.cpu.bounded_graphs import feeds_of
from tests.cpu.bounded_runs import agree, sessions
from tests.gpu.against import device

TARGET = "gpu:interpreter" if device().arch.interpreted else "gpu"
CONSUMERS = ["slices_of_other_axes", "work_on_a_flip", "flipped_twice", "scatters", "soft"]


@pytest.mark.parametrize("producer", ["non_zero", "compress", "loop"])
def test_consumers_of_any_number_of_rows(producer: str) -> None:
    model, owners = model_of(producer, CONSUMERS)
    reference, other = sessions(model, TARGET)
    for count in (0, 4):
        agree(reference, other, feeds_of(count), f"{producer}, {count} rows", owners)


@pytest.mark.parametrize("seed", range(150, 153))
def test_chains_behind_a_size_that_data_decide(seed: int) -> None:
    bounded_chains.check(seed, TARGET)
