"""Results in arrays that exist already: the caller's (`out=`), and state that is donated.

An array is written to only if the caller named it in `out`, or if the session itself made it as a
donated output and is now given it back. Any other array that is fed is left as it is, and where its
memory is needed a copy takes its place.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from monograph.errors import FeedError, MonographError, did_you_mean
from monograph.ir import Array
from monograph.ir.dtype import from_numpy
from monograph.runtime.feeds import Port

NOTHING: Mapping[str, Array] = {}


class DonatedArrays:
    """The live arrays that a session made as donated outputs."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Array]] = {}
        self.copies = 0
        """The number of times that new state was copied into the array of the old."""

    def add(self, array: Array) -> None:
        key = id(array)
        self._known[key] = weakref.ref(array, lambda _: self._known.pop(key, None))

    def returned(self, feeds: Mapping[str, Any], donate: Mapping[str, str]) -> dict[str, Array]:
        """By the outputs that will be written over them, those that are fed again.

        One that was made read-only since is the caller's to keep.
        """
        fed = ((output, feeds.get(input_)) for output, input_ in donate.items())
        return {
            output: array
            for output, array in fed
            if array is not None and self._made(array) and not _read_only(array)
        }

    def count(self, names: Iterable[str], made: list[Any], places: Mapping[str, Array]) -> None:
        """Counts new state that was made elsewhere than in its place: returned, or in `out`."""
        pairs = zip(names, made, strict=True)
        self.copies += sum(n in places and x is not places[n] for n, x in pairs)

    def _made(self, array: object) -> bool:
        found = self._known.get(id(array))
        return found is not None and found() is array


def _read_only(array: Any) -> bool:
    return isinstance(array, np.ndarray) and not array.flags.writeable


def output_names(outputs: Any) -> list[str]:
    """Names of outputs, given as a sequence: the letters of one name are none."""
    if isinstance(outputs, (str, bytes)) or not isinstance(outputs, Iterable):
        raise FeedError(
            "outputs are chosen by a sequence of names",
            expected=f"[{outputs!r}]" if isinstance(outputs, str) else "a list of names",
            given=repr(outputs),
        )
    found = list(outputs)
    if bad := [n for n in found if not isinstance(n, str)]:
        raise FeedError("outputs are chosen by a sequence of names", given=bad)
    return found


def check_mapping(out: Any) -> None:
    """Raise a FeedError unless `out` is a mapping."""
    if not isinstance(out, Mapping):
        raise FeedError(
            "out maps names of outputs to arrays", expected="a dict", given=type(out).__name__
        )


def check_out(
    ports: Sequence[Port],
    feeds: Mapping[str, Any],
    out: Any,
    donate: Mapping[str, str],
    returned: Mapping[str, Array] = NOTHING,
) -> dict[str, Array]:
    """The arrays to write outputs into, or one FeedError that shows everything wrong with them.

    Donated state that has been returned to the session is among them, unless `out` says otherwise.
    """
    check_mapping(out)
    known = {p.name: p for p in ports}
    if unknown := [name for name in out if name not in known]:
        raise FeedError(
            "out names outputs that the model does not have",
            expected=list(known),
            given=unknown,
            hint=did_you_mean(map(str, unknown), known),
        )
    problems = [p for name, array in out.items() for p in _unfit(known[name], array)]
    given = {**returned, **out}
    if not problems:
        problems = _overlaps(given, feeds, donate)
    if problems:
        raise FeedError("\n".join(["outputs cannot be written as asked:", *problems]))
    return given


def _unfit(port: Port, array: Any) -> list[str]:
    """Return the problems of an array as memory of an output."""
    if not isinstance(array, np.ndarray):
        return [f"  {port.name}: an array is needed, not {type(array).__name__}"]
    problems = []
    if port.type is not None and port.dtype is None:
        problems.append(f"its type is {port.type}, which no array holds")
    if port.dtype is not None and array.dtype != port.dtype.numpy:
        problems.append(f"expected {port.dtype}, given {_dtype_text(array.dtype)}")
    elif not array.dtype.isnative:
        problems.append("its bytes are in the order of another machine")
    wanted = port.shape
    if wanted is not None and not fits_shape(array.shape, wanted):
        problems.append(f"expected the shape {list(wanted)}, given {list(array.shape)}")
    if not array.flags.writeable:
        problems.append("it is read-only")
    if not array.flags.c_contiguous:
        problems.append("its elements do not lie one after the other (C order)")
    if not array.flags.aligned:
        problems.append("its elements are not aligned")
    return [f"  {port.name}: {text}" for text in problems]


def fits_shape(shape: tuple[int, ...], wanted: Sequence[int | str]) -> bool:
    """Return True if a shape has the wanted sizes; symbols stand for any size."""
    if len(shape) != len(wanted):
        return False
    return all(isinstance(w, str) or d == w for d, w in zip(shape, wanted, strict=True))


def _overlaps(
    out: Mapping[str, Array], feeds: Mapping[str, Any], donate: Mapping[str, str]
) -> list[str]:
    """Return the outputs that would overwrite inputs or each other."""
    arrays = {("output", name): array for name, array in out.items()}
    fed = {("input", n): x for n, x in feeds.items() if isinstance(x, np.ndarray)}
    arrays.update(fed if arrays else {})
    problems = []
    for (kind, name), other in _near(arrays):
        if kind == "input" or not np.shares_memory(arrays[kind, name], arrays[other]):
            continue
        other_kind, other_name = other
        donated = other_kind == "input" and donate.get(name) == other_name
        if donated and same_memory(arrays[kind, name], arrays[other]):
            continue
        hint = ""
        if other_kind == "input":
            allowed = f"load(..., donate={{{name!r}: {other_name!r}}})"
            hint = ", but only in part" if donated else f"; only {allowed} would allow it"
        problems.append(f"  {name}: lies in the memory of the {other_kind} {other_name!r}{hint}")
    return problems


_Name = tuple[str, str]


def _near(arrays: Mapping[_Name, Array]) -> list[tuple[_Name, _Name]]:
    """Pairs of arrays whose memory lies within each other's bounds, outputs first."""
    bounds = sorted((*_bounds(a), kind, name) for (kind, name), a in arrays.items() if a.size)
    found = []
    for i, (_, stop, kind, name) in enumerate(bounds):
        for start, _, other_kind, other in itertools.islice(bounds, i + 1, None):
            if start >= stop:
                break
            first, second = sorted([(kind, name), (other_kind, other)], reverse=True)
            found.append((first, second))
    return found


def _bounds(array: Array) -> tuple[int, int]:
    if array.flags.c_contiguous:
        start = int(array.__array_interface__["data"][0])
        return start, start + array.nbytes
    low, high = byte_bounds(array)
    return int(low), int(high)


def same_memory(a: Array, b: Array) -> bool:
    """Return True if two arrays are the same elements in the same order."""
    if a is b:
        return True
    return (
        a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
        and a.shape == b.shape
        and a.strides == b.strides
        and a.dtype == b.dtype
    )


def deliver(names: Sequence[str], results: list[Any], out: Mapping[str, Array]) -> list[Any]:
    """Return the results, copied into the arrays given for them."""
    for name, result in zip(names, results, strict=True):
        if name in out and result is not out[name]:
            _check_result(name, result, out[name])
    for i, name in enumerate(names):
        if name in out and results[i] is not out[name]:
            np.copyto(out[name], results[i])
            results[i] = out[name]
    return results


def _check_result(name: str, result: Any, array: Array) -> None:
    if not isinstance(result, (np.ndarray, np.generic)):
        raise FeedError(f"output {name!r} is no array", given=type(result).__name__)
    refuse_unlike(name, array, result.shape, result.dtype)


def refuse_unlike(name: str, array: Array, shape: tuple[int, ...], dtype: Any) -> None:
    """Raise a FeedError if an array has another shape or element type than its output."""
    if array.shape != shape or array.dtype != dtype:
        raise FeedError(
            f"output {name!r} does not fit into the array given for it",
            expected=f"{_dtype_text(dtype)}{list(shape)}",
            given=f"{_dtype_text(array.dtype)}{list(array.shape)}",
        )


def _dtype_text(given: Any) -> str:
    """An element type by Monograph's name; by its own where there is no counterpart."""
    try:
        return str(from_numpy(given))
    except (MonographError, TypeError):
        return str(given)
