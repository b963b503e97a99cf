"""Transposed convolutions as plain ones, against the reference; and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Value, constant
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.program.legalise.expand import as_phases, phases_of
from tests.rules.checks import check_numbers, graph_of, value

LAST = "channels_last"
rng = np.random.default_rng(0)
x = value("f32[2, 5, 4, 3]")


def weight(*shape: int) -> Value:
    return constant(rng.normal(size=shape).astype(np.float32))


def test_the_phases_of_the_usual_window() -> None:
    """Four taps, two apart, one cropped: even results read a pixel before, odd ones one after."""
    even, odd = phases_of(size=5, results=10, kernel=4, stride=2, pad=1)
    assert (even.taps, even.before, even.after) == ((3, 1), 1, 0)
    assert (odd.taps, odd.before, odd.after) == ((2, 0), 0, 1)
    assert (even.start, even.stop) == (odd.start, odd.stop) == (0, 5)


WINDOWS = [
    (kernel, stride, *rest)
    for kernel in (2, 3, 4, 5)
    for stride in (1, 2, 3)
    for rest in ((0, 0, 0), (1, 1, 0), (2, 0, 0), (0, 1, 1))
    if kernel >= stride > rest[-1]
]
"""(kernel, stride, cropped before, cropped after, added at the end) along the first axis."""


@pytest.mark.parametrize(("kernel", "stride", "begin", "end", "extra"), WINDOWS)
def test_numbers(kernel: int, stride: int, begin: int, end: int, extra: int) -> None:
    op = ConvTranspose((stride, 2), (begin, 1), (end, 0), (1, 1), (extra, 0), layout=LAST)
    w = weight(3, 4, kernel, 3)
    before = op(x, w)
    after = as_phases(op, x, w, before.tensor.static)
    assert after is not None
    assert after.type == before.type
    check_numbers(graph_of(before), graph_of(after), exact=False)
    convs = [v for v in graph_of(after).values if isinstance(v.op, Conv)]
    assert len(convs) == stride * 2


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "begin"),
    [(3, 1, 2, 2), (2, 1, 3, 0), (5, 2, 3, 1), (6, 3, 2, 2), (3, 2, 1, 1), (4, 2, 1, 1)],
)
def test_groups_and_dilation(
    kernel: int, stride: int, dilation: int, begin: int, groups: int
) -> None:
    op = ConvTranspose(
        (stride, 1), (begin, 0), (0, 1), (dilation, 2), (0, 0), groups=groups, layout=LAST
    )
    w = weight(3, 4, kernel, 2)
    before = op(x, w)
    after = as_phases(op, x, w, before.tensor.static)
    assert after is not None
    assert after.type == before.type
    check_numbers(graph_of(before), graph_of(after), exact=False)


@pytest.mark.parametrize(
    "op",
    [
        ConvTranspose((2, 2), (0, 0), (0, 0), (1, 2), (0, 0), layout=LAST),
        ConvTranspose((3, 3), (0, 0), (0, 0), (1, 1), (0, 0), layout=LAST),
        ConvTranspose((2, 2), (0, 0), (0, 0), (1, 1), (0, 0)),
    ],
    ids=["a phase of a dilated window without taps", "a phase without taps", "channels first"],
)
def test_declines(op: ConvTranspose) -> None:
    first = value("f32[2, 3, 5, 4]") if op.layout != LAST else x
    w = weight(3, 4, 2, 2)
    assert as_phases(op, first, w, op(first, w).tensor.static) is None


def test_declines_weights_that_are_data() -> None:
    op = ConvTranspose((2, 2), (0, 0), (0, 0), (1, 1), (0, 0), layout=LAST)
    given = value("f32[3, 4, 3, 3]", "w")
    assert as_phases(op, x, given, op(x, given).tensor.static) is None
