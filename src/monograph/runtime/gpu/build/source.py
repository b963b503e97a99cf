"""Kernels' source as functions that Triton can compile.

Triton reads a kernel's source back through its file name; these files exist in memory only.
"""

from __future__ import annotations

import hashlib
import linecache
import threading
from typing import Any

from triton import knobs

from monograph.codegen.triton.module.kernel import NAME
from monograph.runtime.gpu.driver.interpreter_patch import mend_interpreter

_HEAD = "import triton\nimport triton.language as tl\n"
_INTERPRETED = "from monograph.codegen.triton.emit import interpreter_math as functions\n"
_PARTS = (
    ("functions.", "from triton.language.extra import libdevice as functions\n"),
    ("gdc_", "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"),
)
_lock = threading.Lock()
_made: dict[str, Any] = {}


def named(source: str, stem: str) -> str:
    """The name of a kernel: what it does, and a hash of how."""
    key = hashlib.sha256(source.encode()).hexdigest()[:12]
    words = "".join(c if c.isalnum() else "_" for c in stem)
    return f"{words}_{key}"


def function(source: str, stem: str = "kernel") -> Any:
    """The Triton function of a source text; equal texts give the same one."""
    name = named(source, stem)
    with _lock:
        if name not in _made:
            _made[name] = _defined(name, source.replace(NAME, name))
        return _made[name]


def _defined(name: str, source: str) -> Any:
    imports = "".join(line for mark, line in _PARTS if mark in source)
    if knobs.runtime.interpret:
        mend_interpreter()
        imports = imports.replace(_PARTS[0][1], _INTERPRETED)
    text = f"{_HEAD}{imports}\n\n{source}"
    file = f"<monograph kernel {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": f"monograph_kernels.{name}", "__file__": file}
    exec(compile(text, file, "exec"), space)
    return space[name]
