"""The PTX that multiplies codes of 4 bits two at once, run by an interpreter of its few words."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from monograph.codegen.triton.matmul import codes as weight_codes
from monograph.codegen.triton.matmul.codes import LARGEST_HALF, addends, twice


class Registers:
    """The registers of a thread: 32 bits each, and what floats are in them."""

    def __init__(self, given: dict[str, int]) -> None:
        self.of = dict(given)
        self.floats: dict[str, np.float32] = {}
        self.halves: dict[str, int] = {}

    def value(self, text: str) -> int:
        return int(text, 0) if text[0].isdigit() else self.of[text]


def as_halves(word: int) -> np.ndarray:
    return np.array([word & 0xFFFF, word >> 16], np.uint16).view(np.float16)


def as_word(halves: np.ndarray) -> int:
    with np.errstate(over="ignore"):
        low, high = halves.astype(np.float16).view(np.uint16)
    return int(low) | int(high) << 16


def run(ptx: str, first: int, *given: int) -> Registers:
    """Return what the block leaves, of words in the registers from a number on."""
    r = Registers({f"${first + i}": word for i, word in enumerate(given)})
    for line in (part.strip() for part in ptx.strip("{} ").split(";")):
        if line and not line.startswith(".reg"):
            name, rest = line.split(" ", 1)
            step(r, name, [a.strip() for a in rest.split(",")], rest)
    return r


def step(r: Registers, name: str, a: list[str], rest: str) -> None:
    wide = {k: as_halves(r.value(k)).astype(np.float64) for k in a[1:] if k in r.of}
    if name == "mov.b32" and rest.startswith("{"):
        names = [n.strip(" {}") for n in a]
        low, high = as_halves(r.of[names[2]]).view(np.uint16)
        r.halves |= {names[0]: int(low), names[1]: int(high)}
    elif name == "mov.b32":
        r.of[a[0]] = r.value(a[1])
    elif name == "shr.u32":
        r.of[a[0]] = r.value(a[1]) >> int(a[2])
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
    elif name == "prmt.b32":
        both = r.value(a[2]) << 32 | r.value(a[1])
        chosen = [both >> 8 * (int(a[3], 0) >> 4 * i & 7) & 0xFF for i in range(4)]
        r.of[a[0]] = sum(byte << 8 * i for i, byte in enumerate(chosen))
    elif name == "add.f32":
        r.floats[a[0]] = r.floats[a[1]] + r.floats[a[2]]
    else:
        raise AssertionError(f"no such instruction: {name}")


def word_of(codes: np.ndarray) -> int:
    """Codes 2 i and 2 i + 1 are those of pair i."""
    pairs = codes.reshape(4, 2)
    return sum(int(pairs[i, p]) << 16 * p + 4 * i for i in range(4) for p in range(2))


def pairs_of(x: np.ndarray) -> list[int]:
    return [as_word(pair) for pair in x.reshape(4, 2)]


def multiplied(codes: np.ndarray, zero: int, reach: int, chained: int, x: np.ndarray) -> float:
    """Return what one block gives, and what two that share the work do."""
    added = [twice(a) for a in addends(zero, reach)]
    at_once = run(weight_codes.products(reach, chained), 1, word_of(codes), *added, *pairs_of(x))
    r = run(weight_codes.decoded(reach), 4, word_of(codes), *added)
    parts = run(weight_codes.summed(chained), 1, *(r.of[f"${i}"] for i in range(4)), *pairs_of(x))
    np.testing.assert_equal(parts.floats["$0"], at_once.floats["$0"])
    return float(at_once.floats["$0"])


@pytest.mark.parametrize(("reach", "zeros"), [(16, (8,)), (32, range(16)), (64, range(16))])
def test_codes_are_exact(reach: int, zeros: range) -> None:
    for zero, q in itertools.product(zeros, range(16)):
        added = [twice(a) for a in addends(zero, reach)]
        codes = (q + np.arange(8)) % 16
        r = run(weight_codes.decoded(reach), 4, word_of(codes), *added)
        given = np.concatenate([as_halves(r.of[f"${i}"]) for i in range(4)])
        np.testing.assert_array_equal(given.astype(np.float64), (codes - zero) / reach)


@pytest.mark.parametrize("reach", [16, 32, 64, 512])
def test_one_half_of_a_word_makes_both_addends(reach: int) -> None:
    for zero in range(16):
        first, second = addends(zero, reach)
        shared = as_word(np.array([0.3, second]))
        r = run(weight_codes.spread(reach), 2, shared)
        assert [r.of["$0"], r.of["$1"]] == [twice(first), twice(second)]
        assert np.float64(np.float16(first)) == first


@pytest.mark.parametrize("scale", [1.0, 3e4, 1e-4])
@pytest.mark.parametrize(
    ("chained", "zero", "reach"), [(2, 8, 16), (4, 8, 32), (2, 3, 32), (4, 3, 64)]
)
def test_eight_products(chained: int, zero: int, reach: int, scale: float) -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        codes = rng.integers(0, 16, 8)
        x = (np.clip(rng.normal(size=8), -2, 2) * scale).astype(np.float16)
        terms = (codes - zero) / reach * x.astype(np.float64)
        # A product and every sum round once: as many times as there are terms.
        most = chained * (2.0**-11 * np.abs(terms).sum() + 8 * 2.0**-25)
        assert abs(multiplied(codes, zero, reach, chained, x) - terms.sum()) <= most


@pytest.mark.parametrize(("chained", "reach"), [(2, 16), (4, 32)])
def test_sums_within_reach_never_overflow(chained: int, reach: int) -> None:
    largest = np.full(8, LARGEST_HALF, np.float16)
    lowest = np.zeros(8, np.int64)
    assert multiplied(lowest, 8, reach, chained, largest) == -8 * 8 / reach * LARGEST_HALF
    assert np.isinf(multiplied(lowest, 8, reach // 2, chained, largest))
