"""Positions as expressions of a kernel: in 64 bits where 32 are too few, and only there."""

from __future__ import annotations

import pytest

from monograph.codegen.triton.emit.elements import BlockAxis, TritonElements
from monograph.codegen.triton.emit.writer import Writer
from monograph.program.index import counter


@pytest.mark.parametrize(("extent", "wide"), [(1 << 31, False), ((1 << 31) + 1, True)])
def test_the_largest_number_of_32_bits_is_one_of_them(extent: int, wide: bool) -> None:
    """The last of 2**31 elements is number 2**31 - 1."""
    w = Writer()
    index = counter("i", extent)
    (atom,) = index.counters
    TritonElements(w, {}, {}, frozenset()).integer(index, {atom: BlockAxis("i")})
    assert ("int64" in "\n".join(w.lines)) == wide
