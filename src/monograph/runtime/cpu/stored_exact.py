"""Exact code of one model that another process compiles and this one finds on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from monograph.config import Config
from monograph.runtime.cache.artefact import LoadedExecutable
from monograph.runtime.cache.store import CacheStore, Shapes, UnreadModel
from monograph.runtime.cpu.background import CompileJob
from monograph.runtime.target import Target

if TYPE_CHECKING:
    from monograph.runtime.cpu.launch import NativeExecutable
    from monograph.runtime.executable import Executable

Types = Mapping[str, str]


@dataclass(frozen=True)
class ModelUse:
    """A model, and what a session was told about it."""

    source: UnreadModel
    config: Config
    dims: Mapping[str, int]
    donate: Mapping[str, str]

    @property
    def why_not_elsewhere(self) -> str:
        """Return why no other process can compile the model; "" if one can."""
        if not self.config.cache_dir or not self.config.cache_bytes:
            return "there is no cache directory"
        if type(self.source) is not UnreadModel or self.source.digest is None:
            return "the model is neither a file nor bytes"
        return ""

    def job(self, shapes: Shapes, dtypes: Types, threads: int) -> CompileJob:
        """Return the exact compilation for a set of shapes."""
        given = self.source.given
        is_bytes = isinstance(given, bytes)
        config = asdict(self.config) | {"specialise": "now", "threads": threads}
        request = {
            "path": "" if is_bytes else os.fspath(given),  # type: ignore[arg-type]
            "digest": self.source.digest,
            "values": list(self.source.values),
            "config": config,
            "dims": dict(self.dims),
            "donate": dict(self.donate),
            "shapes": {name: list(shape) for name, shape in shapes.items()},
            "dtypes": dict(dtypes),
        }
        return CompileJob(request, given if isinstance(given, bytes) else b"")


class StoredExactCode:
    """The exact code of one model in its cache on disk."""

    def __init__(
        self,
        store: CacheStore,
        use: ModelUse,
        target: Target,
        again: Callable[[Shapes, Types], Callable[[], Executable]],
    ) -> None:
        """again: returns a function that compiles from the model for shapes and dtypes."""
        self._store, self._use, self._target, self._again = store, use, target, again

    def job(self, shapes: Shapes, dtypes: Types) -> CompileJob:
        """Return the compilation for a set of shapes."""
        return self._use.job(shapes, dtypes, self._target.threads)

    def exists(self, shapes: Shapes) -> bool:
        """Return True if disk has the code for a set of shapes."""
        return self._store.has(shapes)

    def load(self, shapes: Shapes, dtypes: Types) -> NativeExecutable | None:
        """Load the code from disk; None if it is not there."""
        artefact = self._store.find(shapes)
        if artefact is None:
            return None
        made = self._target.load(artefact, self._again(shapes, dtypes))
        assert isinstance(made, LoadedExecutable)
        return made
