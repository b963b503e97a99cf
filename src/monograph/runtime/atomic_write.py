"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from monograph.errors import ConfigError


@contextmanager
def replacing(
    path: Path, *, prefix: str | None = None, durable: bool = True, private: bool = False
) -> Iterator[IO[bytes]]:
    """A file to write into that takes the place of `path` once it is complete.

    It lies in the same folder until then. Where anything fails, a full disk above all, the old file
    stays as it was. A `durable` file is on the disk before it takes the place: a cache, whose
    entries are checked when they are read, need not wait for that. A new file may be read by all
    whom the process's mask lets, a `private` one by its owner only; an old one's mode is kept. A
    path that is no regular file, such as a pipe or /dev/stdout, cannot be replaced and is written
    to directly. A new file can be mapped for reading before it takes the place.
    """
    target = Path(os.path.realpath(path))  # a link stays one
    mode = _mode(target)
    if mode is not None and not stat.S_ISREG(mode):
        with target.open("wb") as file:
            yield file
        return
    name = target.with_name(f"{prefix or f'.{target.name[:100]}-'}{secrets.token_hex(8)}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(name, flags, 0o600 if private else 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(handle)
        if mode is not None and not private:
            os.chmod(name, stat.S_IMODE(mode))
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


@contextmanager
def replacing_named(path: Path, what: str = "the file") -> Iterator[IO[bytes]]:
    """The same for a file that a user named: where it cannot be written, a ConfigError says so."""
    try:
        with replacing(path) as file:
            yield file
    except OSError as e:
        raise ConfigError(f"{what} cannot be written: {e.strerror or e}", given=str(path)) from e


def _mode(path: Path) -> int | None:
    """The mode of a file; None where there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
