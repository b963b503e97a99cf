"""Where a model comes from, and a digest of all that is in it, without reading it as a model.

What was compiled is found again by the digest. It covers every byte of the model file; the files
beside it, which only the model itself can name, have digests of their own.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from monograph.errors import ModelError
from monograph.frontend.safe_open import open_inside

if TYPE_CHECKING:
    import onnx

    from monograph.frontend.onnx import ModelFile

Given: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"
Stamp: TypeAlias = tuple[int, ...]
_ZIP = b"PK\x03\x04"


class UnreadModel:
    """A model that has not been read yet."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.directory: Path | None = None
        """The directory of a model file; None for a model that is no file."""
        self.digest: str | None = None
        """The SHA-256 of the file; None for what is no file, or cannot be read as one."""
        if isinstance(given, bytes):
            self.digest = hashlib.sha256(given).hexdigest()
        elif isinstance(given, (str, os.PathLike)):
            # What is wrong with a path, whoever reads the model will say.
            try:
                self.digest = _digest(Path(given))
                self.directory = Path(given).parent.resolve()
                # The model may be read later, and the process may move in between.
                self.given = Path(given).absolute()
            except (OSError, ValueError):
                self.digest = None

    def read(self) -> ModelFile:
        """The model; it must be the one that the digest was taken of."""
        # A process that finds all it needs on disk never imports onnx.
        from monograph.frontend.onnx import read_model

        return read_model(self.given, self.digest if self.directory is not None else None)


def is_package(given: Given) -> bool:
    """Whether a path leads to a model that was compiled ahead of time: to a zip."""
    if not isinstance(given, (str, os.PathLike)):
        return False
    try:
        if not Path(given).is_file():
            return False
        with open(given, "rb") as file:
            return file.read(len(_ZIP)) == _ZIP
    except (OSError, ValueError):
        return False


def _digest(path: Path) -> str | None:
    # A pipe would block, and a device has no end.
    if not stat.S_ISREG(path.stat().st_mode):
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Beside:
    """The files beside a model as they are now: their digests, and whether they stay so."""

    def __init__(self, directory: Path | None, locations: Iterable[str]) -> None:
        self._directory = directory
        self.digests: dict[str, str] = {}
        self._stamps: dict[str, Stamp] = {}
        for location in locations:
            self.digests[location], self._stamps[location] = self._look(location)

    def unchanged(self) -> bool:
        """Whether nobody has written to the files since."""
        try:
            return all(self._stamp(location) == stamp for location, stamp in self._stamps.items())
        except ModelError:  # A file that is gone has changed.
            return False

    def _look(self, location: str) -> tuple[str, Stamp]:
        with os.fdopen(self._open(location), "rb") as file:
            before = _stamp(file.fileno())
            return hashlib.file_digest(file, "sha256").hexdigest(), before

    def _stamp(self, location: str) -> Stamp:
        handle = self._open(location)
        try:
            return _stamp(handle)
        finally:
            os.close(handle)

    def _open(self, location: str) -> int:
        if self._directory is None:
            raise ModelError("external data has no directory", given=location)
        return open_inside(self._directory, location, location)


def _stamp(handle: int) -> Stamp:
    status = os.fstat(handle)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
