"""The tolerance between a constant and the number that a pattern asks for."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import dtype
from monograph.rules.recognise import is_close


@pytest.mark.parametrize(("kind", "digits"), [("f16", 10), ("bf16", 7)])
def test_a_constant_may_be_off_by_the_rounding_of_its_type(kind: str, digits: int) -> None:
    """One is followed by 1 + 2**-digits: what rounding makes of 1 / n * n, and nothing farther."""
    step = 2.0**-digits
    assert is_close(1 + step, 1.0, dtype(kind))
    assert is_close(-1 - step, -1.0, dtype(kind))
    assert not is_close(1 + 2 * step, 1.0, dtype(kind))


def test_nought_is_nought_and_nothing_else() -> None:
    assert is_close(0.0, 0.0, dtype("f32"))
    assert not is_close(float(np.finfo(np.float32).tiny), 0.0, dtype("f32"))
