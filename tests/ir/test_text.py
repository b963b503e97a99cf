"""The text form: what it looks like, and that it reads back to the same graph."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import TextError
from monograph.ir import (
    Graph,
    Input,
    Literal,
    constant,
    constants,
    parse_graph,
    parse_type,
    print_graph,
)
from monograph.ir.dtype import ALL
from monograph.ir.text import format_attribute
from monograph.ops.elementwise import Add, Clip, Mul, Neg

TEXT = """graph "main"(%x: f32[N, 3], %"odd name": f32[3]) {
  %0 = constant {value=f32[3] [1.0, -0.0, inf]} : f32[3]
  %1 = add(%x, %0) : f32[N, 3]  // "Add_4"
  %2 = clip(%1) {lo=0.0, hi=6.5} : f32[N, 3]
  %3 = mul(%2, %"odd name") : f32[N, 3]
  return "y" = %3, "z" = %1
  donate "y" = "x"
}"""


def test_the_form() -> None:
    x = Input("x", parse_type("f32[N, 3]"))()
    w = Input("odd name", parse_type("f32[3]"))()
    total = Add()(x, constant(np.array([1.0, -0.0, np.inf], np.float32)))
    y = Mul()(Clip(0.0, 6.5)(total), w)
    graph = Graph(
        (x, w), (("y", y), ("z", total)), origins={total: "Add_4"}, donations=(("y", "x"),)
    )
    assert print_graph(graph) == TEXT == str(graph)
    again = parse_graph(TEXT)
    assert again == graph
    assert again.outputs[0][1] is y
    assert again.origins == {total: "Add_4"}


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("count", [0, 3, 40])
def test_constants_of_every_dtype_read_back(dtype, count: int) -> None:
    if dtype.is_string:
        data = np.array(["é", "", 'q"', "\ud800"] * 10, object)[:count]
    else:
        raw = np.random.default_rng(0).integers(0, 2, count)
        data = raw.astype(dtype.numpy)
    graph = Graph((), (("y", constant(Literal(data))),))
    assert parse_graph(print_graph(graph, data=True)) == graph
    assert parse_graph(print_graph(graph), constants(graph)) == graph


def test_a_nan_keeps_its_bits() -> None:
    odd = np.array([0x7FC00001], np.uint32).view(np.float32)
    graph = Graph((), (("y", constant(odd)),))
    assert parse_graph(print_graph(graph, data=True)) == graph
    payload = float(np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0])
    x = Input("x", parse_type("f32[2]"))()
    clipped = Graph((x,), (("y", Clip(lo=payload, hi=float("nan"))(x)),))
    assert parse_graph(print_graph(clipped)) == clipped


def test_a_constant_by_digest_must_be_given() -> None:
    graph = Graph((), (("y", constant(np.arange(100))),))
    with pytest.raises(TextError, match="`constants` lacks it"):
        parse_graph(print_graph(graph))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('graph "g"() { %0 = nothing : f32[1] return }', "no such op"),
        ('graph "g"() { return "y" = %0 }', "used before it is defined"),
        (
            'graph "g"(%x: f32[2]) { %0 = neg(%x) : f32[3] return }',
            "the one that the op infers",
        ),
        ('graph "g"(%x: f32[2]) { %0 = neg(%x) {a=1} : f32[2] return }', "no such attribute"),
        ('graph "g"(%x: f32[2]) { %x = neg(%x) : f32[2] return }', "defined twice"),
        ('graph "g"(%x: f32[2]) { return } more', "nothing may follow the end"),
        ('graph "g"(%x: f32[2]) { $ return }', "no token here"),
        ('graph "g"() { %0 = constant {value=i8[2] [1]} : i8[2] return }', "do not fit the type"),
        ('graph "g"() { %0 = constant {value=i8[2] base64:AA==} : i8[2] return }', "bytes do not"),
        ('graph "g"() { %0 = constant {value=i8[2] base64:A} : i8[2] return }', "bytes do not"),
        ('graph "g"() { %0 = constant {val=1} : i8[2] return }', "no such attribute"),
        ('graph "g"() { %0 = constant : i8[2] return }', "constant"),
        ('graph "g"() {', "expected: return"),
        (f'graph "g"(%x: f32[{"9" * 5000}]) {{ return }}', "a size must be a number"),
        (f'graph "g"() {{ %0 = iota {{axis={"9" * 5000}}} : f32[1] return }}', "too long"),
        (r'graph "\x"() { return }', "must be quoted"),
        (r'graph "g"(%"\x": f32[2]) { return }', "must be quoted"),
        (
            'graph "g"(%x: f32[2]) { %0 = neg(%x) : f32[2] // notjson\n return }',
            "must be quoted",
        ),
        (
            'graph "g"(%x: f32[2]) { %0 = reduce_sum(%x) {axes="ab"} : f32[2] return }',
            "does not take these attributes",
        ),
    ],
)
def test_broken_text_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(TextError, match=message) as e:
        parse_graph(text)
    assert "line 1" in str(e.value)


def test_an_attribute_without_text_is_refused() -> None:
    with pytest.raises(TextError, match="no text form"):
        format_attribute({1: 2})


def test_input_names_cannot_clash_with_value_numbers() -> None:
    x = Input("0", parse_type("f32[2]"))()
    graph = Graph((x,), (("y", Neg()(x)),))
    assert parse_graph(print_graph(graph)) == graph
