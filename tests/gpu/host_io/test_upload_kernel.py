"""The kernel that takes what arrives: assembled, and run by an interpreter of its few words."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from monograph.ir import DType
from monograph.ir.dtype import bf16, f16
from monograph.runtime.gpu.host_io.overlapped_upload import GRAIN, THREADS, blocks_of
from monograph.runtime.gpu.host_io.upload_kernel import upload_kernel_text

KINDS = [None, f16, bf16]
SIZES = {
    "a part of a block": (2048, 2048),
    "blocks": (5 * GRAIN, 5 * GRAIN),
    "the end in a block": (2 * GRAIN + 768, GRAIN + 512),
    "the end at a block": (3 * GRAIN + 256, 2 * GRAIN),
    "little of it": (2 * GRAIN, 256),
}
"""Bytes to take, and of these what arrives in half the room."""
LINE = re.compile(r"(?:@(%\w+) )?([\w.]+) ?(.*);")
Operands = list[str]


class Threads:
    """The registers of all threads of all blocks, as arrays; two memories, both from 0 on."""

    def __init__(self, source: np.ndarray, nbytes: int, narrow_to: int) -> None:
        count = blocks_of(nbytes, narrow_to) * THREADS
        every = np.arange(count, dtype=np.uint64)
        self.of = {"%thread": every % np.uint64(THREADS), "%block": every // np.uint64(THREADS)}
        numbers = {"%to": 0, "%source": 0, "%n": nbytes, "[p_m]": narrow_to}
        self.of |= {name: np.full(count, n, np.uint64) for name, n in numbers.items()}
        self.source = source
        self.made = np.zeros(nbytes, np.uint8)
        self.written = np.zeros(nbytes, bool)
        self.count = count

    def value(self, text: str) -> np.ndarray:
        if text in self.of:
            return self.of[text]
        return np.full(self.count, int(text, 0) % (1 << 64), np.uint64)

    def run(self, text: str) -> None:
        """Return what comes behind the wait for the host."""
        _, _, body = text.partition("READY:")
        here = np.ones(self.count, bool)
        going: dict[str, np.ndarray] = {}
        for line in map(str.strip, body.strip(" \n}\0").splitlines()):
            if line.endswith(":"):
                here |= going.pop(line[:-1])
                continue
            found = LINE.fullmatch(line)
            assert found is not None, line
            when, name, rest = found.groups()
            mask = here & self.of[when].astype(bool) if when else here
            if name == "ret":
                here = here & ~mask
            elif name == "bra":
                going[rest], here = mask, here & ~mask
            elif name != "bar.sync":
                self.step(name, re.findall(r"\{.*?\}|\[.*?\]|[^\s,]+", rest), mask)
        assert not here.any()
        assert not going

    def step(self, name: str, a: Operands, mask: np.ndarray) -> None:
        if name.startswith("ld.global.v"):
            self.load(a, mask)
        elif name == "st.global.v4.u32":
            self.store(a, mask)
        elif name == "mov.b32":
            word = self.value(a[1])
            low, high = a[0].strip("{}").split(", ")
            self.set(low, word & np.uint64(0xFFFF), mask)
            self.set(high, word >> np.uint64(16), mask)
        else:
            given = [self.value(x) for x in a[1:]]
            self.set(a[0], PLAIN[name](*given).astype(np.uint64), mask)

    def set(self, name: str, value: np.ndarray, mask: np.ndarray) -> None:
        before = self.of.get(name, np.zeros(self.count, np.uint64))
        self.of[name] = np.where(mask, value, before)

    def load(self, a: Operands, mask: np.ndarray) -> None:
        names = a[0].strip("{}").split(", ")
        at = self.of[a[1].strip("[]")]
        assert (at[mask] % np.uint64(4 * len(names)) == 0).all(), "a load is not aligned"
        assert (at[mask] + np.uint64(4 * len(names)) <= self.source.size).all()
        words = self.source.view(np.uint32)
        for number, name in enumerate(names):
            places = np.where(mask, at // np.uint64(4) + np.uint64(number), 0)
            self.set(name, words[places].astype(np.uint64), mask)

    def store(self, a: Operands, mask: np.ndarray) -> None:
        at = self.of[a[0].strip("[]")][mask]
        for number, name in enumerate(a[1].strip("{}").split(", ")):
            places = at // np.uint64(4) + np.uint64(number)
            assert not self.written.view(np.uint32)[places].any(), "something is written twice"
            self.made.view(np.uint32)[places] = self.of[name][mask]
            self.written.view(np.uint32)[places] = 0x01010101


def widened(x: np.ndarray) -> np.ndarray:
    """cvt.f32.f16."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)


PLAIN: dict[str, Callable[..., np.ndarray]] = {
    "mul.wide.u32": lambda x, y: x * y,
    "add.u64": lambda x, y: x + y,
    "sub.u64": lambda x, y: x - y,
    "ld.param.u64": lambda x: x,
    "setp.lt.u64": lambda x, y: x < y,
    "setp.ge.u64": lambda x, y: x >= y,
    "shr.u64": lambda x, y: x >> y,
    "shl.b32": lambda x, y: (x << y) & np.uint64(0xFFFFFFFF),
    "and.b32": lambda x, y: x & y,
    "and.b64": lambda x, y: x & y,
    "cvt.f32.f16": widened,
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("nbytes", "narrow_to"), SIZES.values(), ids=SIZES)
def test_everything_is_taken_once(nbytes: int, narrow_to: int, kind: DType | None) -> None:
    r = np.random.default_rng(nbytes)
    source = r.integers(0, 256, nbytes, np.uint8)
    if nbytes == narrow_to == 5 * GRAIN:
        every = np.arange(1 << 16, dtype=np.uint16)  # of all bits that there are
        source[: every.nbytes] = every.view(np.uint8)
    cut = 0 if kind is None else narrow_to
    threads = Threads(source, nbytes, cut)
    threads.run(upload_kernel_text(True, kind).decode())
    assert threads.written.all()
    np.testing.assert_array_equal(threads.made[cut:], source[cut:])
    if kind is not None:
        right = source[: narrow_to // 2].view(kind.numpy).astype(np.float32)
        found = threads.made[:narrow_to].view(np.float32)
        nan = np.isnan(right)
        np.testing.assert_array_equal(np.isnan(found), nan)
        bits = [x[~nan].view(np.uint32) for x in (found, right)]
        np.testing.assert_array_equal(*bits)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    ("arch", "overlaps"), [("sm_80", False), ("sm_90", False), ("sm_90", True), ("sm_100", True)]
)
def test_the_kernel_assembles(
    arch: str, overlaps: bool, kind: DType | None, tmp_path: Path
) -> None:
    triton = pytest.importorskip("triton")
    found = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    assembler = str(found) if found.exists() else shutil.which("ptxas")
    if assembler is None:
        pytest.skip("there is no ptxas")
    source = tmp_path / "take.ptx"
    source.write_bytes(upload_kernel_text(overlaps, kind).rstrip(b"\0"))
    command = [assembler, f"-arch={arch}", str(source), "-o", str(tmp_path / "take.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
