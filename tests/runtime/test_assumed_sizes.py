"""Sizes for open dimensions that nobody gave a size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from monograph.ir import TensorType, tensor
from monograph.ir.dtype import f32, i64
from monograph.runtime.assumed_sizes import TRIED_SIZES, assume_sizes, stand_ins
from monograph.runtime.feeds import Port

IMAGE = Port("x", tensor(f32, "n", 3, "h", "w"))


def assumed(takes: Callable[[dict[str, int]], bool], *ports: Port, usual: int = 1) -> Any:
    """The sizes for a model that takes what `takes` says of them."""

    def shapes(feeds: Mapping[str, Any]) -> bool:
        sizes = {
            d: n
            for p in ports
            for d, n in zip(p.shape or (), feeds[p.name].shape, strict=True)
            if isinstance(d, str)
        }
        return takes(sizes)

    return assume_sizes(ports, {}, {}, usual, shapes)


def test_the_usual_size_comes_first() -> None:
    assert assumed(lambda _: True, IMAGE) == {"n": 1, "h": 1, "w": 1}
    assert assumed(lambda _: True, IMAGE, usual=3) == {"n": 3, "h": 3, "w": 3}


def test_one_dimension_is_changed_before_all() -> None:
    assert assumed(lambda s: s["w"] >= 13, IMAGE) == {"n": 1, "h": 1, "w": 64}
    assert assumed(lambda s: s["w"] == 224, IMAGE) == {"n": 1, "h": 1, "w": 224}


def test_a_batch_stays_as_usual_if_it_can() -> None:
    both = assumed(lambda s: s["h"] >= 32 <= s["w"], IMAGE)
    assert both == {"n": 1, "h": 64, "w": 64}
    whole = assumed(lambda s: min(s.values()) == 16, IMAGE)
    assert whole == dict.fromkeys("nhw", 16)


def test_a_sum_of_two_lengths_is_found() -> None:
    ports = (Port("ids", tensor(i64, "b", "s")), Port("mask", tensor(i64, "b", "total")))
    past = Port("past", tensor(f32, "b", "past", 4))
    found = assumed(lambda s: s["total"] == s["s"] + s["past"], *ports, past)
    assert found == {"b": 1, "s": 1, "total": 2, "past": 1}


def test_the_usual_size_is_left_to_the_run_if_nothing_fits() -> None:
    calls = []
    assert assumed(lambda s: bool(calls.append(s)), IMAGE) == {"n": 1, "h": 1, "w": 1}
    assert len(calls) == len({tuple(c.values()) for c in calls}), "each set is tried once"
    assert len(calls) == 1 + 5 * len(TRIED_SIZES)


def test_given_arrays_and_known_sizes_stay() -> None:
    other = Port("y", tensor(f32, "n", "k"))
    seen = []

    def takes(feeds: Mapping[str, Any]) -> bool:
        seen.append(feeds["x"].shape)
        return bool(feeds["y"].shape == (2, 64))

    x = np.zeros((2, 3, 5, 7), np.float32)
    assert assume_sizes([IMAGE, other], {"x": x}, {"n": 2, "h": 5, "w": 7}, 1, takes) == {"k": 64}
    assert set(seen) == {x.shape}


def test_stand_ins_take_no_memory_and_need_ranks() -> None:
    huge = stand_ins([Port("x", tensor(f32, "n"))], {}, {"n": 1 << 40})
    assert huge is not None
    assert huge["x"].shape == (1 << 40,)
    assert stand_ins([Port("x", TensorType(f32, None))], {}, {}) is None
    unknown = assume_sizes([Port("x", TensorType(f32, None)), IMAGE], {}, {}, 1, lambda _: False)
    assert unknown == {"n": 1, "h": 1, "w": 1}


@pytest.mark.parametrize("dims", [(), (4, 4)])
def test_nothing_open_is_nothing_to_assume(dims: tuple[int, ...]) -> None:
    port = Port("x", tensor(f32, *dims))
    assert assume_sizes([port], {}, {}, 1, lambda _: False) == {}
