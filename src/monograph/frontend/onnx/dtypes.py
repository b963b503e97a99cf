"""Conversion of ONNX element types and value types."""

from __future__ import annotations

from collections.abc import Collection

import onnx

from monograph.errors import ModelError
from monograph.ir import (
    UNKNOWN,
    Dim,
    DType,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    dtype,
)
from monograph.ir.types import accepts

_NAMES = {
    "FLOAT": "f32", "UINT8": "u8", "INT8": "i8", "UINT16": "u16", "INT16": "i16", "INT32": "i32",
    "INT64": "i64", "STRING": "str", "BOOL": "bool", "FLOAT16": "f16", "DOUBLE": "f64",
    "UINT32": "u32", "UINT64": "u64", "COMPLEX64": "c64", "COMPLEX128": "c128",
    "BFLOAT16": "bf16", "FLOAT8E4M3FN": "f8e4m3fn", "FLOAT8E4M3FNUZ": "f8e4m3fnuz",
    "FLOAT8E5M2": "f8e5m2", "FLOAT8E5M2FNUZ": "f8e5m2fnuz", "FLOAT8E8M0": "f8e8m0",
    "FLOAT4E2M1": "f4e2m1", "FLOAT6E2M3": "f6e2m3", "FLOAT6E3M2": "f6e3m2",
    "UINT4": "u4", "INT4": "i4", "UINT2": "u2", "INT2": "i2",
}  # fmt: skip
_FROM_ONNX: dict[int, DType] = {
    onnx.TensorProto.DataType.Value(k): dtype(v)
    for k, v in _NAMES.items()
    if k in onnx.TensorProto.DataType.keys()  # noqa: SIM118 (a protobuf enum is no mapping)
}
_TO_ONNX = {v.name: k for k, v in _FROM_ONNX.items()}


def from_onnx(element: int) -> DType:
    """The element type of an ONNX enum value."""
    if element not in _FROM_ONNX:
        raise ModelError("unknown ONNX element type", expected=sorted(_FROM_ONNX), given=element)
    return _FROM_ONNX[element]


def to_onnx(given: DType) -> int:
    """The ONNX enum value of an element type."""
    return _TO_ONNX[given.name]


MAX_TYPE_NESTING = 16


def value_type(proto: onnx.TypeProto, name: str, depth: int = 0) -> Type:
    """The type that a model declares. A dimension it leaves open becomes a symbol of its own."""
    if depth > MAX_TYPE_NESTING:
        raise ModelError(f"the type of {name!r} is nested too deeply")
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        element = from_onnx(proto.tensor_type.elem_type)
        if not proto.tensor_type.HasField("shape"):
            return TensorType(element, None)
        dims = proto.tensor_type.shape.dim
        return TensorType(element, tuple(_dimension(d, name, i) for i, d in enumerate(dims)))
    if kind == "sequence_type":
        return SequenceType(value_type(proto.sequence_type.elem_type, name, depth + 1))
    if kind == "optional_type":
        return OptionalType(value_type(proto.optional_type.elem_type, name, depth + 1))
    if kind == "map_type":
        element = from_onnx(proto.map_type.value_type.tensor_type.elem_type)
        return MapType(from_onnx(proto.map_type.key_type), element)
    raise ModelError(
        f"the type of {name!r} is not supported",
        expected="tensor, sequence, optional or map",
        given=kind or "no type",
    )


def _dimension(proto: onnx.TensorShapeProto.Dimension, name: str, axis: int) -> Dim:
    if proto.HasField("dim_value") and proto.dim_value >= 0:
        return int(proto.dim_value)
    # Some exporters write -1 or "?" for an open dimension: neither is a name. ONNX Runtime treats
    # any negative size as open.
    named = proto.dim_param not in ("", UNKNOWN)
    return proto.dim_param if named else f"~{name}_{axis}"


def declared_type(info: onnx.ValueInfoProto) -> Type | None:
    """Return the type that a model declares; None if it declares none."""
    kind = info.type.WhichOneof("value")
    undefined = kind == "tensor_type" and not info.type.tensor_type.elem_type
    return None if kind is None or undefined else value_type(info.type, info.name)


def check_declared(info: onnx.ValueInfoProto, inferred: Type) -> None:
    """Raise an error if a model declares another kind or element type than it computes.

    Shapes may differ: like ONNX Runtime, the import uses the computed shape.
    """
    declared = declared_type(info)
    if declared is not None and not accepts(_without_shape(declared), inferred):
        raise ModelError(
            f"output {info.name!r} is not of the type that the model declares",
            expected=declared,
            given=inferred,
        )


def _without_shape(given: Type) -> Type:
    if isinstance(given, SequenceType):
        return SequenceType(_without_shape(given.element))
    if isinstance(given, OptionalType):
        return OptionalType(_without_shape(given.element))
    return given.with_shape(None) if isinstance(given, TensorType) else given


def declared_names(
    inferred: Type, proto: onnx.TypeProto, name: str, inputs: Collection[Dim] = ()
) -> Type:
    """Return an inferred type with the model's own names for symbols that inference made.

    Symbols of the inputs stay if the model has no name: they show which sizes are equal.
    """
    try:
        declared = value_type(proto, name)
    except ModelError:
        return inferred  # an output need not declare a type
    if not isinstance(inferred, TensorType) or not isinstance(declared, TensorType):
        return inferred
    a, b = inferred.shape, declared.shape
    if inferred.dtype != declared.dtype or a is None or b is None or len(a) != len(b):
        return inferred

    def choose(x: Dim, y: Dim) -> Dim:
        unnamed = isinstance(y, str) and y.startswith("~") and x in inputs
        return x if isinstance(x, int) or not x.startswith("~") or unnamed else y

    return inferred.with_shape(tuple(map(choose, a, b)))


def type_proto(given: Type) -> onnx.TypeProto:
    """Return a type as a TypeProto, for ONNX's schemas."""
    if isinstance(given, TensorType):
        shape = None
        if given.shape is not None:
            shape = [d if isinstance(d, int) else None for d in given.shape]
        return onnx.helper.make_tensor_type_proto(to_onnx(given.dtype), shape)
    if isinstance(given, SequenceType):
        return onnx.helper.make_sequence_type_proto(type_proto(given.element))
    if isinstance(given, OptionalType):
        return onnx.helper.make_optional_type_proto(type_proto(given.element))
    raise ModelError("a type has no ONNX form", given=given)
