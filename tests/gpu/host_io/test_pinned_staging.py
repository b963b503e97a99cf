"""The location of arrays of the host in pinned memory, and the copies there."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from monograph.ir import dtype
from monograph.runtime.gpu.bound_program import DevicePort, GpuLayout
from monograph.runtime.gpu.host_io.pinned_staging import (
    LARGE,
    PIECE,
    PIECES,
    StagingBuffer,
    StagingLayout,
)
from tests.gpu.fake_driver import FakeDriver
from tests.gpu.fake_graphs import FakeGraphs

SIZES = {
    "tiny": (5,),
    "several": (3, 70_000, 1, 200_000),
    "half a MiB": (1 << 19,),
    "large": (LARGE + 77,),
    "all kinds": (100, LARGE + 4096, PIECE + 1, 7),
}


def layout_of(sizes: tuple[int, ...]) -> StagingLayout:
    inputs = tuple(DevicePort(f"x{i}", dtype("u8"), (n,)) for i, n in enumerate(sizes))
    outputs = (DevicePort("y", dtype("f32"), (3, 5)),)
    return StagingLayout(GpuLayout(inputs, outputs, (), 0, 0, (), ()))


def feeds_for(sizes: tuple[int, ...]) -> dict[str, np.ndarray]:
    r = np.random.default_rng(len(sizes))
    return {f"x{i}": r.integers(1, 255, n, dtype=np.uint8) for i, n in enumerate(sizes)}


def staging_of(layout: StagingLayout) -> StagingBuffer:
    return StagingBuffer(layout, FakeGraphs(FakeDriver()))


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_pieces_are_all_that_there_is(sizes: tuple[int, ...]) -> None:
    layout = layout_of(sizes)
    pieces = layout.pieces
    assert pieces[0][0] == 0
    assert pieces[-1][1] == layout.in_to
    assert all(before[1] == after[0] for before, after in pairwise(pieces))
    assert len(pieces) <= PIECES
    found = dict.fromkeys(layout.inputs, 0)
    for start, count, inside in layout.parts():
        for name, first, at, size in inside:
            assert first == found[name], "a part comes twice, or is left out"
            assert at == layout.inputs[name][1] + first
            assert start <= at < at + size <= start + count
            found[name] += size
    assert tuple(found.values()) == sizes


def test_the_last_piece_is_small() -> None:
    assert len(layout_of((PIECE,)).pieces) == 1
    (_, cut), (_, end) = layout_of((1 << 19,)).pieces
    assert end - cut == PIECE
    assert len(layout_of((LARGE,)).pieces) == PIECES


@pytest.mark.parametrize("kind", ["plain", "strided", "kept"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_inputs_are_taken_whole(sizes: tuple[int, ...], kind: str) -> None:
    layout, feeds = layout_of(sizes), feeds_for(sizes)
    if kind == "strided":
        feeds = {n: np.repeat(x, 2)[::2] for n, x in feeds.items()}
    for array in feeds.values():
        array.flags.writeable = kind != "kept"
    staging, sent = staging_of(layout), np.zeros(layout.in_to, np.uint8)
    block = staging.block.numpy()

    def send(at: int, count: int) -> None:
        sent[at : at + count] = block[at : at + count]

    for fill in ("whole", "ahead"):
        block[:] = 0
        if fill == "whole":
            staging.fill_fitting(feeds)
            send(0, layout.in_to)
        else:
            sent[:] = 0
            staging.fill_in_pieces(feeds, send)
        for name, (_, at) in layout.inputs.items():
            np.testing.assert_array_equal(sent[at : at + feeds[name].size], feeds[name])


def test_results_are_copies() -> None:
    staging = staging_of(layout_of((5,)))
    staging._outputs["y"][:] = 1
    mine = np.zeros((3, 5), np.float32)
    (fresh,), (given,) = staging.results({}), staging.results({"y": mine})
    staging._outputs["y"][:] = 2
    assert given is mine
    assert fresh.tolist() == mine.tolist() == [[1] * 5] * 3
