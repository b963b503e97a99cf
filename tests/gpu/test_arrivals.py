"""Inputs that arrive while their graph is being launched: the native half, the kernel's text."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from monograph.runtime.gpu.arrivals import (
    GRAIN,
    LARGEST,
    LINE,
    Arrivals,
    blocks_of,
    can_arrive,
    control_bytes,
    parts_of,
    take_text,
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
    """A slab with its control, arrays to bring, and what a driver's launch would see."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        r = np.random.default_rng(len(spans))
        self.spans, self.nbytes = spans, whole(spans)
        self.arrays = [r.integers(1, 255, end - begin, np.uint8) for begin, end in spans]
        self.slab = np.zeros(self.nbytes, np.uint8)
        self.control = np.zeros(control_bytes(self.nbytes), np.uint8)
        self.arrivals = Arrivals(spans, self.nbytes)
        self.launches: list[tuple[int, int]] = []

    @property
    def said(self) -> list[int]:
        return self.control[:-LINE:LINE].tolist()

    def start(self, launch: Callable[[int, int], int], bring: bool = True) -> int:
        def called(executable: int, stream: int) -> int:
            self.launches.append((executable, stream or 0))
            return launch(executable, stream)

        function = LAUNCH(called)
        arrays = [x.ctypes.data for x in self.arrays] if bring else []
        self.arrivals.aim(self.slab.ctypes.data, self.control.ctypes.data, arrays)
        return self.arrivals(ctypes.cast(function, ctypes.c_void_p).value or 0, 77, 5)


@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
def test_everything_arrives_behind_the_launch(spans: list[tuple[int, int]]) -> None:
    host = Host(spans)

    def launch(executable: int, stream: int) -> int:
        assert not host.slab.any(), "something was gathered before the launch"
        assert not any(host.said)
        return 0

    assert host.start(launch) == 0
    assert host.launches == [(77, 5)]
    for array, (begin, end) in zip(host.arrays, spans, strict=True):
        np.testing.assert_array_equal(host.slab[begin:end], array)
    assert host.said == [1] * blocks_of(host.nbytes)
    assert not host.control[-LINE:].any()


@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
def test_no_block_is_announced_before_it_is_complete(spans: list[tuple[int, int]]) -> None:
    """After each part, what is complete is whole, and the parts are all that there is."""
    nbytes = whole(spans)
    there = np.zeros(nbytes, bool)
    wanted = np.zeros(nbytes, bool)
    for begin, end in spans:
        wanted[begin:end] = True
    before = 0
    for number, first, at, size, complete in parts_of(spans, nbytes):
        assert at == spans[number][0] + first
        assert not there[at : at + size].any()
        there[at : at + size] = True
        assert at // GRAIN == (at + size - 1) // GRAIN
        assert complete >= before
        before = complete
        np.testing.assert_array_equal(there[: complete * GRAIN], wanted[: complete * GRAIN])
    np.testing.assert_array_equal(there, wanted)
    assert before == blocks_of(nbytes)


def test_what_is_there_already_is_only_announced() -> None:
    host = Host(SPANS["several"])
    host.slab[:] = 9
    assert host.start(lambda executable, stream: 0, bring=False) == 0
    assert (host.slab == 9).all()
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
    assert can_arrive() is right


@pytest.mark.parametrize(
    ("arch", "overlaps"), [("sm_80", False), ("sm_90", False), ("sm_90", True), ("sm_100", True)]
)
def test_the_kernel_assembles(arch: str, overlaps: bool, tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    found = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    assembler = str(found) if found.exists() else shutil.which("ptxas")
    if assembler is None:
        pytest.skip("there is no ptxas")
    source = tmp_path / "take.ptx"
    source.write_bytes(take_text(overlaps).rstrip(b"\0"))
    command = [assembler, f"-arch={arch}", str(source), "-o", str(tmp_path / "take.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
