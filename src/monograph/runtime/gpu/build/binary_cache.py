"""Machine code of kernels on disk: found again by source and architecture, without a compiler.

Triton keeps what it compiles too, but to ask it takes a process that has imported it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version

from monograph.codegen.triton.module.kernel import Arch
from monograph.runtime.cache.object_cache import DiskCache
from monograph.runtime.gpu.build.build import KernelBinary, CompileRequest

_ABOUT, _CODE = "about", "code"
_FORMAT = 1
"""Goes up when the parts mean something else than before."""


class KeptKernels:
    """The kernels of one architecture in a cache; nothing is kept where there is none."""

    def __init__(self, cache: DiskCache | None, arch: Arch) -> None:
        self._cache = cache
        self._arch = asdict(arch)
        self.found = 0
        """Kernels that were found and not compiled."""
        self._stored: set[str] = set()
        """What is known to be there."""

    def find(self, wanted: Iterable[CompileRequest]) -> dict[CompileRequest, KernelBinary]:
        """Those of some kernels that were compiled before."""
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
        """Stores kernels that are worth to be found again."""
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
