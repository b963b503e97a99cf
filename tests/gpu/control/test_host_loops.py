"""Work of the host between kernels: loops that data give sizes inside, constants of strings."""

from __future__ import annotations

import numpy as np
import pytest

import monograph
from tests import hosted_models
from tests.gpu.against import TARGET


@pytest.mark.parametrize("nested", [False, True])
def test_a_loop_with_open_sizes_inside_runs_on_the_host(nested: bool) -> None:
    session = monograph.load(hosted_models.writing_loop(nested), target=TARGET)
    (y,) = session.run(hosted_models.writing_feeds())
    np.testing.assert_array_equal(y, hosted_models.written(nested))
    (reason,) = session.stats["host_reasons"].values()
    assert reason == "inside it: data decide a size that nothing bounds"


def test_constants_of_strings_are_read_on_the_host() -> None:
    session = monograph.load(hosted_models.labelled(), target=TARGET)
    x = np.array([[0, 3, 1, 2], [9, 0, 0, 0], [0, 0, 0, 1]], np.float32)
    y, labels = session.run({"x": x})
    assert y.tolist() == ["dog", "cat", ""]
    assert labels.tolist() == hosted_models.LABELS.tolist()
