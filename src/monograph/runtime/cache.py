"""Compiled objects on disk, found again by a key.

    DIR/entries/3f/3fa9...e1    one file an entry: a line with a digest, a line of JSON, the parts

An entry is written to a temporary file and renamed, so readers see all of it or nothing, and
processes need no lock between them. Everything behind the digest is checked when an entry is
read; what does not fit is deleted and counts as missing. Nothing is unpickled. An entry is
trusted like a shared library, so the directory must belong to the user and to nobody else.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from monograph.codegen.llvm.features import Features
from monograph.config import Config

_log = logging.getLogger("monograph")
_MAGIC = b"monograph-cache 1 "
_TEMPORARY = ".new-"
_STALE_SECONDS = 3600.0
"""Temporary files older than this were left by a process that died."""
_LOW_WATER = 0.9
"""The part of the limit that eviction leaves, so that not every write evicts."""


def make_key(features: Features, **parts: str) -> str:
    """The key of an entry made from these parts, for this instruction set and these versions."""
    parts |= {
        "features": f"{features.name} {features.cpu} {features.flags}",
        "monograph": _own_version(),
        "llvmlite": llvmlite.__version__,
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "triple": llvm.get_default_triple(),
    }
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def open_cache(config: Config) -> DiskCache | None:
    """The cache of a configuration; None where it is switched off."""
    if not config.cache_dir or not config.cache_bytes:
        return None
    return DiskCache(Path(config.cache_dir).expanduser(), config.cache_bytes)


class DiskCache:
    """Named parts of bytes under a key, in a directory of bounded size.

    No method fails for a reason of the disk: what cannot be read is missing, and what cannot be
    written is not kept; the first such failure is logged as a warning.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self._entries = directory / "entries"
        self._limit = limit
        self._usable = self._prepare(directory)

    def get(self, key: str) -> dict[str, bytes] | None:
        """The parts stored under a key; None where there is nothing, or nothing intact."""
        if not self._usable:
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        parts = _unpack(key, data)
        if parts is None:
            _log.warning("cache entry %s is damaged; it will be made again", path)
            _remove(path)
            return None
        with suppress(OSError):
            os.utime(path)  # Eviction goes by the time of last use.
        return parts

    def put(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Stores parts under a key, in place of what was there."""
        if not self._usable:
            return
        data = _pack(key, parts)
        if len(data) > self._limit:
            _log.info("not cached: %d bytes, and the cache may hold %d", len(data), self._limit)
            return
        path = self._path(key)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _write(path, data)
        except OSError as error:
            _warn_once(f"cannot write to the cache at {self._entries}: {error.strerror}")
            return
        self._evict(path, len(data))

    def _path(self, key: str) -> Path:
        return self._entries / key[:2] / key

    def _prepare(self, directory: Path) -> bool:
        """Makes the directory, and refuses one that others could put code into."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._entries.mkdir(mode=0o700, exist_ok=True)
            for place in (directory, self._entries):
                status = place.stat()
                if hasattr(os, "geteuid") and (
                    status.st_uid != os.geteuid() or status.st_mode & 0o022
                ):
                    _warn_once(f"no cache: others may write to {place}; give it mode 0700")
                    return False
        except OSError as error:
            _warn_once(f"no cache at {directory}: {error.strerror}")
            return False
        return True

    def _evict(self, kept: Path, kept_bytes: int) -> None:
        """Deletes what was not used for longest until the rest fits; other processes may too."""
        found: list[tuple[float, int, Path]] = []
        for path in self._entries.glob("*/*"):
            try:
                status = path.stat()
            except OSError:
                continue
            if path.name.startswith(_TEMPORARY):
                if time.time() - status.st_mtime > _STALE_SECONDS:
                    _remove(path)
            elif path != kept:
                found.append((status.st_mtime, status.st_size, path))
        room = self._limit - kept_bytes
        total = sum(size for _, size, _ in found)
        if total <= room:
            return
        for _, size, path in sorted(found):
            if total <= room * _LOW_WATER:
                break
            _remove(path)
            total -= size


def _pack(key: str, parts: Mapping[str, bytes]) -> bytes:
    head = json.dumps({"key": key, "parts": {name: len(data) for name, data in parts.items()}})
    body = b"".join([head.encode(), b"\n", *parts.values()])
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _unpack(key: str, data: bytes) -> dict[str, bytes] | None:
    """The parts of an entry; None unless every byte is as it was written, under this key."""
    first, _, body = data.partition(b"\n")
    if first != _MAGIC + hashlib.sha256(body).hexdigest().encode():
        return None
    head, _, content = body.partition(b"\n")
    stated = json.loads(head)
    if stated["key"] != key:
        return None
    parts, at = {}, 0
    for name, size in stated["parts"].items():
        parts[name] = content[at : at + size]
        at += size
    return parts


def _write(path: Path, data: bytes) -> None:
    """Writes a file as a whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        _remove(Path(name))
        raise


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _warn_once(f"cannot delete from the cache at {path.parents[1]}: {error.strerror}")


@cache
def _warn_once(message: str) -> None:
    _log.warning("%s", message)


@cache
def _own_version() -> str:
    """The version of this package, and a digest of its files: an edit makes old entries misses."""
    root = Path(__file__).parent.parent
    listed = []
    for path in sorted(root.rglob("*.py")):
        status = path.stat()
        listed.append(f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}")
    files = hashlib.sha256("\n".join(listed).encode()).hexdigest()
    return f"{version('monograph')} {files[:16]}"
