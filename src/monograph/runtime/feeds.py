"""Checks what a caller feeds against what a model takes, before anything runs.

DLPack describes the memory of feeds that other libraries hold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from monograph.errors import FeedError, MonographError, did_you_mean
from monograph.ir import (
    DType,
    MapType,
    OptionalType,
    SequenceType,
    Shape,
    TensorType,
    Type,
    from_numpy,
)
from monograph.ir.dtype import COMPLEX, FLOAT, INT, STRING, UINT

DECISIVE_ELEMENTS = 64
"""Integer inputs up to this size may decide ranks: they look like shapes, axes or sizes."""
_log = logging.getLogger("monograph")


@dataclass(frozen=True)
class Port:
    """An input or output of a model: its name and type.

    The type of an output is None where the model neither declares it nor lets it be inferred before
    the inputs are known.
    """

    name: str
    type: Type | None

    @property
    def accepted(self) -> Type:
        """The type of what is fed to an input, which every model declares."""
        assert self.type is not None
        return self.type

    @property
    def dtype(self) -> DType | None:
        """The element type; None for a sequence or an optional."""
        return self.type.dtype if isinstance(self.type, TensorType) else None

    @property
    def shape(self) -> Shape | None:
        """Sizes and symbols; None where the rank is not known."""
        return self.type.shape if isinstance(self.type, TensorType) else None

    def sized(self, dims: Mapping[str, int]) -> Port:
        """The same with sizes for some of its symbols."""
        if not isinstance(self.type, TensorType) or self.type.shape is None:
            return self
        return Port(self.name, self.type.with_shape(dims.get(str(d), d) for d in self.type.shape))

    def __str__(self) -> str:
        return f"{self.name}: {self.type or 'not known before it is run'}"


@dataclass(frozen=True)
class Metadata:
    """The texts that a model file says about itself."""

    properties: dict[str, str] = field(default_factory=dict)
    """The `metadata_props` of the file: names and labels of classes, versions, licences."""
    producer: str = ""
    domain: str = ""
    version: int | None = None
    description: str = ""
    graph_name: str = ""
    graph_description: str = ""


@dataclass(frozen=True)
class ModelSignature:
    """The inputs, the outputs and the metadata of a model."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    optional: tuple[Port, ...] = ()
    """Inputs that the model has a value for: fed, they take the place of that value."""
    metadata: Metadata = field(default_factory=Metadata)

    def sized(self, dims: Mapping[str, int]) -> ModelSignature:
        """The same with sizes for some of its symbols."""
        ports = (self.inputs, self.outputs, self.optional)
        inputs, outputs, optional = (tuple(p.sized(dims) for p in group) for group in ports)
        return replace(self, inputs=inputs, outputs=outputs, optional=optional)


def check_feeds(
    ports: Sequence[Port], feeds: Mapping[str, Any], optional: Sequence[Port] = ()
) -> dict[str, Any]:
    """The feeds as arrays, or one FeedError that shows everything that does not fit.

    Text may have a fixed width (`text_as_objects`).

    There is one for each port; for an optional one there may be. Sizes that differ where the model
    has one name for them are no problem in themselves: ONNX Runtime takes them too, and files use
    names carelessly. They are logged.
    """
    problems: list[str] = []
    names = {p.name for p in (*ports, *optional)}
    problems += [f"{p.name}: missing (expected {p.type})" for p in ports if p.name not in feeds]
    problems += [_unknown(name, names) for name in feeds if name not in names]
    bound: dict[str, tuple[int, str]] = {}
    result: dict[str, Any] = {}
    for port in (*ports, *optional):
        if port.name in feeds:
            result[port.name] = _check(port.name, port.accepted, feeds[port.name], bound, problems)
    if problems:
        listed = "\n".join(f"    {p}" for p in problems)
        raise FeedError(
            f"the feeds do not fit the model:\n{listed}", expected=", ".join(map(str, ports))
        )
    return result


def text_as_objects(
    feeds: dict[str, Any], keep: Callable[[str], bool] = lambda _: False
) -> dict[str, Any]:
    """Return the feeds; text of fixed width as objects, except where `keep` holds for a name."""
    fixed = [
        name
        for name, x in feeds.items()
        if isinstance(x, np.ndarray) and x.dtype.kind == "U" and not keep(name)
    ]
    return feeds | {name: feeds[name].astype(object) for name in fixed} if fixed else feeds


def clashing_sizes(ports: Sequence[Port], shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the dimension names that have several sizes."""
    bound: dict[str, tuple[int, str]] = {}
    found: list[str] = []
    for port in ports:
        for axis, (dim, size) in enumerate(
            zip(port.shape or (), shapes.get(port.name, ()), strict=False)
        ):
            if isinstance(dim, str):
                first, where = bound.setdefault(dim, (size, f"{port.name} dimension {axis}"))
                if first != size:
                    found.append(_clash(port.name, axis, size, dim, first, where))
    return found


def _clash(name: str, axis: int, size: int, dim: str, first: int, where: str) -> str:
    return f"{name}: dimension {axis} is {size}, but {dim!r} is {first} in {where}"


@lru_cache(maxsize=1024)
def _warn_of_clash(name: str, axis: int, dim: str, where: str) -> None:
    """Logs once that two sizes differ; a cache so that runs in a loop do not repeat it."""
    _log.warning(
        "the model has one name for sizes that differ, and runs as in ONNX Runtime:"
        " %s dimension %d is not %r of %s",
        name,
        axis,
        dim,
        where,
    )


def _unknown(name: Any, names: Collection[str]) -> str:
    hint = did_you_mean([name], names) if isinstance(name, str) else None
    return f"{name}: the model has no such input" + (f" ({hint})" if hint else "")


def _check(
    name: str, type_: Type, data: Any, bound: dict[str, tuple[int, str]], problems: list[str]
) -> Any:
    if isinstance(type_, OptionalType):
        return None if data is None else _check(name, type_.element, data, bound, problems)
    if isinstance(type_, SequenceType):
        if not isinstance(data, (list, tuple)):
            problems.append(f"{name}: expected a list, given {type(data).__name__}")
            return None
        # Elements of a sequence may differ in size, so each binds symbols of its own.
        made = {f"{name}[{i}]": x for i, x in enumerate(data)}
        made = {n: _check(n, type_.element, x, {}, problems) for n, x in made.items()}
        return [*text_as_objects(made).values()]
    if isinstance(type_, MapType):
        return _check_map(name, type_, data, problems)
    assert isinstance(type_, TensorType)
    return _check_tensor(name, type_, data, bound, problems)


def _check_map(name: str, type_: MapType, data: Any, problems: list[str]) -> Any:
    whole: tuple[type, ...] = (int, np.integer)
    kinds: dict[str, tuple[type, ...]] = {STRING: (str,), FLOAT: (*whole, float, np.floating)}
    key, value = (kinds.get(t.kind, whole) for t in (type_.key, type_.value))
    fits = isinstance(data, Mapping) and all(
        isinstance(k, key) and isinstance(v, value) for k, v in data.items()
    )
    if not fits:
        given = type(data).__name__
        problems.append(f"{name}: expected a dict of {type_.key} to {type_.value}, given {given}")
        return None
    return dict(data)


def _check_tensor(
    name: str, type_: TensorType, data: Any, bound: dict[str, tuple[int, str]], problems: list[str]
) -> Any:
    try:
        array = _of_numbers(data, type_.dtype)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        given = from_numpy(array.dtype)
    except (ValueError, MonographError):
        problems.append(f"{name}: expected {type_}, given {_described(data)}")
        return None
    if given.is_string and array.dtype.kind != "U":
        array = array.astype(object)
        kinds = set(map(type, array.reshape(-1).tolist()))
        if not all(issubclass(kind, (str, bytes)) for kind in kinds):
            problems.append(f"{name}: expected {type_}, given {_described(data)}")
            return None
    if given != type_.dtype:
        advice = _cast(data, given, type_.dtype)
        problems.append(f"{name}: expected {type_}, given {given}{[*array.shape]}{advice}")
        return None
    if type_.shape is None:
        return array
    if len(type_.shape) != array.ndim:
        problems.append(
            f"{name}: expected {type_} (rank {type_.rank}), given rank {array.ndim}:"
            f" {[*array.shape]}"
        )
        return None
    for axis, (want, have) in enumerate(zip(type_.shape, array.shape, strict=True)):
        if isinstance(want, int):
            if want != have:
                problems.append(
                    f"{name}: expected {type_}, given {given}{[*array.shape]}"
                    f" (dimension {axis} is {have}, not {want})"
                )
            continue
        size, where = bound.setdefault(want, (have, f"{name} dimension {axis}"))
        if size != have:
            _warn_of_clash(name, axis, want, where)
    return array


def _of_numbers(data: Any, wanted: DType) -> Any:
    """Return an array; Python's numbers, alone or in lists, as the input's type if they fit.

    Floats are rounded. Integers must come out exactly, and truth values are no numbers.
    """
    array = np.asarray(data)
    python = isinstance(data, (list, tuple, int, float, complex))
    if not python or isinstance(data, np.generic) or wanted.is_string:
        return array
    kinds = {FLOAT: "iuf", COMPLEX: "iufc", INT: "iu", UINT: "iu"}.get(wanted.kind, "")
    if array.size and array.dtype.kind not in kinds:
        return array
    with np.errstate(over="ignore"):
        made = array.astype(wanted.numpy)
    if array.dtype.kind in "iu" and not _is_exact(array, made, wanted):
        return array
    return made


def _is_exact(given: Any, made: Any, wanted: DType) -> bool:
    """Return True if integers are the same numbers in another type."""
    if wanted.is_integer:
        # numpy keeps the types of fewer than eight bits in whole bytes.
        low = -(1 << (wanted.bits - 1)) if wanted.kind == INT else 0
        high = (1 << (wanted.bits - (wanted.kind == INT))) - 1
        return all(low <= int(x) <= high for x in (given.min(initial=0), given.max(initial=0)))
    if wanted.kind == COMPLEX:
        made = made.real
    back = made.astype(np.float64)
    return bool(np.isfinite(back).all()) and all(
        int(b) == int(g) for b, g in zip(back.flat, given.flat, strict=True)
    )


def _described(data: Any) -> str:
    """Describe what was given in place of an array of numbers or strings."""
    if data is None:
        return "None"
    if isinstance(data, np.ndarray):
        return f"an array of {data.dtype}"
    if isinstance(data, (list, tuple)):
        return f"a {type(data).__name__} that is no array: of mixed kinds, or of uneven lengths"
    return type(data).__name__


def _cast(data: Any, given: DType, wanted: DType) -> str:
    """Return a hint on how to convert numbers to the expected dtype."""
    if given.is_string or wanted.is_string:
        return ""
    module = "np" if wanted.numpy.kind in "biufc" else "ml_dtypes"
    name = f"{module}.{wanted.numpy.name}"
    if isinstance(data, (np.ndarray, np.generic)):
        return f" (cast it with .astype({name}))"
    if given.is_integer:
        return f" (integers must be exact in {wanted})"
    return f" (make it with np.array(..., {name}))"


_HOST = (1, 3)
"""DLPack's numbers for memory that the host can read: its own, and pinned memory."""


class _Capsule:
    """A bare capsule, as numpy wants to be handed it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def is_foreign(data: Any) -> bool:
    """Return True if another library holds the data and describes them by DLPack."""
    if isinstance(data, (np.ndarray, np.generic)):
        return False
    return hasattr(data, "__dlpack__") or type(data).__name__ == "PyCapsule"


def arrays_of(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the feeds with arrays in place of what other libraries hold on the host."""
    if not any(map(is_foreign, feeds.values())):
        return feeds
    return {n: _array(n, x) if is_foreign(x) else x for n, x in feeds.items()}


def _array(name: str, data: Any) -> Any:
    if type(data).__name__ == "PyCapsule":
        return np.from_dlpack(_Capsule(data))
    kind, number = data.__dlpack_device__()
    if int(kind) not in _HOST:
        raise FeedError(
            f"{name}: its memory is not the host's",
            given=f"{type(data).__name__} on device {int(kind)}:{number} of DLPack",
            hint='copy it to the host, or load the model with target="gpu"',
        )
    if hasattr(data, "__array__"):  # it knows best: DLPack has not every type
        return data
    return np.from_dlpack(data)
