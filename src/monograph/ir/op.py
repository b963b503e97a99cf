"""The base class of ops, the ops that the IR itself is made of, and their application to values.

Values are interned: an op applied twice to the same values gives the same object, so equal
expressions need no search. Ops and values are compared by type and bits: 0.0 and -0.0, or 1 and
True, are different attributes.
"""

from __future__ import annotations

import math
import os
import re
import struct
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from monograph.errors import ExecutionError, InferError, MonographError
from monograph.ir.dtype import DType, i64
from monograph.ir.memory import MAX_RANK, MAX_TENSOR_BYTES, count_elements
from monograph.ir.sizes import any_open, is_open
from monograph.ir.traits import IntRange, Narrowing, OpTraits, RangeOf
from monograph.ir.types import (
    Array,
    Literal,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    digest_of,
    holds_open,
    name_unknowns,
)

T = TypeVar("T")


def encode(attribute: Any) -> bytes:
    """Encode an attribute as bytes; only attributes of equal type and equal bits encode alike."""
    if attribute is None:
        return b"n"
    if isinstance(attribute, bool):
        return b"b1" if attribute else b"b0"
    if is_open(attribute):
        return b"z" + repr(attribute).encode() + b";"
    if isinstance(attribute, int):
        return b"i%d;" % attribute
    if isinstance(attribute, float):
        return b"f" + struct.pack("<d", attribute)
    if isinstance(attribute, str):
        raw = attribute.encode("utf-8", "surrogatepass")
        return b"s%d:" % len(raw) + raw
    if isinstance(attribute, tuple):
        return b"(" + b"".join(map(encode, attribute)) + b")"
    if isinstance(attribute, DType):
        return b"d" + attribute.name.encode() + b";"
    if isinstance(attribute, (TensorType, TupleType, SequenceType, OptionalType, MapType)):
        return b"t" + str(attribute).encode() + b";"
    digest = getattr(attribute, "digest", None)
    if isinstance(digest, bytes):  # a Literal or a Graph
        return b"#" + digest
    raise InferError(
        f"an attribute of type {type(attribute).__name__} cannot be keyed",
        given=repr(attribute),
        hint="attributes are None, bool, int, float, str, DType, types, Literal, Graph and tuples",
    )


class Op(OpTraits):
    """The base of every op: attributes (dataclass fields), a type rule and a numpy reference.

    A subclass is a frozen dataclass that defines

    - `infer(*types) -> type`: the type of the result; raises InferError with both values;
    - `reference(*arrays) -> array`: the numpy implementation; several results as a tuple;
    - `samples`: small programs that every target runs against the reference;
    - `scalar(builder, *scalars) -> scalar` for an elementwise op: targets generate code from it.

    Other facts, for passes, analyses and tolerances, are its traits (`monograph.ir.traits`).

    An op that must know a rank reads `type.dims`, which raises UnknownRankError for an unknown
    rank; an op that can do without reads `type.shape` first.
    """

    name: ClassVar[str]
    samples: ClassVar[tuple[Sample, ...]] = ()
    pure: ClassVar[bool] = True
    costly: ClassVar[bool] = False
    """True for an op with much work for its data; constant folding leaves it alone by default."""
    registry: ClassVar[dict[str, type[Op]]] = {}

    def __init_subclass__(cls, abstract: bool = False) -> None:
        # Defined here so that the dataclass decorator leaves them alone: its own equality
        # conflates 0.0 with -0.0 and 1 with True.
        cls.__eq__ = _op_eq  # type: ignore[method-assign, assignment]
        cls.__hash__ = _op_hash  # type: ignore[method-assign, assignment]
        if abstract:
            return
        cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        known = Op.registry.get(cls.name)
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise TypeError(f"two ops are called {cls.name}: {known} and {cls}")
        Op.registry[cls.name] = cls

    def infer(self, *args: Any, **kwargs: Any) -> Type:
        raise NotImplementedError

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def scalar(self, *args: Any, **kwargs: Any) -> Any:
        """Compute one element of the result from one of each operand (see `ops.scalar`)."""
        raise NotImplementedError

    def canonical(self, *types: Type) -> Op:
        """Return the canonical form of this op for these inputs; the op itself by default."""
        return self

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        """The type when some attributes are known only at run time (see `Deferred`)."""
        raise InferError(f"{cls.name} needs its attributes before run time", op=cls.name)

    @classmethod
    def holds(cls, static: dict[str, Any]) -> object:
        """Return an object that must live as long as the op, such as an RNG state; or None."""
        return None

    @property
    def attributes(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    @property
    def digest(self) -> bytes:
        known: bytes | None = self.__dict__.get("_digest")
        if known is None:
            parts = [self.name.encode(), b"\0"]
            for key, value in self.attributes.items():
                parts += [key.encode(), b"=", encode(value)]
            known = digest_of(*parts)
            object.__setattr__(self, "_digest", known)
        return known

    def __call__(self, *inputs: Value) -> Value:
        """Apply this op to values; applied to patterns (see `rewrite`) it gives a pattern."""
        operands: tuple[Any, ...] = inputs
        for v in operands:
            if hasattr(v, "applied"):
                return cast(Value, v.applied(self, inputs))
        op = _ask(self, self.canonical, inputs)
        key = digest_of(op.digest, *[v.digest for v in inputs])
        known = _interned.get(key)
        return known if known is not None else _build(op, inputs, key)

    def __str__(self) -> str:
        listed = ", ".join(f"{k}={v}" for k, v in self.attributes.items())
        return f"{self.name}({listed})"


def _op_eq(self: Op, other: object) -> bool:
    return isinstance(other, Op) and self.digest == other.digest


def _op_hash(self: Op) -> int:
    return hash(self.digest)


@dataclass(frozen=True, eq=False, repr=False, slots=True, weakref_slot=True)
class Value:
    """An op, its inputs and the type of its result. Immutable, and one object per expression."""

    op: Op
    inputs: tuple[Value, ...]
    type: Type
    digest: bytes
    closed: bool
    """True if the value depends on no input and no random op: it is a constant."""

    @property
    def tensor(self) -> TensorType:
        """The type of a value that must be a tensor."""
        if not isinstance(self.type, TensorType):
            raise InferError("the value must be a tensor", op=self.op.name, given=self.type)
        return self.type

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    def __repr__(self) -> str:
        return f"<{self.op.name}: {self.type}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Value cannot be pickled; use the text form of its graph")

    def __deepcopy__(self, memo: Any) -> Value:
        return self


_interned: weakref.WeakValueDictionary[bytes, Value] = weakref.WeakValueDictionary()
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    # The parent's thread that holds the lock does not exist in a forked child.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def _ask(op: Op, rule: Callable[..., T], inputs: tuple[Value, ...]) -> T:
    """Apply a rule of the op to the types of the inputs; errors name the op and these types."""
    types = [v.type for v in inputs]
    fewest, most = _arity(type(op))
    if not fewest <= len(types) <= most:
        raise InferError(
            "the number of inputs is wrong",
            op=f"{op.name}({', '.join(map(str, types))})",
            expected=fewest if fewest == most else f"{fewest} to {most}",
            given=len(types),
        )
    try:
        return rule(*types)
    except MonographError as e:
        raise e.at(op=f"{op.name}({', '.join(map(str, types))})") from None
    except (TypeError, AttributeError):
        # Type rules of tensor ops need no check for sequences.
        if all(isinstance(t, TensorType) for t in types):
            raise
        listed = ", ".join(map(str, types))
        raise InferError("the inputs must be tensors", op=op.name, given=listed) from None


_arities: dict[type[Op], tuple[int, float]] = {}


def _arity(cls: type[Op]) -> tuple[int, float]:
    """Return the least and greatest number of inputs of an op, from its type rule's parameters."""
    if cls not in _arities:
        parameters = [*signature(cls.infer).parameters.values()][1:]
        fewest = sum(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters)
        any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        _arities[cls] = (fewest, math.inf if any_number else len(parameters))
    return _arities[cls]


def _build(op: Op, inputs: tuple[Value, ...], key: bytes) -> Value:
    inferred = _ask(op, op.infer, inputs)
    result = name_unknowns(inferred, f"~{key[:5].hex()}_")
    _check_size(op, result)
    closed = op.pure and all(v.closed for v in inputs) and not _is_open(op, result)
    with _lock:
        return _interned.setdefault(key, Value(op, tuple(inputs), result, key, closed))


def _is_open(op: Op, result: Type) -> bool:
    """Return True for a value that depends on sizes that are known only at run time."""
    if isinstance(result, TensorType) and any_open(result.shape or ()):
        return True
    return any(
        is_open(a) or (isinstance(a, tuple) and any_open(a)) or getattr(a, "is_open", False)
        for a in op.attributes.values()
    )


def _check_size(op: Op, result: Type) -> None:
    if isinstance(result, TupleType):
        for item in result.items:
            _check_size(op, item)
        return
    if isinstance(result, (SequenceType, OptionalType)):
        _check_size(op, result.element)
        return
    if isinstance(result, MapType) or result.shape is None:
        return
    if len(result.shape) > MAX_RANK:
        raise InferError(
            "a tensor has too many dimensions",
            op=op.name,
            expected=f"at most {MAX_RANK}",
            given=len(result.shape),
        )
    sizes = [d for d in result.shape if isinstance(d, int)]
    if any(d < 0 for d in sizes):
        raise InferError("a dimension is negative", op=op.name, given=result)
    # A size of 0 counts as 1: numpy refuses such shapes too, and a symbol may be any size.
    nbytes = count_elements(sizes) * result.dtype.itemsize
    if nbytes > MAX_TENSOR_BYTES:
        raise InferError(
            "a tensor is too large",
            op=op.name,
            expected=f"at most {MAX_TENSOR_BYTES:,} bytes",
            given=f"{result} = {nbytes:,} bytes",
        )


@dataclass(frozen=True)
class Sample:
    """A small program: one op with attributes, applied to inputs.

    An input is a type as text, with a range for its elements where one matters ("i64[5] in 0..3"),
    or the data itself as nested lists, a scalar or an array.
    """

    inputs: tuple[Any, ...]
    attributes: dict[str, Any]


def sample(*inputs: Any, **attributes: Any) -> Sample:
    return Sample(inputs, attributes)


@dataclass(frozen=True)
class Input(Op):
    """A value that the caller of a graph supplies."""

    label: str
    of: Type

    pure = False

    def infer(self) -> Type:
        return self.of

    def reference(self) -> Array:
        raise ExecutionError(f"input {self.label!r} has no value")


@dataclass(frozen=True)
class Constant(Op):
    """Data that is part of the model."""

    value: Literal

    samples = (sample(value=Literal([[1.5, -0.0], [float("nan"), 2.0]])),)

    def infer(self) -> Type:
        return self.value.type

    def reference(self) -> Array:
        return self.value.array


@dataclass(frozen=True)
class Item(Op):
    """One result of a value that has several."""

    index: int

    narrowing = Narrowing.KEPT
    kept_reason = "it is a result of an op that stays in f32"
    keeps_small = True

    def infer(self, x: Type) -> Type:
        if not isinstance(x, TupleType):
            raise InferError("the operand must have several results", given=x)
        if not 0 <= self.index < len(x.items):
            raise InferError(
                "the value has no result of that index",
                expected=f"0..{len(x.items) - 1}",
                given=self.index,
            )
        return x.items[self.index]

    def reference(self, x: tuple[Any, ...]) -> Any:
        return x[self.index]

    def integer_range(self, value: Value, of: RangeOf, item: int = 0) -> IntRange | None:
        (made,) = value.inputs
        return made.op.integer_range(made, of, self.index)


STRUCTURE = (Input, Constant, Item)
"""Ops that hold a graph together and compute nothing."""


def constant(data: Any, dtype: DType | None = None) -> Value:
    """A constant from an array, a scalar, nested lists or a literal."""
    if isinstance(data, Literal):
        return Constant(data)()
    if dtype is None:
        return Constant(Literal(data))()
    if dtype == i64 and holds_open(np.asarray(data)):
        return Constant(Literal(data))()
    return Constant(Literal(np.asarray(data).astype(dtype.numpy)))()


def known(value: Value | None) -> Array | None:
    """The data of a constant; None for any other value."""
    if value is not None and isinstance(value.op, Constant):
        return value.op.value.array
    return None


def is_finite(value: Value) -> bool:
    """Return True if the value is a constant without infinities and NaNs."""
    data = known(value)
    return data is not None and bool(np.isfinite(data.astype(np.float64)).all())


def unpack(value: Value) -> tuple[Value, ...]:
    """Every result of a value that has several."""
    if not isinstance(value.type, TupleType):
        raise InferError("the value must have several results", given=value.type)
    return tuple(Item(i)(value) for i in range(len(value.type.items)))
