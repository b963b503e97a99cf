"""Tensors of a model file: every element type in every field, and data that lies about itself."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.frontend.onnx import read_model
from monograph.frontend.onnx.dtypes import to_onnx
from monograph.frontend.onnx.tensors import read_sparse, read_tensor
from monograph.ir import DType
from monograph.ir.dtype import ALL
from tests.frontend.untrusted.hostile import info, model, refused

NUMBERS = [t for t in ALL if not t.is_string and t.bits != 6]
"""Element types of tensors; ONNX does not say how 6 bits would be packed."""


def tensor(kind: int = TensorProto.FLOAT, dims=(2,), **fields) -> TensorProto:
    return TensorProto(name="w", data_type=kind, dims=dims, **fields)


def elements(dtype: DType, count: int) -> np.ndarray:
    """All kinds of bits, as far as the type has room for them."""
    generator = np.random.default_rng(dtype.bits)
    bits = generator.integers(0, 1 << min(dtype.bits, 8), (count, dtype.itemsize), np.uint8)
    if dtype.kind == "bool":
        bits &= 1
    return bits.reshape(-1).view(dtype.numpy).reshape(count)


def pack(array: np.ndarray, bits: int) -> bytes:
    """Sub-byte elements packed one by one, the first lowest."""
    packed = bytearray(-(-array.size * bits // 8))
    for i, x in enumerate(array.reshape(-1).view(np.uint8)):
        packed[i * bits // 8] |= (int(x) & ((1 << bits) - 1)) << (i * bits % 8)
    return bytes(packed)


def same_bits(given: np.ndarray, expected: np.ndarray) -> None:
    assert given.dtype == expected.dtype
    assert given.shape == expected.shape
    assert given.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", [(7,), (2, 3), (), (0, 3)])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_raw_data(dtype, shape):
    array = elements(dtype, int(np.prod(shape))).reshape(shape)
    raw = pack(array, dtype.bits) if dtype.bits < 8 else array.tobytes()
    literal = read_tensor(tensor(to_onnx(dtype), shape, raw_data=raw), None)
    same_bits(literal.array, array)
    assert not literal.array.flags.writeable


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_typed_data(dtype):
    array = elements(dtype, 7)
    if dtype.bits < 8:
        fields = {"int32_data": list(pack(array, dtype.bits))}
    elif dtype.kind == "complex":
        parts = array.view(np.float32 if dtype.name == "c64" else np.float64).tolist()
        fields = {"float_data" if dtype.name == "c64" else "double_data": parts}
    elif dtype.name in ("f32", "f64", "i64", "u64", "u32"):
        names = {"f32": "float_data", "f64": "double_data", "i64": "int64_data"}
        fields = {names.get(dtype.name, "uint64_data"): array.tolist()}
    elif dtype.is_float:
        fields = {"int32_data": array.view(f"u{dtype.itemsize}").tolist()}
    else:
        fields = {"int32_data": array.astype(int).tolist()}
    literal = read_tensor(tensor(to_onnx(dtype), [7], **fields), None)
    if dtype.is_float:
        np.testing.assert_array_equal(literal.array, array)  # a NaN may lose its payload
    else:
        same_bits(literal.array, array)


def test_agrees_with_onnx_on_what_onnx_writes():
    for dtype in NUMBERS:
        array = elements(dtype, 12).reshape(3, 4)
        same_bits(read_tensor(numpy_helper.from_array(array), None).array, array)


def test_strings():
    made = tensor(TensorProto.STRING, [2, 2], string_data=[b"a", b"", "é".encode(), b"0\0"])
    literal = read_tensor(made, None)
    assert literal.array.tolist() == [["a", ""], ["é", "0\0"]]
    with refused("'w'", "not UTF-8"):
        read_tensor(tensor(TensorProto.STRING, [1], string_data=[b"\xff"]), None)
    with refused("'w'", "strings", "raw"):
        read_tensor(tensor(TensorProto.STRING, [1], raw_data=b"a"), None)


def test_bools_are_0_or_1():
    made = tensor(TensorProto.BOOL, [3], raw_data=b"\x00\x02\xff")
    assert read_tensor(made, None).array.view(np.uint8).tolist() == [0, 1, 1]


def test_raw_data_is_used_in_place():
    array = read_tensor(tensor(raw_data=bytes(8)), None).array
    assert not array.flags.owndata
    assert array.flags.aligned


FLOAT2 = {"float_data": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (tensor(dims=[-1], **FLOAT2), ("negative", "[-1]")),
        (tensor(dims=[-2, -1], **FLOAT2), ("negative",)),
        (tensor(dims=[2**62, 2**62], **FLOAT2), ("too large", str(2**62))),
        # 2^32 * 2^32 is 0 in 64 bits.
        (tensor(dims=[2**32, 2**32]), ("too large",)),
        (tensor(dims=[2**63 - 1, 2, 2]), ("too large",)),
        (tensor(dims=[2**62, 0, 2**62]), ("too large",)),
        (tensor(dims=[1] * 100, float_data=[1.0]), ("too many dims", "100")),
        (tensor(dims=[3], **FLOAT2), ("does not fit its dims", "3 in float_data", "given: 2")),
        (tensor(dims=[], **FLOAT2), ("does not fit its dims", "1 in float_data")),
        (tensor(dims=[0], **FLOAT2), ("does not fit its dims", "0 in float_data")),
        (tensor(dims=[2]), ("does not fit its dims", "given: 0")),
        (tensor(dims=[2], raw_data=bytes(7)), ("raw data", "8 bytes", "7 bytes")),
        (tensor(dims=[2], raw_data=bytes(9)), ("raw data", "8 bytes", "9 bytes")),
        (tensor(TensorProto.INT4, [3], raw_data=bytes(1)), ("2 bytes for i4[3]", "1 bytes")),
        (tensor(TensorProto.UINT4, [3], int32_data=[1]), ("2 in int32_data for u4[3]",)),
        (tensor(raw_data=bytes(8), **FLOAT2), ("two fields", "raw_data and float_data")),
        (tensor(int32_data=[1, 2], **FLOAT2), ("two fields", "int32_data")),
        (tensor(raw_data=bytes(8), data_location=1), ("two fields", "external data")),
        (tensor(int64_data=[1, 2]), ("wrong field", "float_data", "int64_data")),
        (tensor(kind=0, **FLOAT2), ("unknown element type", "given: 0")),
        (tensor(kind=999, **FLOAT2), ("unknown element type", "given: 999")),
        (tensor(kind=-1, **FLOAT2), ("unknown element type", "given: -1")),
        (tensor(TensorProto.UINT8, int32_data=[0, 256]), ("u8 cannot", "0..255", "0..256")),
        (tensor(TensorProto.INT8, int32_data=[0, -129]), ("i8 cannot", "-129..0")),
        (tensor(TensorProto.FLOAT16, int32_data=[0, 65536]), ("f16 cannot",)),
        (tensor(TensorProto.UINT32, uint64_data=[0, 2**32]), ("u32 cannot",)),
        (tensor(segment=TensorProto.Segment(begin=0, end=1)), ("segments",)),
    ],
)  # fmt: skip
def test_tensors_that_lie(given, words):
    with refused("'w'", *words):
        read_tensor(given, None)


# Sparse tensors


def sparse(values=(5.0, 6.0), indices=(1, 3), dims=(2, 3), index_dims=None):
    flat = np.array(indices, np.int64)
    return helper.make_sparse_tensor(
        helper.make_tensor("s", TensorProto.FLOAT, [len(values)], list(values)),
        helper.make_tensor("", TensorProto.INT64, index_dims or [len(flat)], flat.tolist()),
        list(dims),
    )


def test_sparse_tensors():
    expected = [[0, 5, 0], [6, 0, 0]]
    assert read_sparse(sparse(), None).array.tolist() == expected
    by_row = sparse(indices=[0, 1, 1, 0], index_dims=[2, 2])
    assert read_sparse(by_row, None).array.tolist() == expected
    assert read_sparse(sparse((), (), (2,)), None).array.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (sparse(indices=[1, 6]), ("outside its dims", "[6]", "1..6")),
        (sparse(indices=[-1, 3]), ("outside its dims", "-1..3")),
        (sparse(indices=[0, 1, 2, 0], index_dims=[2, 2]), ("outside its dims",)),
        (sparse(indices=[0, 1, 1, -1], index_dims=[2, 2]), ("outside its dims",)),
        (sparse(indices=[3, 1]), ("not sorted",)),
        (sparse(indices=[1, 1]), ("sorted and unique",)),
        (sparse(indices=[1, 2, 3]), ("do not fit its values", "i64[2] or i64[2, 2]", "[3]")),
        (sparse(indices=[0, 1], index_dims=[1, 2]), ("do not fit its values",)),
        (sparse(dims=[-1, 3]), ("negative", "[-1, 3]")),
        (sparse(dims=[2**40, 2**40]), ("too large",)),
        (sparse(dims=[1] * 70), ("too many dims",)),
    ],
)
def test_sparse_tensors_that_lie(given, words):
    with refused("'s'", *words):
        read_sparse(given, None)


def test_sparse_parts_of_the_wrong_kind():
    made = sparse()
    made.indices.CopyFrom(helper.make_tensor("", TensorProto.INT32, [2], [1, 3]))
    with refused("'s'", "do not fit", "int32"):
        read_sparse(made, None)
    made = sparse()
    made.values.dims[:] = [1, 2]
    with refused("'s'", "must be a vector", "[1, 2]"):
        read_sparse(made, None)


# Wherever a tensor stands

BAD = tensor(dims=[3], **FLOAT2)


def _places() -> dict[str, onnx.ModelProto]:
    bad_sparse = sparse()
    bad_sparse.values.CopyFrom(BAD)
    constant = helper.make_node("Constant", [], ["y"], value=BAD)
    sparse_node = helper.make_node("Constant", [], ["y"])
    attribute = sparse_node.attribute.add(
        name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR
    )
    attribute.sparse_tensor.CopyFrom(bad_sparse)
    inner = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["z"])], "inner", [], [info("z")], initializer=[BAD]
    )
    branch = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    condition = [info("c", [], TensorProto.BOOL)]
    function = helper.make_function("f", "f0", [], ["y"], [constant], [helper.make_opsetid("", 21)])
    identity = helper.make_node("Identity", ["w"], ["y"])
    return {
        "initialiser": model([identity], initializer=[BAD]),
        "sparse initialiser": model([identity], sparse_initializer=[bad_sparse]),
        "attribute": model([constant]),
        "sparse attribute": model([sparse_node]),
        "sub-graph": model([branch], inputs=condition),
        "function": model(
            [helper.make_node("f0", [], ["y"], domain="f")],
            functions=[function],
            opsets={"": 21, "f": 1},
        ),
    }


@pytest.mark.parametrize("place", _places())
def test_every_tensor_is_checked(place):
    with refused("'w'", "does not fit its dims"):
        monograph.load(_places()[place])


@pytest.mark.parametrize("place", _places())
def test_external_data_without_a_directory(place):
    made = _places()[place]
    raw = made.SerializeToString()
    outside = tensor(dims=[2], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="/etc/passwd")
    read_model(raw)
    for found in _tensors(made):
        found.CopyFrom(outside)
    with refused("'w'", "without a directory", "by its path"):
        monograph.load(made)


def _tensors(made: onnx.ModelProto) -> list[TensorProto]:
    """Every tensor called w, wherever it is."""
    found, stack = [], [made]
    while stack:
        message = stack.pop()
        for field, value in message.ListFields():
            if field.type != field.TYPE_MESSAGE:
                continue
            for part in [value] if hasattr(value, "ListFields") else value:
                if isinstance(part, TensorProto) and part.name == "w":
                    found.append(part)
                else:
                    stack.append(part)
    return found
