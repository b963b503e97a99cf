"""Memory of the caller that kernels cannot use as it is: why it is copied, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from monograph.runtime.gpu.bound_program import VECTOR
from monograph.runtime.gpu.ports import why_copied, why_copied_back, why_not_written

HERE = torch.device("cpu")


def test_memory_of_no_elements_overlaps_nothing() -> None:
    nothing, some = torch.empty(0), torch.ones(3)
    assert why_not_written(nothing, [nothing, torch.empty(0), some], HERE) == ""
    assert why_not_written(some, [nothing, torch.ones(3)], HERE) == ""
    assert why_not_written(some, [some[1:]], HERE) == "it overlaps another"


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("kind", [torch.float32, torch.uint8])
def test_memory_overlaps_from_the_first_shared_element_on(step: int, kind: torch.dtype) -> None:
    whole = torch.zeros(60, dtype=kind)
    for rows in (1, 2, 5):
        # The last element of these is the one at `last` of all.
        last = (rows * 2 - 1) * step
        some = whole[: last + 1 : step]
        square = torch.as_strided(whole, (rows, 2), (2 * step, step))
        for other in (some, square):
            assert why_not_written(whole[last:], [other], HERE) == "it overlaps another"
            assert why_not_written(whole[last + 1 :], [other], HERE) == ""
            if step == 1:
                assert why_not_written(other, [whole[last:]], HERE) == "it overlaps another"
                assert why_not_written(other, [whole[last + 1 :]], HERE) == ""


def test_memory_of_the_caller_is_copied_for_these_reasons() -> None:
    whole = torch.zeros(4 * VECTOR, dtype=torch.uint8)
    aligned = whole[-whole.data_ptr() % VECTOR :]
    elsewhere = torch.empty(8, device="meta")
    for why in (why_copied, why_copied_back):
        assert why(np.zeros(3), HERE) == "it is on the host"
        assert why(elsewhere, HERE) == "it is on meta"
        assert why(aligned[:VECTOR], HERE) == ""
        assert why(aligned[VECTOR:], HERE) == ""
        for shift in (1, VECTOR // 2, VECTOR - 1):
            assert why(aligned[shift : shift + 4], HERE) == "it is misaligned"
    assert why_copied(aligned[::2], HERE) == "it is strided"


def test_memory_that_nobody_gives_is_not_copied_back() -> None:
    assert why_copied_back(None, HERE) == ""
