"""Numbers made of open sizes as operands, in code for any shape."""

from __future__ import annotations

import numpy as np
import pytest

import monograph
from tests.open_numbers import BODIES, SIZES, answer, expected, model


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", BODIES)
def test_kernels_read_the_number_of_the_run(name: str, threads: int) -> None:
    raw = model(BODIES[name]).SerializeToString()
    session = monograph.load(raw, specialise="off", threads=threads, cache_dir="")
    for n, wanted in expected(name).items():
        given = answer(session, n)
        assert (given is None) == (wanted is None), n
        if wanted is not None:
            np.testing.assert_array_equal(given, wanted, strict=True, err_msg=f"n = {n}")


@pytest.mark.parametrize("name", ["gather by places", "scatter by places", "in a branch"])
def test_one_program_serves_every_number(name: str) -> None:
    session = monograph.load(model(BODIES[name]), specialise="off", cache_dir="")
    valid = [n for n, wanted in expected(name).items() if wanted is not None and n > 1]
    for n in valid:
        answer(session, n)
    assert len(valid) > 3
    assert len(valid) < len(SIZES)
    assert len(session.stats["guards"]) == 1
