"""Kernels to compile, compiled kernels, and a cache of them on disk. Nothing here needs Triton."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TypeAlias

from monograph.codegen.triton.module.launch import Arch, Launch, stored
from monograph.errors import CodegenError
from monograph.ir import DType
from monograph.runtime.cache.object_cache import DiskCache

_ABOUT, _CODE = "about", "code"
_FORMAT = 1
"""Format of the stored parts; raise it when their meaning changes."""

POINTERS = {
    "i8": "*i8",
    "i16": "*i16",
    "i32": "*i32",
    "i64": "*i64",
    "half": "*fp16",
    "bfloat": "*bf16",
    "float": "*fp32",
    "double": "*fp64",
}
"""Triton's pointer types, by LLVM's element types."""


@dataclass(frozen=True)
class CompileRequest:
    """A kernel to compile: its source, and the types and alignment of its arguments.

    Field names enter the keys of the binary cache.
    """

    source: str
    stem: str
    types: tuple[str, ...]
    aligned: tuple[bool, ...]
    warps: int
    stages: int
    dependent: bool


@dataclass(frozen=True)
class KernelBinary:
    """A compiled kernel: code that the driver loads, and its launch parameters."""

    name: str
    code: bytes
    shared: int
    threads: int
    dependent: bool


def request(
    launch: Launch, dtypes: tuple[DType, ...], aligned: tuple[bool, ...], stem: str
) -> CompileRequest:
    """Return the compile request of a launch."""
    sizes = tuple("i64" if wide else "i32" for wide in launch.wide_sizes)
    types = tuple(POINTERS[stored(t)] for t in dtypes) + sizes
    aligned = (aligned if launch.aligned is None else launch.aligned) + launch.multiples
    return CompileRequest(
        launch.source, stem, types, aligned, launch.warps, launch.stages, launch.dependent
    )


Built: TypeAlias = "dict[CompileRequest, KernelBinary | CodegenError]"
"""The kernel or the error of each request."""


class BinaryCache:
    """Machine code of one architecture's kernels on disk; stores nothing without a cache.

    Triton has a cache too, but a process must import Triton to ask it.
    """

    def __init__(self, cache: DiskCache | None, arch: Arch) -> None:
        self._cache = cache
        self._arch = asdict(arch)
        self.found = 0
        """Kernels that were found and not compiled."""
        self._stored: set[str] = set()
        """Keys that are known to be in the cache."""

    def find(self, wanted: Iterable[CompileRequest]) -> dict[CompileRequest, KernelBinary]:
        """Return the kernels that the cache has."""
        made = {one: self._find(one) for one in wanted} if self._cache is not None else {}
        found = {one: binary for one, binary in made.items() if binary is not None}
        self.found += len(found)
        return found

    def _find(self, one: CompileRequest) -> KernelBinary | None:
        assert self._cache is not None
        key = self._key(one)
        parts = self._cache.get(key)
        if parts is None:
            return None
        self._stored.add(key)
        try:
            return KernelBinary(**{**json.loads(bytes(parts[_ABOUT])), "code": bytes(parts[_CODE])})
        except (ValueError, KeyError, TypeError):
            self._cache.forget(key)
            self._stored.discard(key)
            return None

    def keep(self, made: dict[CompileRequest, KernelBinary]) -> None:
        """Store compiled kernels."""
        for one, binary in made.items():
            key = self._key(one)
            if self._cache is None or key in self._stored:
                continue
            about = {name: x for name, x in asdict(binary).items() if name != "code"}
            self._cache.put(key, {_ABOUT: json.dumps(about).encode(), _CODE: binary.code})
            self._stored.add(key)

    def _key(self, one: CompileRequest) -> str:
        parts = {
            "format": _FORMAT,
            "kernel": asdict(one),
            "arch": self._arch,
            "triton": version("triton"),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
