"""Inputs of a run: given arrays, and random ones from a seed for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from monograph.errors import ConfigError, FeedError, MonographError, did_you_mean
from monograph.ir import Array, DType, OptionalType, SequenceType, TensorType, Type
from monograph.ir.dtype import BOOL, COMPLEX
from monograph.ir.memory import check_result
from monograph.ir.traits import LENGTH, MASK
from monograph.runtime.assumed_sizes import Takes, assume_sizes, stand_ins, symbols_of
from monograph.runtime.feeds import Port

if TYPE_CHECKING:
    from monograph.runtime.input_ranges import Range

DEFAULT_SIZE = 1
NORMAL = "normal"
"""The default distribution of floats."""
SHOWN = 0.85
"""The share of a drawn mask that is 1."""


Analyse: TypeAlias = Callable[[Mapping[str, Any]], "Mapping[str, Range]"]
"""Derives the ranges of integer inputs from feeds of the right shapes; values do not matter."""


@dataclass(frozen=True)
class Chosen:
    """Numbers that the user chose for inputs that no array is given for."""

    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The lowest and the highest number to draw, by input."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The number that every element has, by input."""


@dataclass
class Inputs:
    """Feeds, and the assumptions behind them."""

    feeds: dict[str, Any] = field(default_factory=dict)
    random: list[str] = field(default_factory=list)
    """Names of the inputs that were made at random."""
    assumed: dict[str, int] = field(default_factory=dict)
    """Sizes that were chosen for dimensions that nothing fixes."""
    drawn: dict[str, str] = field(default_factory=dict)
    """The numbers that were drawn for each of the inputs that were not given, in words."""

    def described(self, name: str) -> str:
        """Return the name of a drawn input, with its range where that is not the default."""
        words = self.drawn.get(name, NORMAL)
        return name if words == NORMAL else f"{name} ({words})"


def make_inputs(
    ports: Sequence[Port],
    given: Mapping[str, Any],
    seed: int,
    size: int = DEFAULT_SIZE,
    possible: Iterable[Mapping[str, int]] = (),
    analyse: Analyse | None = None,
    chosen: Chosen | None = None,
    takes: Takes | None = None,
) -> Inputs:
    """Return the given arrays, and random ones for the other inputs.

    Floats are normal with variance 1. Integers have the range that `analyse` derives from their
    use, or 0 and 1 where that says nothing; the user's `chosen` ones come first. Symbols take
    their size from the given arrays, else from the first of the `possible` sets of sizes that fits
    those, else `size`, or others that the model `takes`.
    """
    chosen = chosen or Chosen()
    _check_names(ports, given, chosen)
    result = Inputs()
    sizes = _sizes(ports, given)
    fitting = (p for p in possible if all(p.get(dim, n) == n for dim, n in sizes.items()))
    usual = next(fitting, {})
    result.feeds = {p.name: as_dtype(given[p.name], p.accepted) for p in ports if p.name in given}
    found = assume_sizes(ports, result.feeds, {**usual, **sizes}, size, takes)
    drawn = [p for p in ports if p.name not in given]
    for dim in (d for port in drawn for d in symbols_of(port.accepted)):
        if dim not in sizes:
            sizes[dim] = result.assumed[dim] = usual.get(dim, found.get(dim, size))
    ranges = _derived(drawn, result.feeds, sizes, analyse)
    rng = np.random.default_rng(seed)
    for port in drawn:
        how = _how(port, ranges.get(port.name), chosen)
        result.feeds[port.name] = _random(rng, port.name, port.accepted, sizes, how)
        if port.name not in chosen.values:
            result.random.append(port.name)
        result.drawn[port.name] = how.words
    result.feeds = {p.name: result.feeds[p.name] for p in ports}
    return result


def _check_names(ports: Sequence[Port], given: Mapping[str, Any], chosen: Chosen) -> None:
    names = {p.name: None for p in ports}
    if unknown := [n for n in (*given, *chosen.ranges, *chosen.values) if n not in names]:
        raise FeedError(
            "the model has no such input",
            expected=list(names),
            given=unknown,
            hint=did_you_mean(unknown, names),
        )
    sources = (given, chosen.ranges, chosen.values)
    if twice := [n for n in names if sum(n in s for s in sources) > 1]:
        raise ConfigError(
            "an input is given in more than one way",
            given=", ".join(twice),
            hint="name it once: in an array, with --input-range or with --value",
        )


def _derived(
    drawn: Sequence[Port],
    feeds: Mapping[str, Any],
    sizes: Mapping[str, int],
    analyse: Analyse | None,
) -> Mapping[str, Range]:
    """The ranges of integers that are drawn, from their use; none where that cannot be told."""
    if analyse is None or not any(p.dtype is not None and _is_whole(p.dtype) for p in drawn):
        return {}
    given = stand_ins(drawn, feeds, sizes)
    if given is None:
        return {}
    try:
        return analyse(given)
    except MonographError:
        return {}  # the run itself reports what is wrong


def _is_whole(dtype: DType) -> bool:
    return dtype.is_integer or dtype.kind == BOOL


@dataclass(frozen=True)
class _How:
    """The distribution of one input."""

    words: str
    draw: Callable[[np.random.Generator, tuple[int, ...]], Array] | None = None
    """None for what its type alone decides."""


def _how(port: Port, derived: Range | None, chosen: Chosen) -> _How:
    name = port.name
    if name in chosen.values:
        number = _fitting("--value", port, chosen.values[name])
        return _How(f"all {number:g}", lambda _, shape: np.full(shape, number))
    if name in chosen.ranges:
        low, high = (_fitting("--input-range", port, x) for x in chosen.ranges[name])
        if low > high:
            raise ConfigError(
                f"--input-range {name} is empty", expected="LOW <= HIGH", given=f"{low:g}:{high:g}"
            )
        words = f"{low:g}..{high:g}, as asked"
        if port.dtype is not None and _is_whole(port.dtype):
            return _How(words, lambda rng, shape: _whole(rng, int(low), int(high), shape))
        return _How(words, lambda rng, shape: np.asarray(rng.uniform(low, high, shape)))
    if derived is not None:
        return _How(str(derived), lambda rng, shape: _in_range(rng, derived, shape))
    return _How(_default_words(port.accepted))


def _default_words(type_: Type) -> str:
    dtype = type_.dtype if isinstance(type_, TensorType) else None
    if dtype is None:
        return "by its type"
    if dtype.is_float or dtype.kind == COMPLEX:
        return NORMAL
    return "short texts" if dtype.is_string else "0..1"


def _fitting(option: str, port: Port, number: float) -> float:
    """Return a number that an input can hold, or an error that says what it can."""
    dtype = port.dtype
    if dtype is None or dtype.is_string or dtype.kind == COMPLEX:
        raise ConfigError(f"{option} is for tensors of numbers", given=str(port))
    if dtype.is_float:
        return number
    low, high = (0, 1) if dtype.kind == BOOL else _limits(dtype)
    if not float(number).is_integer() or not low <= number <= high:
        raise ConfigError(
            f"{option}: {port.name} holds whole numbers ({dtype})",
            expected=f"{low}..{high}",
            given=f"{number:g}",
        )
    return number


def _limits(dtype: DType) -> tuple[int, int]:
    if dtype.is_signed:
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def _in_range(rng: np.random.Generator, found: Range, shape: tuple[int, ...]) -> Array:
    """Numbers of a derived range: most of a mask is 1, and the first length is the longest."""
    if found.kind == MASK:
        if not shape:
            return np.asarray(rng.integers(0, 2, shape))
        data = np.asarray(rng.random(shape) < SHOWN, np.int64)
        data[..., :1] = 1  # nothing is hidden altogether
        return data
    data = _whole(rng, found.low, found.high, shape)
    if found.kind == LENGTH and data.size:
        data.reshape(-1)[0] = found.high
    return data


def _whole(rng: np.random.Generator, low: int, high: int, shape: tuple[int, ...]) -> Array:
    if high > np.iinfo(np.int64).max:
        return np.asarray(rng.integers(low, high, shape, np.uint64, endpoint=True))
    return np.asarray(rng.integers(low, high, shape, np.int64, endpoint=True))


def as_dtype(given: Any, type_: Type | None) -> Any:
    """Return an array as its element type: .npy files know bf16 and the like only as raw bytes."""
    if not isinstance(type_, TensorType) or not isinstance(given, np.ndarray):
        return given
    raw = given.dtype.kind == "V" and given.dtype.names is None
    if raw and given.dtype.itemsize == type_.dtype.itemsize:
        return given.view(type_.dtype.numpy)
    return given


def _sizes(ports: Sequence[Port], given: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes that given arrays bind symbols to."""
    sizes: dict[str, int] = {}
    for port in ports:
        shape = getattr(given.get(port.name), "shape", None)
        if shape is None or port.shape is None or len(shape) != len(port.shape):
            continue
        for dim, size in zip(port.shape, shape, strict=True):
            if isinstance(dim, str):
                sizes.setdefault(dim, int(size))
    return sizes


def _random(
    rng: np.random.Generator, name: str, type_: Type, sizes: Mapping[str, int], how: _How
) -> Any:
    if isinstance(type_, OptionalType):
        return _random(rng, name, type_.element, sizes, how)
    if isinstance(type_, SequenceType):
        return [_random(rng, name, type_.element, sizes, how) for _ in range(2)]
    if not isinstance(type_, TensorType):
        raise FeedError(f"no random value for {name!r}: it is no tensor", given=type_)
    if type_.shape is None:
        raise FeedError(
            f"no random value for {name!r}: its rank is not known",
            given=type_,
            hint=f"give it: --input {name}=FILE.npy",
        )
    shape = tuple(d if isinstance(d, int) else sizes[d] for d in type_.shape)
    check_result(shape, np.dtype(np.float64).itemsize)
    try:
        if how.draw is not None:
            return how.draw(rng, shape).astype(type_.dtype.numpy)
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
