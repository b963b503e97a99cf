"""Compiled objects on disk, found again by a key.

    DIR/entries/3f/3fa9...e1    one file an entry: a line with a digest, a line of JSON, the parts

An entry is written to a temporary file and renamed. Readers therefore see all of it or nothing,
and processes need no lock to be right. A claim saves work: of processes that start together one
makes an entry, and the others wait for it. The digest covers everything after it and is checked on
every read; a damaged entry is deleted and counts as missing. Nothing is unpickled. An entry is
trusted like a shared library, so only the user may write to the directory.

Parts are aligned to cache lines and mapped, not read, so that processes share weights in memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeAlias

import llvmlite
import llvmlite.binding as llvm
import numpy as np

import monograph
from monograph.codegen.llvm.module.features import Features
from monograph.config import Config
from monograph.ir import Array
from monograph.runtime.atomic_write import replacing

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows has no such locks: processes compile beside each other
    fcntl = None

Buffer: TypeAlias = "bytes | memoryview | Array"
"""Contiguous bytes that can be stored."""

_log = logging.getLogger("monograph")
_MAGIC = b"monograph-cache 2 "
_ALIGNMENT = 64
_HEADER = len(_MAGIC) + 65
"""The magic, the digest of everything after it in hexadecimal, and the end of the line."""
_NEWLINE = 0x0A
_TEMPORARY = ".new-"
_STALE_SECONDS = 3600.0
"""Temporary files older than this were left by a process that died."""
CLAIM_SECONDS = 600.0
"""The longest time to wait for another process that compiles the same."""
_POLL_SECONDS = 0.02
_OWNER = 512
"""The bytes of a claim that hold its owner."""
_ENDED = b"ended"
_LOW_WATER = 0.9
"""The part of the limit that eviction leaves, so that not every write evicts."""


def make_key(features: Features, **parts: str) -> str:
    """Return the key of an entry made from these parts, for this instruction set and versions."""
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
    """Return the cache of a configuration, or None if it is switched off."""
    if not config.cache_dir or not config.cache_bytes:
        return None
    return DiskCache(Path(config.cache_dir).expanduser(), config.cache_bytes)


class DiskCache:
    """Named parts of bytes under a key, in a directory of bounded size.

    Disk errors never raise: what cannot be read is missing, and what cannot be written is not
    stored. The first such error is logged as a warning.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self._entries = directory / "entries"
        self._limit = limit
        self._usable = self._prepare(directory)

    def get(self, key: str) -> dict[str, memoryview] | None:
        """Return the parts stored under a key, or None if there is no intact entry."""
        if not self._usable:
            return None
        path = self._path(key)
        try:
            with path.open("rb") as file:
                data = _mapped(file)
        except OSError:
            return None
        parts = _unpack(key, data)
        if parts is None:
            self.forget(key)
            return None
        self.touch(key)
        return parts

    def has(self, key: str) -> bool:
        """Return True if there is an entry, intact or not."""
        return self._usable and self._path(key).exists()

    def touch(self, key: str) -> bool:
        """Record a use of an entry, for eviction; return False if there is none."""
        try:
            os.utime(self._path(key))
        except OSError:
            return False
        return True

    def forget(self, key: str) -> None:
        """Delete a damaged entry."""
        path = self._path(key)
        _log.warning("deleting damaged cache entry %s", path)
        _remove(path)

    def put(self, key: str, parts: Mapping[str, Buffer]) -> dict[str, memoryview] | None:
        """Store parts under a key, replacing an older entry; return them as mapped from the file.

        Return None if they were not stored.
        """
        if not self._usable:
            return None
        pieces = _pack(key, parts)
        size = sum(map(len, pieces))
        if size > self._limit:
            _log.info("not cached: %d bytes exceed the limit of %d", size, self._limit)
            return None
        path = self._path(key)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with replacing(path, prefix=_TEMPORARY, durable=False, private=True) as file:
                file.writelines(pieces)
                file.flush()
                # Mapped before others can reach the file: it holds what was just written.
                data = _mapped(file)
        except OSError as error:
            _warn_once(f"cannot write to the cache at {self._entries}: {error.strerror}")
            return None
        self._evict(path, size)
        return _split(key, data)

    @contextmanager
    def claimed(self, key: str, waiting: Callable[[], None]) -> Iterator[bool]:
        """Hold the claim to make the entry of a key; yield True if another process had it first.

        `waiting` is called while this process waits. An owner that ends without the entry, because
        the entry cannot be stored, frees all that wait. A claim is stale if its owner is gone, or
        after `CLAIM_SECONDS`; then the caller goes on without it. So two processes may make one
        entry, but none waits for ever.
        """
        place = self._entries.parent / "claims" / key
        handle = _opened(place) if self._usable and fcntl is not None else None
        if handle is None:
            yield False
            return
        try:
            waited, owned = _wait(handle, waiting)
            ended = os.pread(handle, len(_ENDED), 0) == _ENDED
            if ended or not owned:
                _unlock(handle)
                yield waited or ended
                return
            owner = json.dumps([os.getpid(), platform.node()])
            os.pwrite(handle, owner.ljust(_OWNER).encode(), 0)
            try:
                yield waited
            finally:
                os.pwrite(handle, _ENDED, 0)
                _remove(place)
                _unlock(handle)
        finally:
            os.close(handle)

    def _path(self, key: str) -> Path:
        return self._entries / key[:2] / key

    def _prepare(self, directory: Path) -> bool:
        """Create the directory; refuse one that others may write to."""
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
        """Delete the least recently used entries until the rest fits; others may do so too."""
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


def _opened(place: Path) -> int | None:
    """Open the file of a claim; None if the directory cannot be written to."""
    try:
        place.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None


def _wait(handle: int, waiting: Callable[[], None]) -> tuple[bool, bool]:
    """Lock the file of a claim; return whether another process held it, and whether it is ours."""
    end, waited = time.monotonic() + CLAIM_SECONDS, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A forked child of an owner that died holds its lock too.
            gone = waited and _is_gone(os.pread(handle, _OWNER, 0))
            if gone or time.monotonic() > end:
                return waited, False
        except OSError:  # a file system without locks
            return waited, False
        else:
            return waited, True
        waited = True
        waiting()
        time.sleep(_POLL_SECONDS)


def _unlock(handle: int) -> None:
    """Free a claim at once: a forked child may still have the file open."""
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)


def _is_gone(owner: bytes) -> bool:
    """Return True if the owner of a claim was a process of this machine that has ended."""
    try:
        pid, host = json.loads(owner)
        if host == platform.node():
            os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (ValueError, TypeError, OSError):  # not written yet, or the process of another user
        return False
    return False


def _mapped(file: IO[bytes]) -> memoryview:
    """Map a file, which may be closed and deleted while it is mapped."""
    if not os.fstat(file.fileno()).st_size:
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def as_bytes(data: Buffer) -> memoryview:
    """Return the bytes of some data without a copy."""
    return (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")


def _pack(key: str, parts: Mapping[str, Buffer]) -> list[memoryview]:
    """Return an entry in pieces. Spaces fill up the head, so that every part is aligned."""
    views = {name: as_bytes(data) for name, data in parts.items()}
    sizes = {name: len(view) for name, view in views.items()}
    head = json.dumps({"key": key, "parts": sizes}).encode()
    head += b" " * (-(_HEADER + len(head) + 1) % _ALIGNMENT) + b"\n"
    pieces = [memoryview(head)]
    for view in views.values():
        pieces += [view, memoryview(bytes(-len(view) % _ALIGNMENT))]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return [memoryview(_MAGIC + digest.hexdigest().encode() + b"\n"), *pieces]


def _unpack(key: str, data: memoryview) -> dict[str, memoryview] | None:
    """Return the parts of an entry; None unless every byte is as it was written, under this key."""
    digest = hashlib.sha256(data[_HEADER:]).hexdigest()
    if data[:_HEADER] != _MAGIC + digest.encode() + b"\n":
        return None
    return _split(key, data)


def _split(key: str, data: memoryview) -> dict[str, memoryview] | None:
    """Return the parts of an entry whose bytes are known to be right; None if its key differs."""
    at = _HEADER
    while data[at] != _NEWLINE:
        at += 1
    stated = json.loads(bytes(data[_HEADER:at]))
    if stated["key"] != key:
        return None
    parts, at = {}, at + 1
    for name, size in stated["parts"].items():
        parts[name] = data[at : at + size]
        at += -(-size // _ALIGNMENT) * _ALIGNMENT
    return parts


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
    """Return the package's version and a digest of its files: an edit makes entries misses."""
    root = str(Path(monograph.__file__).parent)
    listed, folders = [], [root]
    while folders:
        with os.scandir(folders.pop()) as found:
            for item in found:
                if item.is_dir():
                    folders.append(item.path)
                elif item.name.endswith(".py"):
                    status = item.stat()
                    name = item.path.removeprefix(root)
                    listed.append(f"{name} {status.st_size} {status.st_mtime_ns}")
    files = hashlib.sha256("\n".join(sorted(listed)).encode()).hexdigest()
    return f"{monograph.__version__} {files[:16]}"
