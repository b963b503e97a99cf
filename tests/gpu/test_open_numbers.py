"""Numbers made of open sizes as operands, in kernels for any shape."""

from __future__ import annotations

import numpy as np
import pytest

import monograph
from tests.gpu import gpu_models
from tests.open_numbers import BODIES, answer, expected, model

pytestmark = gpu_models.INTERPRETED
SIZES = (7, 4, 12)


@pytest.mark.parametrize("name", BODIES)
def test_kernels_read_the_number_of_the_run(name: str) -> None:
    raw = model(BODIES[name]).SerializeToString()
    options = {"specialise": "off", "cache_dir": "", "checked": True}
    session = monograph.load(raw, "gpu:interpreter", **options)
    for n in SIZES:
        wanted, given = expected(name)[n], answer(session, n)
        assert (given is None) == (wanted is None), n
        if wanted is not None:
            np.testing.assert_array_equal(given, wanted, strict=True, err_msg=f"n = {n}")
