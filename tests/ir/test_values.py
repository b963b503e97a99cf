"""Values: interning, keys by type and bits, derived symbols, size limits."""

from __future__ import annotations

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from monograph.errors import InferError
from monograph.ir import (
    Constant,
    Graph,
    Input,
    Item,
    Literal,
    Op,
    Value,
    constant,
    parse_type,
    unpack,
)
from monograph.ir.op import _interned, encode
from monograph.ops.elementwise import Add, Clip, IsInf, Mul, Neg
from monograph.ops.shape import Broadcast, Reshape, Slice


def make(text: str = "f32[4]", name: str = "x") -> Value:
    return Input(name, parse_type(text))()


def test_equal_expressions_are_one_object() -> None:
    x = make()
    assert Add()(x, Neg()(x)) is Add()(x, Neg()(x))
    assert Add()(x, Neg()(x)) is not Add()(Neg()(x), x)


def test_attributes_key_by_type_and_bits() -> None:
    x = make()
    assert Clip(lo=0.0)(x) is not Clip(lo=-0.0)(x)
    assert Clip(lo=0.0) != Clip(lo=-0.0)
    assert IsInf(positive=True) != IsInf(positive=1)  # type: ignore[arg-type]
    assert Clip(lo=float("nan")) == Clip(lo=float("nan"))
    assert encode((1, (2,))) != encode((1, 2))
    assert encode("a") != encode(("a",))
    assert len({Clip(lo=0.0), Clip(lo=-0.0), Clip(lo=0.0)}) == 2


def test_equal_weights_are_one_constant() -> None:
    data = np.arange(6, dtype=np.float32)
    assert constant(data) is constant(data.copy())
    assert constant(data) is not constant(data.reshape(2, 3))
    assert constant(data) is not constant(data.astype(np.float64))
    assert constant(np.float32(0.0)) is not constant(np.float32(-0.0))
    assert constant(np.array(["a", "b"])) is constant(np.array(["a", "b"], object))


def test_literals_cannot_change() -> None:
    data = np.zeros(3, np.float32)
    literal = Literal(data)
    data[0] = 1
    assert literal.array[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        literal.array[0] = 1


def test_unused_values_are_freed() -> None:
    x = make(name="only_here")
    value = Add()(x, x)
    digest = value.digest
    assert digest in _interned
    del value
    gc.collect()
    assert digest not in _interned


def test_interning_is_safe_between_threads() -> None:
    x = make()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda i: Mul()(x, constant(np.float32(i % 5))), range(2000)))
    assert len(set(made)) == 5


def test_unknown_dimensions_become_symbols_that_repeat() -> None:
    x = make("f32[N, 6]")
    y = Reshape((-1, 4))(x)
    name = y.tensor.dims[0]
    assert isinstance(name, str)
    assert name.startswith("~")
    del y
    gc.collect()
    assert Reshape((-1, 4))(x).tensor.dims[0] == name


def test_equal_views_of_static_tensors_are_one_value() -> None:
    x = make("f32[2, 6]")
    assert Reshape((-1, 4))(x) is Reshape((3, 4))(x)
    assert Slice((0, -2), (9, 99), (1, 1))(x) is Slice((0, 4), (2, 6), (1, 1))(x)
    assert Broadcast((1, 1, 1))(x) is Broadcast((1, 2, 6))(x)


def test_errors_show_the_op_and_both_values() -> None:
    with pytest.raises(InferError) as e:
        Add()(make("f32[2]"), make("i32[2]", "y"))
    assert "add(f32[2], i32[2])" in str(e.value)
    assert "expected: f32" in str(e.value)


def test_the_wrong_number_of_inputs_is_a_clear_error() -> None:
    with pytest.raises(InferError, match="expected: 2\n  given: 1"):
        Add()(make())


def test_a_tensor_beyond_any_machine_is_refused() -> None:
    with pytest.raises(InferError, match="too large"):
        Broadcast((10**9, 10**9))(make("f32[1]"))


def test_items_of_a_tuple() -> None:
    with pytest.raises(InferError, match="several results"):
        Item(0)(make())
    with pytest.raises(InferError, match="several results"):
        unpack(make())


def test_closed_values_depend_on_no_input() -> None:
    c = constant(np.float32(1))
    assert Neg()(c).closed
    assert not Add()(c, make("f32[]")).closed


def test_two_ops_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="two ops are called"):

        @dataclass(frozen=True)
        class Add(Op):  # the name is taken
            pass


def test_an_attribute_without_a_key_is_refused() -> None:
    with pytest.raises(InferError, match="cannot be keyed"):
        Clip(lo=[1.0])(make())  # type: ignore[arg-type]


def test_values_are_not_pickled_and_copies_are_themselves() -> None:
    x = make()
    with pytest.raises(TypeError, match="text form"):
        pickle.dumps(x)
    assert copy.deepcopy(x) is x
    graph = Graph((x,), (("y", x),))
    assert copy.deepcopy(graph) is graph
    assert isinstance(constant(1).op, Constant)
