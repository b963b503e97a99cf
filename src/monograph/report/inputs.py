"""Inputs and outputs in files: .npy arrays and .npz archives."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monograph.errors import FeedError
from monograph.ir import Array, SequenceType
from monograph.runtime.feeds import Port
from monograph.runtime.inputs import as_dtype

INPUT_PREFIX, OUTPUT_PREFIX = "in:", "out:"


def read_array(path: Path) -> Array:
    """An array from a .npy file; nothing in it is executed."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as e:
        raise FeedError(f"the file cannot be read: {e.strerror or e}", given=str(path)) from e
    except (ValueError, EOFError, zipfile.BadZipFile) as e:
        raise FeedError(f"not a .npy file of plain numbers: {e}", given=str(path)) from e
    if not isinstance(array, np.ndarray):
        raise FeedError(
            "an .npz archive was given where a single array is needed",
            given=str(path),
            hint="use --inputs FILE.npz",
        )
    return array


def read_archive(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by key; nothing in it is executed."""
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise FeedError("a single array was given where an .npz is needed", given=str(path))
        with archive:
            return {name: archive[name] for name in archive.files}
    except OSError as e:
        raise FeedError(f"the file cannot be read: {e.strerror or e}", given=str(path)) from e
    except (ValueError, EOFError, zipfile.BadZipFile) as e:
        raise FeedError(f"not an .npz file of plain numbers: {e}", given=str(path)) from e


def split_archive(
    arrays: Mapping[str, Array], inputs: Sequence[Port], outputs: Sequence[Port]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs and outputs of a model in an archive, keyed in:NAME and out:NAME, or NAME."""
    feeds = {p.name: x for p in inputs if (x := _take(arrays, INPUT_PREFIX, p)) is not None}
    expected = {p.name: x for p in outputs if (x := _take(arrays, OUTPUT_PREFIX, p)) is not None}
    return feeds, expected


def _take(arrays: Mapping[str, Array], prefix: str, port: Port) -> Any:
    for key in (prefix + port.name, port.name):
        if key in arrays:
            return as_dtype(arrays[key], port.type)
        if isinstance(port.type, SequenceType) and f"{key}[0]" in arrays:
            count = sum(name.startswith(f"{key}[") for name in arrays)
            return [arrays[f"{key}[{i}]"] for i in range(count)]
    return None
