"""1x1 convolutions before resizes: every condition, with its twin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monograph.ir import Value, constant
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Abs, Add
from monograph.ops.resize import Resize
from monograph.ops.shape import Concat
from monograph.rewrite import Trace, apply_rules
from monograph.rules import convolution
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

rng = np.random.default_rng(0)
RULES = [convolution.convolve_before_resize]
TWICE = Resize((2, 3), sizes=(40, 40), coordinates="asymmetric", rounding="floor")
PIXELS = Conv((1, 1), (0, 0), (0, 0), (1, 1))
small, large = value("f32[1, 64, 20, 20]"), value("f32[1, 32, 40, 40]", "y")


def weight(*shape: int) -> Value:
    return constant(rng.normal(size=shape).astype(np.float32))


def parts(w: Value, *at: int) -> list[Value]:
    return [constant(np.ascontiguousarray(p)) for p in np.split(w.op.value.array, at, 1)]


def test_before_and_after() -> None:
    w = weight(48, 96, 1, 1)
    before = graph_of(PIXELS(Concat(1)(TWICE(small), large), w))
    v, rest = parts(w, 64)
    after = Add()(PIXELS(large, rest), TWICE(PIXELS(small, v)))
    check_rewrite(before, RULES, graph_of(after))


def test_a_resize_alone() -> None:
    w = weight(48, 64, 1, 1)
    expected = graph_of(TWICE(PIXELS(small, w)))
    check_rewrite(graph_of(PIXELS(TWICE(small), w)), RULES, expected)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners"])
def test_between_other_parts(mode: str, coordinates: str) -> None:
    resize = replace(TWICE, mode=mode, coordinates=coordinates)
    source = Concat(1)(large, resize(small), Abs()(large), resize(Abs()(small)))
    check_rewrite(graph_of(PIXELS(source, weight(40, 192, 1, 1))), RULES)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: PIXELS(Abs()(small), weight(8, 64, 1, 1)), "nothing is resized"),
        (lambda: PIXELS(TWICE(small), value("f32[8, 64, 1, 1]", "w")), "not constant"),
        (
            lambda: replace(PIXELS, pads_begin=(1, 1))(TWICE(small), weight(8, 64, 1, 1)),
            "pads or skips",
        ),
        (
            lambda: replace(PIXELS, strides=(2, 2))(TWICE(small), weight(8, 64, 1, 1)),
            "pads or skips",
        ),
        (lambda: PIXELS(TWICE(small), weight(8, 64, 3, 3)), "not 1x1"),
        (
            lambda: replace(PIXELS, groups=2)(TWICE(small), weight(8, 32, 1, 1)),
            "has groups (expected 1, given 2)",
        ),
        (
            lambda: PIXELS(replace(TWICE, sizes=(10, 10))(small), weight(8, 64, 1, 1)),
            "enlarged",
        ),
        (
            lambda: PIXELS(Concat(2)(TWICE(small), TWICE(small)), weight(8, 64, 1, 1)),
            "not one of channels",
        ),
        (lambda: PIXELS(TWICE(value("f32[1, 4, 20, 20]")), weight(512, 4, 1, 1)), "slower"),
    ],
)
def test_declines(made, reason: str) -> None:
    check_declines(graph_of(made()), RULES, reason)


def test_other_readers() -> None:
    enlarged = TWICE(small)
    y = PIXELS(enlarged, weight(8, 64, 1, 1))
    check_declines(graph_of(y, Abs()(enlarged)), RULES, "enlarged")
    joined = Concat(1)(TWICE(small), large)
    y = PIXELS(joined, weight(8, 96, 1, 1))
    check_declines(graph_of(y, Abs()(joined)), RULES, "others read the concat")


def test_narrow_floats() -> None:
    x = value("f16[1, 64, 20, 20]")
    w = constant(rng.normal(size=(8, 64, 1, 1)).astype(np.float16))
    check_declines(graph_of(PIXELS(TWICE(x), w)), RULES, "not a wide float")


def test_a_wide_kernel_over_nothing_resized_is_no_near_miss() -> None:
    """The form is missing: a 3x3 convolution of a resized image is nearer."""
    same = {"strides": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1), "dilations": (1, 1)}
    joined = Concat(1)(large, Abs()(large))
    plain = Conv(**same)(joined, weight(8, 64, 3, 3))
    check_declines(
        graph_of(plain), RULES, "nothing is resized (expected a resize, given input, abs"
    )
    trace = Trace()
    resized = Conv(**same)(TWICE(small), weight(8, 64, 3, 3))
    apply_rules(graph_of(plain, resized), RULES, trace=trace)
    near, far = trace.nearest("convolve_before_resize")
    assert "not 1x1" in near.reason
    assert near.score > far.score
