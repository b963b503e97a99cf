"""Integer inputs are drawn from ranges that their use in the graph asks for."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import monograph
from monograph.errors import ConfigError, FeedError
from monograph.report.commands.input_files import draw_inputs
from monograph.runtime.input_ranges import (
    INDEX,
    LENGTH,
    MASK,
    NUMBER,
    SIZE,
    Range,
    input_ranges,
)
from monograph.runtime.inputs import Chosen, Inputs

TABLE = (
    "<float[50, 3] table = {" + ", ".join(["0.5"] * 150) + "}, int64 two = {2}, int64 zero = {0}"
)


def model(head: str, body: str, constants: str = "") -> onnx.ModelProto:
    text = f"""
    <ir_version: 9, opset_import: ["" : 18]>
    g {head}
    {TABLE}{constants}>
    {{
        {body}
    }}
    """
    return onnx.parser.parse_model(text)


def drawn(made: onnx.ModelProto, size: int = 16, chosen: Chosen | None = None) -> Inputs:
    session = monograph.load(made, "reference")
    found = draw_inputs(session, seed=1, size=size, chosen=chosen)
    session.run(found.feeds)  # whatever is drawn, the model runs on it
    return found


def range_of(made: onnx.ModelProto, name: str, size: int = 16) -> Range | None:
    session = monograph.load(made, "reference")
    feeds = drawn(made, size).feeds
    return input_ranges(session.bound_graph(feeds)).get(name)


def index_of(body: str, constants: str = "") -> Range | None:
    made = model("(int64[N] ids) => (float[N, 3] y)", body, constants)
    return range_of(made, "ids")


@pytest.mark.parametrize(
    ("body", "low", "high"),
    [
        ("y = Gather(table, ids)", 0, 49),
        ("more = Add(ids, two) y = Gather(table, more)", -2, 47),
        ("less = Sub(ids, two) y = Gather(table, less)", 2, 51),
        ("from = Sub(two, ids) y = Gather(table, from)", -47, 2),
        ("twice = Mul(ids, two) y = Gather(table, twice)", 0, 24),
        ("narrow = Cast <to = 6> (ids) y = Gather(table, narrow)", 0, 49),
        ("f = Cast <to = 1> (ids) i = Cast <to = 7> (f) y = Gather(table, i)", 0, 49),
        ("is = Less(ids, zero) i = Where(is, zero, ids) y = Gather(table, i)", 0, 49),
        ("axes = Constant <value_ints = [0]> () u = Unsqueeze(ids, axes)"
         " s = Squeeze(u, axes) y = Gather(table, s)", 0, 49),
    ],
)  # fmt: skip
def test_an_index_lies_within_the_rows(body: str, low: int, high: int) -> None:
    assert index_of(body) == Range(low, high, INDEX, "an index of 50 rows")


def test_an_index_that_is_made_to_fit_is_free() -> None:
    found = index_of("many = Constant <value_int = 50> () i = Mod(ids, many) y = Gather(table, i)")
    assert found is None or found.high > 1


def test_all_indices_are_used() -> None:
    made = model("(int64[N] ids) => (float[N, 3] y)", "y = Gather(table, ids)")
    ids = drawn(made, size=400).feeds["ids"]
    assert ids.min() >= 0
    assert ids.max() <= 49
    assert len(set(ids.tolist())) > 40


LENGTHS = """
    shape = Shape(x)
    size = Gather(shape, one)
    places = Range(zero, size, one)
    more = Constant <value_ints = [1]> ()
    column = Unsqueeze(lens, more)
    seen = Less(places, column)
    nothing = Constant <value_float = 0.0> ()
    y = Where(seen, x, nothing)
"""
LENGTHS_HEAD = "(float[B, T] x, int64[B] lens) => (float[B, T] y)"


@pytest.mark.parametrize("size", [16, 20000])
def test_a_length_is_that_of_the_axis_it_is_compared_with(size: int) -> None:
    made = model(LENGTHS_HEAD, LENGTHS, ", int64 one = {1}")
    session = monograph.load(made, "reference", dims={"B": 3, "T": size})
    found = draw_inputs(session, seed=1)
    lens = found.feeds["lens"]
    assert lens.max() == size  # of the first, so that no output is empty
    assert 1 <= lens.min() < size
    (y,) = session.run(found.feeds)
    assert y[0].all()
    assert range_of(made, "lens") == Range(1, 16, LENGTH, "compared with 0..15")


def test_frames_are_counted_back_to_samples() -> None:
    body = LENGTHS.replace("Unsqueeze(lens", "Unsqueeze(frames")
    made = model(
        "(float[B, T] x, int64[B] lens) => (float[B, T] y)",
        "step = Constant <value_int = 160> () frames = Div(lens, step)" + body,
        ", int64 one = {1}",
    )
    found = range_of(made, "lens")
    assert found is not None
    assert found.kind == LENGTH
    assert (found.low // 160, found.high // 160) in {(1, 16), (2, 16)}


MASKS = [
    "m = Cast <to = 1> (mask) one = Constant <value_float = 1.0> () off = Sub(one, m)"
    " low = Constant <value_float = -3.4e38> () bias = Mul(off, low) y = Add(x, bias)",
    "m = Cast <to = 9> (mask) low = Constant <value_float = -1e9> () y = Where(m, x, low)",
    "off = Equal(mask, zero) low = Constant <value_float = -1e9> () y = Where(off, low, x)",
]


@pytest.mark.parametrize("body", MASKS)
def test_a_mask_is_mostly_one_and_hides_no_row_altogether(body: str) -> None:
    made = model("(float[B, T] x, int64[B, T] mask) => (float[B, T] y)", body)
    assert range_of(made, "mask") == Range(0, 1, MASK)
    mask = drawn(made, size=40).feeds["mask"]
    assert set(mask.ravel().tolist()) == {0, 1}
    assert mask[:, 0].all()
    assert mask.mean() > 0.7


def test_a_sum_of_flags_may_be_an_index() -> None:
    """Positions are counted by a running sum of the mask."""
    body = "axis = Constant <value_int = 1> () s = CumSum(mask, axis) y = Gather(table, s)"
    made = model("(int64[B, T] mask) => (float[B, T, 3] y)", body)
    assert range_of(made, "mask") == Range(0, 3, INDEX, "an index of 50 rows")


def test_other_uses() -> None:
    slice_ = model(
        "(float[20] x, int64[1] n) => (float[M] y)",
        "first = Constant <value_ints = [0]> () y = Slice(x, first, n, first)",
    )
    assert range_of(slice_, "n") == Range(1, 20, LENGTH, "a bound within 20")
    top = model("(float[20] x, int64[1] k) => (float[M] y, int64[M] i)", "y, i = TopK(x, k)")
    assert range_of(top, "k") == Range(1, 20, LENGTH, "how many of 20")
    expand = model("(float[1] x, int64 n) => (float[M] y)", """
        one = Constant <value_int = 1> ()
        r = Range(zero, n, one)
        f = Cast <to = 1> (r)
        y = Add(f, x)
    """)  # fmt: skip
    assert range_of(expand, "n") == Range(1, 4, SIZE, "a size or a count")
    image = model(
        "(uint8[2, 3] image) => (float[2, 3] y)", "f = Cast <to = 1> (image) y = Sigmoid(f)"
    )
    assert range_of(image, "image") == Range(0, 255, NUMBER)


def test_indices_in_branches_and_loops_are_followed() -> None:
    made = model(
        "(bool cond, int64[N] ids) => (float[N, 3] y)",
        """y = If (cond) <
            then_branch = yes () => (float[N, 3] a) { a = Gather(table, ids) },
            else_branch = no () => (float[N, 3] b) { more = Add(ids, two) b = Gather(table, more) }
        >""",
    )
    found = range_of(made, "ids")
    assert found is not None
    assert (found.low, found.high) == (0, 47)


def test_two_uses_are_served_at_once() -> None:
    made = model(
        "(int64[N] ids) => (float[N, 3] y, float[N, 2] z)",
        "y = Gather(table, ids) z = Gather(other, ids)",
        ", float[7, 2] other = {" + ", ".join(["1"] * 14) + "}",
    )
    found = range_of(made, "ids")
    assert found is not None
    assert (found.low, found.high, found.kind) == (0, 6, INDEX)


def test_chosen_ranges_and_values_come_first() -> None:
    made = model("(int64[N] ids, float[N] x) => (float[N, 3] y, float[N] z)",
                 "y = Gather(table, ids) z = Relu(x)")  # fmt: skip
    found = drawn(made, chosen=Chosen({"ids": (7, 9), "x": (2.0, 3.0)}))
    assert set(found.feeds["ids"].tolist()) == {7, 8, 9}
    assert found.feeds["x"].min() >= 2
    assert found.drawn == {"ids": "7..9, as asked", "x": "2..3, as asked"}
    assert found.random == ["ids", "x"]
    filled = drawn(made, chosen=Chosen(values={"ids": 11, "x": 0.5}))
    assert set(filled.feeds["ids"].tolist()) == {11}
    assert set(filled.feeds["x"].tolist()) == {0.5}
    assert filled.random == []


@pytest.mark.parametrize(
    ("chosen", "error", "words"),
    [
        (Chosen({"idz": (0, 1)}), FeedError, "no such input"),
        (Chosen(values={"idz": 1}), FeedError, "did you mean ids"),
        (Chosen({"ids": (0.5, 2)}), ConfigError, "ids holds whole numbers"),
        (Chosen(values={"small": 300}), ConfigError, r"0..255"),
        (Chosen({"ids": (3, 1)}), ConfigError, "is empty"),
        (Chosen(values={"flag": 2}), ConfigError, "0..1"),
        (Chosen(values={"words": 1}), ConfigError, "tensors of numbers"),
        (Chosen({"ids": (0, 1)}, {"ids": 1}), ConfigError, "more than one way"),
    ],
)  # fmt: skip
def test_what_cannot_be_chosen(chosen: Chosen, error: type[Exception], words: str) -> None:
    made = model(
        "(int64[N] ids, uint8[N] small, bool[N] flag, string[N] words)"
        " => (int64[N] a, uint8[N] b, bool[N] c, string[N] d)",
        "a = Identity(ids) b = Identity(small) c = Identity(flag) d = Identity(words)",
    )
    with pytest.raises(error, match=words):
        draw_inputs(monograph.load(made, "reference"), chosen=chosen)


def test_a_range_up_to_the_largest_number_of_a_type() -> None:
    made = model("(uint64[N] a, int64[N] b) => (uint64[N] c, int64[N] d)",
                 "c = Identity(a) d = Identity(b)")  # fmt: skip
    top = np.iinfo(np.uint64).max
    found = drawn(made, chosen=Chosen({"a": (int(top) - 1, int(top)), "b": (-(2**63), 2**63 - 1)}))
    assert found.feeds["a"].min() >= top - 1
    assert found.feeds["b"].dtype == np.int64
