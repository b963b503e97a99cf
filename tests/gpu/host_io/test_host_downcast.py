"""Numbers that cross to the device in half their room: how the host rounds them on the way."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from monograph.codegen.llvm.module.features import TABLE, usable_features
from monograph.ir import DType
from monograph.ir.dtype import bf16, f16
from monograph.runtime.cpu.native import NativeCode, compile_module
from monograph.runtime.gpu.host_io import overlapped_upload
from monograph.runtime.gpu.host_io.overlapped_upload import (
    GRAIN,
    LINE,
    OverlappedUpload,
    blocks_of,
    can_narrow,
    control_bytes,
    narrow_text,
)
from tests.gpu.host_io.test_overlapped_upload import LAUNCH

HALVES = (f16, bf16)
KINDS = [(name, kind) for name in usable_features() for kind in HALVES]
KINDS = [(n, k) for n, k in KINDS if k == bf16 or TABLE[n].converts_half]
ROUNDED = [kind for kind in HALVES if can_narrow(kind)]
SIZES = [0, 1, 3, 63, 64, 65, 127, 1000]


def rounded(x: np.ndarray, kind: DType) -> np.ndarray:
    """Return what numpy makes of it."""
    with np.errstate(all="ignore"):
        return x.astype(kind.numpy)


def same(found: np.ndarray, x: np.ndarray, kind: DType) -> None:
    """The same bits, and NaN for NaN: the device makes one of its own of any when it casts."""
    bits, right = found.view(np.uint16), rounded(x, kind).view(np.uint16)
    nan = np.isnan(x)
    np.testing.assert_array_equal(bits[~nan], right[~nan])
    assert np.isnan(found.view(kind.numpy)[nan].astype(np.float32)).all()


def telling(kind: DType) -> np.ndarray:
    """Every number of a type, what lies halfway to the next, and the neighbours of that in f32."""
    every = np.arange(1 << 16, dtype=np.uint16).view(kind.numpy).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)])
    past = np.float32(65536.0 if kind == f16 else np.inf)
    with np.errstate(over="ignore"):
        halfway = (np.append(finite, past)[1:].astype(np.float64) + finite) / 2
        if kind == bf16:
            halfway[-1] = 2.0**128 - 2.0**119  # the largest, and half of its last bit
        middle = halfway.astype(np.float32)
        ends = [np.nextafter(middle, np.float32(end)) for end in (-np.inf, np.inf)]
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-40, 3e38, -3e38, 65519.996, 65520]
    return np.concatenate([every, middle, *ends, np.float32(odd)])


def some(count: int, seed: int = 0) -> np.ndarray:
    """Numbers of any bits."""
    r = np.random.default_rng(seed)
    return r.integers(0, 1 << 32, count, np.uint32).view(np.float32)


def native(name: str, kind: DType) -> Any:
    features = TABLE[name]
    text = narrow_text(kind, features).replace("define internal", "define")
    code = NativeCode([compile_module(text, features)], ("narrow",))
    code.keep()
    types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return ctypes.CFUNCTYPE(None, *types)(code.address("narrow"))


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=str)
def test_rounding_is_numpys_to_the_bit(name: str, kind: DType) -> None:
    narrow = native(name, kind)
    for x in (telling(kind), some(1 << 20)):
        found = np.zeros(x.size, np.uint16)
        narrow(found.ctypes.data, x.ctypes.data, x.size)
        same(found, x, kind)


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=str)
def test_any_number_of_them_from_anywhere(name: str, kind: DType) -> None:
    narrow = native(name, kind)
    for count in SIZES:
        x = some(count, count)
        raw = np.zeros(4 * count + 8, np.uint8)
        raw[3 : 3 + 4 * count] = x.view(np.uint8)  # at no multiple of anything
        found = np.full(count + 1, 0xABCD, np.uint16)
        narrow(found.ctypes.data, raw.ctypes.data + 3, count)
        same(found[:count], x, kind)
        assert found[count] == 0xABCD, "more was written than there is"


def test_telling_numbers_tell() -> None:
    """To truncate, or to round halves up, would differ in them."""
    for kind in HALVES:
        x = telling(kind)
        x = x[np.isfinite(x)]
        wide = rounded(x, kind).astype(np.float64)
        assert (wide > x).any()
        assert (wide < x).any()
        assert np.isinf(wide).any()
        assert ((wide == 0) & (x != 0)).any()


SPANS = {
    "one": ([(0, 4 * 77)], 1),
    "blocks": ([(0, 3 * GRAIN + 20)], 1),
    "before others": ([(0, GRAIN + 400), (GRAIN + 512, 2 * GRAIN + 519)], 1),
    "two before others": ([(0, 40), (256, GRAIN + 4), (GRAIN + 256, 3 * GRAIN + 9)], 2),
    "an empty one": ([(0, 0), (256, 2 * GRAIN), (2 * GRAIN, 2 * GRAIN + 3)], 2),
}


@pytest.mark.parametrize("kind", ROUNDED, ids=str)
@pytest.mark.parametrize(("spans", "count"), SPANS.values(), ids=SPANS)
def test_what_is_rounded_arrives_in_half_the_room(
    spans: list[tuple[int, int]], count: int, kind: DType
) -> None:
    spans = [(begin, max(begin, end)) for begin, end in spans]
    nbytes = -(-max(end for _, end in spans) // 256) * 256
    narrow_to = spans[count][0] if count < len(spans) else nbytes
    arrays = [some((e - b) // 4, i) for i, (b, e) in enumerate(spans[:count])]
    r = np.random.default_rng(1)
    arrays += [r.integers(1, 255, e - b, np.uint8) for b, e in spans[count:]]
    staging, control = (
        np.zeros(nbytes, np.uint8),
        np.zeros(control_bytes(nbytes, narrow_to), np.uint8),
    )
    arrivals = OverlappedUpload(spans, nbytes, kind, narrow_to)
    arrivals.aim(staging.ctypes.data, control.ctypes.data, [x.ctypes.data for x in arrays], arrays)

    def launch(executable: int, stream: int) -> int:
        assert not staging.any(), "something was gathered before the launch"
        return 0

    function = LAUNCH(launch)
    assert arrivals(ctypes.cast(function, ctypes.c_void_p).value or 0, 77, 5) == 0
    there = np.zeros(nbytes, bool)
    for (begin, end), x in zip(spans[:count], arrays[:count], strict=True):
        found = staging[begin // 2 : end // 2]
        same(found.view(np.uint16), x, kind)
        there[begin // 2 : end // 2] = True
    for (begin, end), x in zip(spans[count:], arrays[count:], strict=True):
        np.testing.assert_array_equal(staging[begin:end], x)
        there[begin:end] = True
    assert not staging[~there].any()
    assert control[LINE::LINE].tolist() == [1] * blocks_of(nbytes, narrow_to)


def test_hosts_without_instructions_do_not_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is called for every number would take longer than it saves."""
    monkeypatch.setattr(overlapped_upload, "host_features", lambda: TABLE["sse2"])
    assert not can_narrow(f16)
    assert can_narrow(bf16)
    monkeypatch.setattr(overlapped_upload, "host_features", lambda: TABLE["avx2"])
    assert can_narrow(f16)


def test_what_has_to_live_lives_until_it_is_brought() -> None:
    arrivals = OverlappedUpload([(0, 4)], 256, bf16, 256)
    staging, control = np.zeros(256, np.uint8), np.zeros(control_bytes(256), np.uint8)
    kept = [np.ones(1, np.float32)]
    arrivals.aim(staging.ctypes.data, control.ctypes.data, [kept[0].ctypes.data], kept)
    assert arrivals._kept is kept
    function = LAUNCH(lambda executable, stream: 0)
    arrivals(ctypes.cast(function, ctypes.c_void_p).value or 0, 1, 1)
    assert not arrivals._kept
