"""Inputs of a run: .npy arrays, .npz archives, or random arrays. Outputs in such files."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from monograph.errors import FeedError, MonographError, did_you_mean
from monograph.ir import Array, SequenceType
from monograph.ir.memory import machine_memory
from monograph.runtime.feeds import Port
from monograph.runtime.input_ranges import input_ranges
from monograph.runtime.inputs import DEFAULT_SIZE, Chosen, Inputs, as_dtype, make_inputs
from monograph.session import Session

INPUT_PREFIX, OUTPUT_PREFIX = "in:", "out:"
MAGIC, ZIP_MAGIC = b"\x93NUMPY", b"PK"
_ELEMENT = re.compile(r"(\[[^\]]*\])+\Z")
"""The end of a key for one element of a sequence or map."""


def read_array(path: Path) -> Array:
    """Read an array from a .npy file, without executing anything in it."""
    with _refusing(path, "a .npy array"):
        array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise FeedError(
            "an input file must be a .npy array, not an .npz archive",
            given=str(path),
            hint="use --inputs FILE.npz",
        )
    return array


def read_archive(path: Path) -> dict[str, Array]:
    """Read the arrays of an .npz file by key, without executing anything in it."""
    with _refusing(path, "an .npz archive"):
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise FeedError(
                "an input archive must be an .npz file, not a .npy array", given=str(path)
            )
        with archive:
            _check_size(path, sum(member.file_size for member in archive.zip.infolist()))
            return {name: archive[name] for name in archive.files}


def _check_size(path: Path, nbytes: int) -> None:
    """Refuse an archive that is small on disk and too large in memory."""
    if nbytes > (limit := machine_memory() // 2):
        raise FeedError(
            "the arrays of the file must fit into half of the memory",
            expected=f"at most {limit:,} bytes",
            given=f"{path}: {nbytes:,} bytes",
        )


@contextmanager
def _refusing(path: Path, what: str) -> Iterator[None]:
    """Replace errors of numpy, which advise to unpickle a file."""
    try:
        yield
    except OSError as e:
        raise FeedError(f"the file cannot be read: {e.strerror or e}", given=str(path)) from e
    except MemoryError as e:
        raise FeedError(
            "the file states an array that this machine cannot hold", given=str(path)
        ) from e
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as e:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
        if "Object arrays" in str(e):
            problem = f"not {what} of plain numbers or strings: it holds Python objects"
        elif start.startswith((MAGIC, ZIP_MAGIC)):
            problem = f"not {what} that can be read: the file is damaged or cut short"
        else:
            problem = f"not {what}"
        raise FeedError(problem, given=str(path), hint="save it with numpy.save or savez") from e


def split_archive(
    arrays: Mapping[str, Array], inputs: Sequence[Port], outputs: Sequence[Port]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs and outputs in an archive, with keys in:NAME and out:NAME, or NAME.

    Any other key is an error, because it may be misspelt.
    """
    _check_keys(arrays, inputs, outputs)
    feeds = {p.name: x for p in inputs if (x := _take(arrays, INPUT_PREFIX, p)) is not None}
    expected = {p.name: x for p in outputs if (x := _take(arrays, OUTPUT_PREFIX, p)) is not None}
    return feeds, expected


def _check_keys(
    arrays: Mapping[str, Array], inputs: Sequence[Port], outputs: Sequence[Port]
) -> None:
    known = [INPUT_PREFIX + p.name for p in inputs] + [OUTPUT_PREFIX + p.name for p in outputs]
    plain = {p.name for p in (*inputs, *outputs)}
    allowed = {*known, *plain}
    unknown = [key for key in arrays if key not in allowed and _ELEMENT.sub("", key) not in allowed]
    if unknown:
        raise FeedError(
            "the file holds arrays that are neither inputs nor outputs of the model",
            expected=", ".join(known),
            given=", ".join(unknown),
            hint=did_you_mean(unknown, [*known, *plain]),
        )


def _take(arrays: Mapping[str, Array], prefix: str, port: Port) -> Any:
    for key in (prefix + port.name, port.name):
        if key in arrays:
            return as_dtype(arrays[key], port.type)
        if isinstance(port.type, SequenceType) and f"{key}[0]" in arrays:
            return _elements(arrays, key)
    return None


def _elements(arrays: Mapping[str, Array], key: str) -> list[Array]:
    """Return the elements of a sequence; none may be missing."""
    given = [name for name in arrays if name.startswith(f"{key}[")]
    expected = [f"{key}[{i}]" for i in range(len(given))]
    if sorted(given) != sorted(expected):
        raise FeedError(
            "the elements of a sequence must be numbered from 0 without gaps",
            expected=expected,
            given=given,
        )
    return [arrays[name] for name in expected]


def draw_inputs(
    session: Session,
    given: Mapping[str, Any] | None = None,
    seed: int = 0,
    size: int = DEFAULT_SIZE,
    chosen: Chosen | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Inputs:
    """Return the given arrays, and random ones in valid ranges for all other inputs.

    size: the size of dimensions that nothing fixes, if the model takes it.
    chosen: ranges and values from the user.
    sizes: the sizes of open dimensions that are known.
    """
    return make_inputs(
        session.inputs,
        given or {},
        seed,
        size,
        [sizes] if sizes else session.packaged_sizes,
        lambda feeds: input_ranges(session.bound_graph(feeds)),
        chosen,
        None if session.packaged_sizes else lambda feeds: _takes(session, feeds),
    )


def _takes(session: Session, feeds: Mapping[str, Any]) -> bool:
    """Return False if the model cannot take inputs of these shapes."""
    try:
        session.bound_graph(feeds)
    except FeedError:
        return False
    except MonographError:
        return True  # another problem, which the run reports
    return True
