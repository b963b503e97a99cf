"""Opens files that a model names: only regular files inside the model's own directory, or in the
blobs that the snapshots of the same model in a hub's cache link to.

The path is canonicalised first and must stay inside. Then it is opened one component at a time,
following no link, so that a link created in between is rejected as well. A hard link is rejected
because it may be another name of any file on the disk.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath

from monograph.errors import ModelError

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Opening a pipe would otherwise block until another process writes to it.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
MAX_LOCATION = 4096
BLOBS = "blobs"
"""The folder of a hub's cache that holds the data of a model."""


def open_inside(directory: Path, location: str, label: str) -> int:
    """Open a regular file inside the directory; return its descriptor."""
    base, inside = _contained(directory, location, label)
    try:
        handle = _open_parts(base, inside)
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
            raise _escapes(label, location) from e
        raise ModelError(
            f"the external data of {label} cannot be read: {e.strerror}",
            expected=f"a file in {directory}",
            given=location,
        ) from e
    status = os.fstat(handle)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = "is not a plain file"
    elif status.st_nlink > 1:
        problem = "has several hard links, and may be a file of another directory"
    if problem is not None:
        os.close(handle)
        raise ModelError(
            f"the external data of {label} {problem}",
            given=location,
            hint="copy the data into the model's directory",
        )
    return handle


def _contained(directory: Path, location: str, label: str) -> tuple[Path, tuple[str, ...]]:
    """Return a directory and the path components of a location below it, links resolved.

    The directory is that of the model, or the blobs of the hub's cache that the model is in.
    """
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    rooted = posix.is_absolute() or windows.drive or windows.root
    if rooted or ".." in posix.parts or ".." in windows.parts:
        raise _escapes(label, location)
    if len(location) > MAX_LOCATION or "\0" in location:
        raise ModelError(f"{label} has a bad location of external data", given=location[:80])
    base = os.path.realpath(directory)
    real = os.path.realpath(os.path.join(base, location))
    if os.path.commonpath([base, real]) == base:
        return directory, Path(os.path.relpath(real, base)).parts
    tree = hub_tree(Path(base))
    if tree is None or os.path.dirname(real) != str(tree / BLOBS):
        raise _escapes(label, location)
    return tree, (BLOBS, os.path.basename(real))


def hub_tree(base: Path) -> Path | None:
    """Return the folder of one model in a hub's cache, given a folder of a snapshot; else None.

    The cache holds `models--OWNER--NAME/snapshots/REVISION/...`, whose files are links into
    `models--OWNER--NAME/blobs`. A link to anything else is refused.
    """
    for snapshots in base.parents:
        if snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--"):
            return snapshots.parent
    return None


def _open_parts(directory: Path, parts: tuple[str, ...]) -> int:
    if os.open not in os.supports_dir_fd:
        return os.open(directory.joinpath(*parts), os.O_RDONLY | _NO_FOLLOW | _AT_ONCE)
    at = os.open(os.path.realpath(directory), os.O_RDONLY | os.O_DIRECTORY)
    for part in parts[:-1]:
        try:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW, dir_fd=at)
        finally:
            os.close(at)
        at = below
    try:
        return os.open(parts[-1] if parts else ".", os.O_RDONLY | _NO_FOLLOW | _AT_ONCE, dir_fd=at)
    finally:
        os.close(at)


def _escapes(label: str, location: str) -> ModelError:
    return ModelError(
        f"the external data of {label} lies outside the model's directory",
        expected="a relative path without '..' whose links stay inside",
        given=location[:MAX_LOCATION],
        hint="copy the data beside the model (a download cache may hold links instead of files)",
    )
