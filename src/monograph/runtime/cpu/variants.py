"""The variants of a model's code for any shape: from memory, from disk or a package, or compiled.

Each variant is valid for the sizes that its guards allow. Variants are stored under consecutive
numbers; a session reads them as shapes ask for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from monograph.errors import InferError, MonographError
from monograph.runtime.cache.store import CacheStore, Shapes
from monograph.runtime.cache.weights import MissingWeightsError
from monograph.runtime.executable import CompiledArtefact, Executable
from monograph.runtime.progress import Progress
from monograph.runtime.shape_code import ShapeCode

if TYPE_CHECKING:
    from monograph.runtime.cache.package import Package

MOST_VARIANTS = 16
"""The most variants of code for any shape; beyond, shapes get exact code."""
_log = logging.getLogger("monograph")


class Variants:
    """The code for any shape of one session. The caller makes sure that one thread asks at once."""

    def __init__(
        self,
        stored: CacheStore | Package | None,
        progress: Progress,
        open_: Callable[[CompiledArtefact], ShapeCode],
    ) -> None:
        """open_: makes code of an artefact that was found."""
        self.codes: list[ShapeCode] = []
        self.reasons: list[str] = []
        """The reason for each variant: what the variants before it must have; "" for the first."""
        self.exact_reason = ""
        """The reason why exact code is compiled instead; "" as long as there is none."""
        self.found = 0
        """The number of variants that came from disk."""
        self.seconds = 0.0
        """The time that this process spent compiling variants."""
        self._store = stored
        self._open = open_
        self._progress = progress

    def find(self, shapes: Shapes) -> Executable | None:
        """Return code that has been compiled before, bound to inputs of these shapes."""
        return self._bound(shapes, 0) or self._read(shapes)

    def find_or_compile(
        self, shapes: Shapes, compile_: Callable[[Shapes], ShapeCode]
    ) -> Executable | None:
        """Return code bound to inputs of these shapes; None if exact code is needed."""
        store = self._store
        if self.exact_reason:
            return None
        if (made := self.find(shapes)) is not None:
            return made
        if isinstance(store, CacheStore):
            self.exact_reason = store.exact_reason()
        if self.exact_reason or len(self.codes) >= MOST_VARIANTS:
            return None
        waiting = store.claimed(None, self._wait) if isinstance(store, CacheStore) else None
        with waiting or nullcontext(False) as waited:
            found = self._read(shapes) if waited else None
            return found or self._compile(shapes, compile_)

    def misfits(self, shapes: Shapes) -> list[str]:
        """Return why inputs of these shapes do not fit the variants, one by one."""
        return [code.misfit(shapes) for code in self.codes]

    def _wait(self) -> None:
        self._progress("wait", 0, 1)

    def _bound(self, shapes: Shapes, first: int) -> Executable | None:
        for code in self.codes[first:]:
            values = code.bind(shapes)
            if values is not None:
                try:
                    return code.executable(values)
                except InferError:
                    return None  # too large, as the exact graph will tell
        return None

    def _read(self, shapes: Shapes) -> Executable | None:
        """Read variants from disk until one fits."""
        while self._store is not None and len(self.codes) < MOST_VARIANTS:
            artefact = self._store.find_variant(len(self.codes))
            if artefact is None:
                return None
            self._progress("load", 0, 1)
            try:
                code = self._open(artefact)
            except MissingWeightsError:
                return None
            self.found += 1
            self._add(code, shapes)
            if (made := self._bound(shapes, len(self.codes) - 1)) is not None:
                return made
        return None

    def _compile(
        self, shapes: Shapes, compile_: Callable[[Shapes], ShapeCode]
    ) -> Executable | None:
        started = time.perf_counter()
        try:
            code = compile_(shapes)
        except InferError:
            return None  # sizes that the model cannot take, as the exact graph will tell
        except MonographError as e:
            self.exact_reason = e.message
            _log.info("exact code is compiled for each set of shapes: %s", e)
            if isinstance(self._store, CacheStore):
                self._store.keep_exact_reason(e.message)
            return None
        seconds = time.perf_counter() - started
        self.seconds += seconds
        artefact = code.stored(seconds)
        if artefact is not None and isinstance(self._store, CacheStore):
            stored = self._store.keep_variant(len(self.codes), artefact)
            if stored is not None:
                code.adopt(stored)
        self._add(code, shapes)
        made = self._bound(shapes, len(self.codes) - 1)
        assert made is not None, "a variant is valid for the sizes that it was compiled for"
        return made

    def _add(self, code: ShapeCode, shapes: Shapes) -> None:
        self.reasons.append("; ".join(dict.fromkeys(self.misfits(shapes))))
        self.codes.append(code)
