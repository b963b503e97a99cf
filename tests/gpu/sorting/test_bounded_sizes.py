"""Sizes that data decide, by the GPU target's kernels: what is done with a part of a buffer."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import constant, unpack
from monograph.ops.sort import Unique
from monograph.program.dynamic.bounded import Counted
from tests.cpu.dynamic import bounded_chains
from tests.cpu.dynamic.bounded_consumers import model_of
from tests.cpu.dynamic.bounded_graphs import feeds_of
from tests.cpu.dynamic.bounded_runs import agree, sessions
from tests.gpu.against import check, device
from tests.rules.checks import graph_of

TARGET = "gpu:interpreter" if device().arch.interpreted else "gpu"
CONSUMERS = ["slices_of_other_axes", "work_on_a_flip", "flipped_twice", "scatters", "soft"]


@pytest.mark.parametrize("producer", ["non_zero", "compress", "loop"])
def test_consumers_of_any_number_of_rows(producer: str) -> None:
    model, owners = model_of(producer, CONSUMERS)
    reference, other = sessions(model, TARGET)
    for count in (0, 4):
        agree(reference, other, feeds_of(count), f"{producer}, {count} rows", owners)


@pytest.mark.parametrize("axis", [None, 0])
def test_the_only_number_is_distinct(axis: int | None) -> None:
    """A constant of one element, which kernels read as a number and not as a block."""
    check(graph_of(*unpack(Counted(Unique(axis))(constant(np.float32([3]))))), {})


@pytest.mark.parametrize("seed", range(150, 153))
def test_chains_behind_a_size_that_data_decide(seed: int) -> None:
    bounded_chains.check(seed, TARGET)
