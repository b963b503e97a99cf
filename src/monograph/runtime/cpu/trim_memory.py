"""Return memory to the system that compilation no longer needs.

Compiling takes several times the memory of running: weights in their old and new forms, text, the
compiler's own structures and code. All of it is freed, but the allocator keeps freed pages for
later, and the pages of the compiler's code stay mapped. A process that holds a model for hours
should not hold those, and code generation should not come on top of what rewriting has freed.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_DONT_NEED = 4
_LIBRARIES = ("libllvmlite", "onnx_cpp2py_export")
"""Modules that only read and compile models."""
_RANGE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+\s+(.*)")


def release_memory() -> None:
    """Returns freed memory and the compiler's code; harmless while others go on compiling."""
    if not sys.platform.startswith("linux"):
        return
    libc = _libc()
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    for start, size in _file_pages():
        # Nobody writes to these: a page that is needed again comes back from the file.
        libc.madvise(start, size, _DONT_NEED)


_soon: threading.Timer | None = None


def release_soon(seconds: float = 0.1) -> None:
    """Release memory a little later, in a thread of its own: no run waits for it."""
    global _soon
    if _soon is not None and _soon.is_alive():
        return
    _soon = threading.Timer(seconds, release_memory)
    _soon.daemon = True
    with suppress(RuntimeError):  # no thread can be started, or the interpreter is ending
        _soon.start()


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


@cache
def _file_pages() -> tuple[tuple[int, int], ...]:
    """(start, size) of the libraries' code and constant data; once loaded they stay where they are.

    What cannot be written to and has no page that differs from the file. The loader has changed
    addresses in some data before it made that read-only; such ranges are left alone.
    """
    try:
        text = Path("/proc/self/smaps").read_text()
    except OSError:
        return ()
    return tuple(r for library in _LIBRARIES for r in unwritten(text, library))


def unwritten(smaps: str, library: str) -> list[tuple[int, int]]:
    """(start, size) of the ranges of a library that are as they are in its file."""
    found: list[tuple[int, int]] = []
    own = False
    for line in smaps.splitlines():
        if (begins := _RANGE.match(line)) is not None:
            start, stop = int(begins[1], 16), int(begins[2], 16)
            own = "w" not in begins[3] and Path(begins[4]).name.startswith(library)
            if own:
                found.append((start, stop - start))
        elif own and line.startswith("Anonymous:") and line.split()[1] != "0":
            found.pop()
            own = False
    return found
