"""Inputs for a run, made at random from a seed where none are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monograph.errors import FeedError, did_you_mean
from monograph.ir import Array, DType, OptionalType, SequenceType, TensorType, Type
from monograph.ops.base import check_allocation
from monograph.runtime.feeds import Port

DEFAULT_SIZE = 1


@dataclass
class Inputs:
    """Feeds, and what was assumed to make them."""

    feeds: dict[str, Any] = field(default_factory=dict)
    random: list[str] = field(default_factory=list)
    """Names of the inputs that were made at random."""
    assumed: dict[str, int] = field(default_factory=dict)
    """Sizes that were chosen for dimensions that nothing fixes."""


def make_inputs(
    ports: Sequence[Port],
    given: Mapping[str, Any],
    seed: int,
    size: int = DEFAULT_SIZE,
    possible: Iterable[Mapping[str, int]] = (),
) -> Inputs:
    """Given arrays where there are some, random ones elsewhere.

    Floats are normal with variance 1; integers are 0 or 1, which are valid as ids, masks and
    flags in nearly every model. Symbols take their size from the given arrays, else from the first
    of the `possible` sets of sizes that fits those, else `size`.
    """
    names = {p.name: None for p in ports}
    if unknown := [n for n in given if n not in names]:
        raise FeedError(
            "the model has no such input",
            expected=list(names),
            given=unknown,
            hint=did_you_mean(unknown, names),
        )
    result = Inputs()
    sizes = _sizes(ports, given)
    fitting = (p for p in possible if all(p.get(dim, n) == n for dim, n in sizes.items()))
    usual = next(fitting, {})
    rng = np.random.default_rng(seed)
    for port in ports:
        if port.name in given:
            result.feeds[port.name] = as_dtype(given[port.name], port.accepted)
            continue
        for dim in _symbols(port.accepted):
            if dim not in sizes:
                sizes[dim] = result.assumed[dim] = usual.get(dim, size)
        result.feeds[port.name] = _random(rng, port.name, port.accepted, sizes)
        result.random.append(port.name)
    return result


def as_dtype(given: Any, type_: Type | None) -> Any:
    """An array as its element type: .npy files know bf16 and the like only as raw bytes."""
    if not isinstance(type_, TensorType) or not isinstance(given, np.ndarray):
        return given
    raw = given.dtype.kind == "V" and given.dtype.names is None
    if raw and given.dtype.itemsize == type_.dtype.itemsize:
        return given.view(type_.dtype.numpy)
    return given


def _sizes(ports: Sequence[Port], given: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that given arrays bind symbols to."""
    sizes: dict[str, int] = {}
    for port in ports:
        shape = getattr(given.get(port.name), "shape", None)
        if shape is None or port.shape is None or len(shape) != len(port.shape):
            continue
        for dim, size in zip(port.shape, shape, strict=True):
            if isinstance(dim, str):
                sizes.setdefault(dim, int(size))
    return sizes


def _symbols(type_: Type) -> list[str]:
    """The symbols among the dimensions of what `_random` makes."""
    while isinstance(type_, (OptionalType, SequenceType)):
        type_ = type_.element
    shape = type_.shape if isinstance(type_, TensorType) else None
    return [d for d in shape or () if isinstance(d, str)]


def _random(rng: np.random.Generator, name: str, type_: Type, sizes: Mapping[str, int]) -> Any:
    if isinstance(type_, OptionalType):
        return _random(rng, name, type_.element, sizes)
    if isinstance(type_, SequenceType):
        return [_random(rng, name, type_.element, sizes) for _ in range(2)]
    if not isinstance(type_, TensorType):
        raise FeedError(f"no random value for {name!r}: it is no tensor", given=type_)
    if type_.shape is None:
        raise FeedError(
            f"no random value for {name!r}: its rank is not known",
            given=type_,
            hint=f"give it: --input {name}=FILE.npy",
        )
    shape = tuple(d if isinstance(d, int) else sizes[d] for d in type_.shape)
    check_allocation(shape, np.float64)
    try:
        return _draw(rng, type_.dtype, shape)
    except MemoryError:
        raise FeedError(f"no memory for a random {name!r}", given=type_) from None


def _draw(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype.is_string:
        return np.array(rng.choice(["a", "b", "ab", ""], shape), dtype=object)
    if dtype.kind == "complex":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype.numpy)
    if dtype.is_float:
        return np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)
    return np.asarray(rng.integers(0, 2, shape)).astype(dtype.numpy)
