"""Types of values: tensors with int or symbolic dimensions, tuples, sequences, optionals, maps.

The data of constants (`Literal`) live here too, with a digest that is computed once.

A dimension is an int or a symbol (a str). Symbols that a model names keep their name; a dimension
that an op derives and cannot know is a fresh symbol that starts with "~". While inferring, an op
writes `UNKNOWN` for such a dimension and the value that is built names it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from monograph.errors import InferError, UnknownRankError
from monograph.ir.dtype import DType, from_numpy, i64
from monograph.ir.sizes import any_open, is_open

Dim: TypeAlias = int | str
Shape: TypeAlias = tuple[Dim, ...]

UNKNOWN = "?"
_PLAIN_SYMBOL = re.compile(r"[A-Za-z_~][A-Za-z0-9_.~]*\Z")


def format_dim(dim: Dim) -> str:
    if is_open(dim):
        return repr(dim)
    if isinstance(dim, int) or _PLAIN_SYMBOL.match(dim) or dim == UNKNOWN:
        return str(dim)
    return json.dumps(dim)


@dataclass(frozen=True)
class TensorType:
    """An element type and a shape; the shape is None where not even the rank is known."""

    dtype: DType
    shape: Shape | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[*]"
        return f"{self.dtype}[{', '.join(map(format_dim, self.shape))}]"

    @property
    def dims(self) -> Shape:
        """The shape of the tensor; raises UnknownRankError if its rank is not known."""
        if self.shape is None:
            raise UnknownRankError(
                "the rank of a tensor must be known",
                given=self,
                hint="declare the shapes of the model's inputs, or fix them with dims={...}",
            )
        return self.shape

    @property
    def rank(self) -> int:
        return len(self.dims)

    def dim(self, axis: int) -> Dim:
        """Return one dimension; raises InferError if the tensor has too few."""
        dims = self.dims
        if not -len(dims) <= axis < len(dims):
            least = axis + 1 if axis >= 0 else -axis
            raise InferError(
                "a tensor has too few dimensions", expected=f"at least {least}", given=self
            )
        return dims[axis]

    @property
    def is_static(self) -> bool:
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def static(self) -> tuple[int, ...]:
        """The shape of the tensor; raises InferError unless every dimension is known."""
        sizes = tuple(d for d in self.dims if isinstance(d, int))
        if len(sizes) != len(self.dims):
            raise InferError("every dimension must be known", given=self)
        return sizes

    @property
    def size(self) -> int:
        product = 1
        for d in self.static:
            product *= d
        return product

    @property
    def nbytes(self) -> int:
        """Bytes as numpy stores it (sub-byte elements take a byte each)."""
        return self.size * self.dtype.itemsize

    def with_shape(self, shape: Iterable[Dim] | None) -> TensorType:
        return TensorType(self.dtype, None if shape is None else tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)


@dataclass(frozen=True)
class TupleType:
    """The type of a value with several results; `Item(i)` takes one of them."""

    items: tuple[Type, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


@dataclass(frozen=True)
class SequenceType:
    """A list of any length whose elements share a type."""

    element: Type

    def __str__(self) -> str:
        return f"seq<{self.element}>"


@dataclass(frozen=True)
class OptionalType:
    """A value or nothing."""

    element: Type

    def __str__(self) -> str:
        return f"opt<{self.element}>"


@dataclass(frozen=True)
class MapType:
    """A dict from strings or integers to numbers or strings: the scores of classical models."""

    key: DType
    value: DType

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


Type: TypeAlias = TensorType | TupleType | SequenceType | OptionalType | MapType


def tensor(dtype: DType, *shape: Dim) -> TensorType:
    return TensorType(dtype, tuple(shape))


def name_unknowns(type_: Type, stem: str) -> Type:
    """The type with every `UNKNOWN` dimension replaced by a symbol that starts with `stem`."""
    if isinstance(type_, TensorType):
        if type_.shape is None or UNKNOWN not in type_.shape:
            return type_
        named = (f"{stem}{i}" if d == UNKNOWN else d for i, d in enumerate(type_.shape))
        return type_.with_shape(named)
    if isinstance(type_, TupleType):
        items = (name_unknowns(t, f"{stem}{chr(97 + i % 26)}") for i, t in enumerate(type_.items))
        return TupleType(tuple(items))
    if isinstance(type_, MapType):
        return type_
    return type(type_)(name_unknowns(type_.element, stem))


def _join_dims(a: Dim, b: Dim) -> Dim:
    # A plain 1 first: to compare it with an open size would record a guard.
    if type(b) is int and b == 1:
        return a
    if (type(a) is int and a == 1) or a == b:
        return b
    if b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise InferError("shapes do not broadcast", expected=f"{a}, or 1", given=b)
    # A symbol against a size other than 1 can only be that size, or be 1.
    if isinstance(a, int):
        return a
    return b if isinstance(b, int) else UNKNOWN


def broadcast(*shapes: Shape | None) -> Shape | None:
    """The shape that numpy broadcasting gives; None where a rank is not known."""
    result: Shape = ()
    for shape in shapes:
        if shape is None:
            return None
        rank = max(len(result), len(shape))
        a = (1,) * (rank - len(result)) + result
        b = (1,) * (rank - len(shape)) + shape
        try:
            result = tuple(map(_join_dims, a, b))
        except InferError:
            listed = " and ".join(str([*s]) for s in shapes if s is not None)
            raise InferError("shapes do not broadcast", given=listed) from None
    return result


def merge_dims(a: Dim, b: Dim) -> Dim:
    """Return the one dimension that two dimensions agree on; a size wins over a symbol."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise InferError("dimensions differ", expected=a, given=b)
    return b if isinstance(b, int) else a


def accepts(declared: Type, given: Type) -> bool:
    """Return True if a value of type `given` is valid for the type `declared`."""
    if isinstance(declared, TensorType) and isinstance(given, TensorType):
        if declared.dtype != given.dtype:
            return False
        if declared.shape is None or given.shape is None:
            return True
        return len(declared.shape) == len(given.shape) and all(
            a == b or isinstance(a, str) or isinstance(b, str)
            for a, b in zip(declared.shape, given.shape, strict=True)
        )
    if isinstance(declared, TupleType) and isinstance(given, TupleType):
        return len(declared.items) == len(given.items) and all(
            map(accepts, declared.items, given.items)
        )
    if isinstance(declared, SequenceType) and isinstance(given, SequenceType):
        return accepts(declared.element, given.element)
    if isinstance(declared, OptionalType) and isinstance(given, OptionalType):
        return accepts(declared.element, given.element)
    return isinstance(declared, MapType) and declared == given


def generalise(a: Type, b: Type) -> Type:
    """Return the most specific type that both fit: dimensions that differ become unknown."""
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype == b.dtype:
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return a.with_shape(None)
        return a.with_shape(x if x == y else UNKNOWN for x, y in zip(a.shape, b.shape, strict=True))
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(generalise(a.element, b.element))
    if isinstance(a, OptionalType) and isinstance(b, OptionalType):
        return OptionalType(generalise(a.element, b.element))
    if isinstance(a, MapType) and a == b:
        return a
    raise InferError("types do not agree", expected=a, given=b)


Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

DIGEST_BYTES = 16


def digest_of(*parts: bytes | memoryview) -> bytes:
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        state.update(part)
    return state.digest()


def holds_open(data: Array) -> bool:
    """Return True if elements of an array are open sizes, which numpy keeps as objects."""
    return data.dtype == object and any_open(data.flat)


class Literal:
    """An immutable array. Two literals are equal when dtype, shape and every bit are."""

    __slots__ = ("array", "digest", "dtype")

    array: Array
    dtype: DType
    digest: bytes

    def __init__(self, given: Any) -> None:
        array = np.asarray(given)
        if holds_open(array):
            self._hold_sizes(array)
            return
        dtype = from_numpy(array.dtype)
        if array.dtype != dtype.numpy:
            array = array.astype(dtype.numpy)
        if array.flags.writeable or not array.flags.c_contiguous:
            # `ascontiguousarray` would turn a scalar into a vector of one element.
            array = np.array(array, order="C", copy=True)
            array.flags.writeable = False
        self.array = array
        self.dtype = dtype
        self.digest = digest_of(str(self.type).encode(), b"\0", self.payload())

    def _hold_sizes(self, array: Array) -> None:
        """Take integers of which some are known only at run time; numpy keeps them as objects."""
        self.array = array.copy()
        self.array.flags.writeable = False
        self.dtype = i64
        texts = "\0".join(map(repr, array.flat))
        self.digest = digest_of(str(self.type).encode(), b"\0sizes\0", texts.encode())

    @property
    def is_open(self) -> bool:
        """True if some elements are known only at run time."""
        return self.dtype == i64 and self.array.dtype == object

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, tuple(self.array.shape))

    def payload(self) -> bytes | memoryview:
        """The bytes behind the elements: as numpy stores them, strings as JSON."""
        if self.dtype.is_string:
            texts = [
                s.decode("utf-8", "surrogateescape") if isinstance(s, bytes) else str(s)
                for s in self.array.reshape(-1)
            ]
            return json.dumps(texts).encode()
        if self.array.size == 0:
            return b""
        return self.array.reshape(-1).view(np.uint8).data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Literal({self.type})"
