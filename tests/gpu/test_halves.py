"""The PTX that multiplies codes of 4 bits two at once, run by an interpreter of its few words."""

from __future__ import annotations

import re

import numpy as np
import pytest

from monograph.codegen.triton.halves import LARGEST_HALF, paired

_REGISTER = re.compile(r"\{?([\w$.]+)(?:, (\w+)\})?")


class Registers:
    """The registers of a thread: 32 bits each, and what floats are in them."""

    def __init__(self, words: int, pairs: list[int]) -> None:
        self.of: dict[str, int] = {f"${i + 1}": w for i, w in enumerate((words, *pairs))}
        self.floats: dict[str, np.float32] = {}
        self.halves: dict[str, int] = {}

    def value(self, text: str) -> int:
        return int(text, 0) if text[0].isdigit() else self.of[text]


def as_halves(word: int) -> np.ndarray:
    return np.array([word & 0xFFFF, word >> 16], np.uint16).view(np.float16)


def as_word(halves: np.ndarray) -> int:
    low, high = halves.astype(np.float16).view(np.uint16)
    return int(low) | int(high) << 16


def run(ptx: str, words: int, pairs: list[int]) -> np.float32:
    """What the block leaves in $0."""
    r = Registers(words, pairs)
    for line in (part.strip() for part in ptx.strip("{} ").split(";")):
        if line and not line.startswith(".reg"):
            name, rest = line.split(" ", 1)
            step(r, name, [a.strip() for a in rest.split(",")], rest)
    return r.floats["$0"]


def step(r: Registers, name: str, a: list[str], rest: str) -> None:
    wide = {k: as_halves(r.value(k)).astype(np.float64) for k in a[1:] if k in r.of}
    if name == "mov.b32" and rest.startswith("{"):
        names = [n.strip(" {}") for n in a]
        low, high = as_halves(r.of[names[2]]).view(np.uint16)
        r.halves |= {names[0]: int(low), names[1]: int(high)}
    elif name == "mov.b32":
        r.of[a[0]] = r.value(a[1])
    elif name in ("shl.b32", "shr.u32"):
        moved = r.value(a[1]) << int(a[2]) if name == "shl.b32" else r.value(a[1]) >> int(a[2])
        r.of[a[0]] = moved & 0xFFFFFFFF
    elif name == "lop3.b32":
        assert a[4] == "0xEA", "(a & b) | c"
        r.of[a[0]] = (r.value(a[1]) & r.value(a[2])) | r.value(a[3])
    elif name in ("add.rn.f16x2", "mul.rn.f16x2"):
        x, y = wide[a[1]], wide[a[2]]
        r.of[a[0]] = as_word(x + y if name.startswith("add") else x * y)
    elif name == "fma.rn.f16x2":
        r.of[a[0]] = as_word(wide[a[1]] * wide[a[2]] + wide[a[3]])
    elif name == "cvt.f32.f16":
        r.floats[a[0]] = np.float32(np.uint16(r.halves[a[1]]).view(np.float16))
    elif name == "mov.f32":
        r.floats[a[0]] = r.floats[a[1]]
    elif name == "add.f32":
        r.floats[a[0]] = r.floats[a[1]] + r.floats[a[2]]
    else:
        raise AssertionError(f"no such instruction: {name}")


@pytest.mark.parametrize("chained", [2, 4])
def test_eight_products(chained: int) -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        codes = rng.integers(0, 16, 8)
        x = rng.normal(size=8).astype(np.float16)
        words = int(sum(int(q) << 4 * i for i, q in enumerate(codes)))
        pairs = [as_word(x[[i, i + 4]]) for i in range(4)]
        terms = (codes - 8) / 16 * x.astype(np.float64)
        # A product and every sum round once: as many times as there are terms.
        most = chained * 2.0**-11 * np.abs(terms).sum() + 2.0**-22
        assert abs(run(paired(chained), words, pairs) - terms.sum()) <= most


def test_two_products_never_overflow() -> None:
    largest = np.full(8, LARGEST_HALF, np.float16)
    pairs = [as_word(largest[[i, i + 4]]) for i in range(4)]
    assert run(paired(2), 0, pairs) == -4 * LARGEST_HALF
    with np.errstate(over="ignore"):
        assert np.isinf(run(paired(4), 0, pairs))
