"""Inputs that arrive while their graph is being launched: the native half."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable

import numpy as np
import pytest

from monograph.runtime.gpu.host_io.overlapped_upload import (
    GRAIN,
    LARGEST,
    LINE,
    OverlappedUpload,
    blocks_of,
    can_overlap,
    control_bytes,
    parts_of,
)

SPANS = {
    "one": [(0, 100)],
    "a block": [(0, GRAIN)],
    "blocks": [(0, 3 * GRAIN + 5)],
    "several": [(0, 7), (256, GRAIN + 256), (GRAIN + 512, 4 * GRAIN)],
    "with an empty one": [(0, 300), (512, 512), (768, 2 * GRAIN + 900)],
    "small ones in one block": [(256 * i, 256 * i + 8) for i in range(9)],
}
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)


def whole(spans: list[tuple[int, int]]) -> int:
    return -(-spans[-1][1] // 256) * 256


class Host:
    """A staging buffer with its control, arrays to bring, and what a driver's launch would see."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        r = np.random.default_rng(len(spans))
        self.spans, self.nbytes = spans, whole(spans)
        self.arrays = [r.integers(1, 255, end - begin, np.uint8) for begin, end in spans]
        self.staging = np.zeros(self.nbytes, np.uint8)
        self.control = np.zeros(control_bytes(self.nbytes), np.uint8)
        self.arrivals = OverlappedUpload(spans, self.nbytes)
        self.launches: list[tuple[int, int]] = []

    @property
    def said(self) -> list[int]:
        return self.control[LINE::LINE].tolist()

    def start(self, launch: Callable[[int, int], int], bring: bool = True) -> int:
        def called(executable: int, stream: int) -> int:
            self.launches.append((executable, stream or 0))
            return launch(executable, stream)

        function = LAUNCH(called)
        arrays = [x.ctypes.data for x in self.arrays] if bring else []
        self.arrivals.aim(self.staging.ctypes.data, self.control.ctypes.data, arrays)
        return self.arrivals(ctypes.cast(function, ctypes.c_void_p).value or 0, 77, 5)


@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
def test_everything_arrives_behind_the_launch(spans: list[tuple[int, int]]) -> None:
    host = Host(spans)

    def launch(executable: int, stream: int) -> int:
        assert not host.staging.any(), "something was gathered before the launch"
        assert not any(host.said)
        return 0

    assert host.start(launch) == 0
    assert host.launches == [(77, 5)]
    for array, (begin, end) in zip(host.arrays, spans, strict=True):
        np.testing.assert_array_equal(host.staging[begin:end], array)
    assert host.said == [1] * blocks_of(host.nbytes)
    assert not host.control[:LINE].any()


@pytest.mark.parametrize("narrowed", [0, 1, -1])
@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
def test_no_block_is_announced_before_it_is_complete(
    spans: list[tuple[int, int]], narrowed: int
) -> None:
    """After each part, what is complete is whole, and the parts are all that there is.

    So many of the first are narrowed, and have blocks of their own.
    """
    nbytes = whole(spans)
    narrow_to = nbytes if narrowed in (-1, len(spans)) else spans[narrowed][0]
    ends = [*range(0, narrow_to, GRAIN), *range(narrow_to, nbytes, GRAIN), nbytes]
    """The first element of each block, and the end of the last one."""
    assert blocks_of(nbytes, narrow_to) == len(ends) - 1
    there = np.zeros(nbytes, bool)
    wanted = np.zeros(nbytes, bool)
    for begin, end in spans:
        wanted[begin:end] = True
    before = 0
    for number, first, at, size, complete in parts_of(spans, nbytes, narrow_to):
        assert at == spans[number][0] + first
        assert not there[at : at + size].any()
        there[at : at + size] = True
        assert bisect_right(ends, at) == bisect_right(ends, at + size - 1)
        assert complete >= before
        before = complete
        np.testing.assert_array_equal(there[: ends[complete]], wanted[: ends[complete]])
    np.testing.assert_array_equal(there, wanted)
    assert before == len(ends) - 1


def test_what_is_there_already_is_only_announced() -> None:
    host = Host(SPANS["several"])
    host.staging[:] = 9
    assert host.start(lambda executable, stream: 0, bring=False) == 0
    assert (host.staging == 9).all()
    assert host.said == [1] * blocks_of(host.nbytes)


def test_an_error_of_the_driver_comes_back() -> None:
    assert Host(SPANS["blocks"]).start(lambda executable, stream: 700) == 700


def test_the_control_has_a_line_for_every_block() -> None:
    assert control_bytes(0) == control_bytes(LARGEST + 1) == 0
    assert control_bytes(1) == control_bytes(GRAIN) == 2 * LINE
    assert control_bytes(GRAIN + 1) == 3 * LINE


@pytest.mark.parametrize(("value", "right"), [("", True), ("0", True), ("1", False)])
def test_launches_that_wait_exclude_it(
    value: str, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
    assert can_overlap() is right
