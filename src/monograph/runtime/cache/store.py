"""Compiled models that are found again without reading the model: by the digest of its file.

A session keeps its signature under the digest of the model and its options, and each executable
under the shapes that it was compiled for. A hit takes no import and no rewriting.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any, TypeAlias

import numpy as np

from monograph.codegen.llvm.module.features import choose_features
from monograph.config import Config
from monograph.errors import ModelError, MonographError
from monograph.runtime.cache.artefact import (
    FORMAT,
    Artefact,
    signature_from_json,
    signature_to_json,
)
from monograph.runtime.cache.object_cache import DiskCache, make_key, open_cache
from monograph.runtime.cache.source import Beside, UnreadModel
from monograph.runtime.cpu.threads import choose_threads
from monograph.runtime.feeds import ModelSignature

_log = logging.getLogger("monograph")
_MANIFEST = "manifest"
_BROKEN = (MonographError, ValueError, KeyError, TypeError)
"""What reading members of another meaning may end in."""

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


class CacheStore:
    """The compiled programs of one model, with one set of options, in a cache on disk."""

    def __init__(self, cache: DiskCache, source: UnreadModel, options: Mapping[str, Any]) -> None:
        assert source.digest is not None
        self._cache = cache
        self._source = source
        self._features = choose_features(options["features"])
        self._parts = {
            "format": str(FORMAT),
            "model": source.digest,
            "options": json.dumps(options, sort_keys=True),
        }
        self._beside: Beside | None = None
        """The files beside the model; None before it is known which."""

    def signature(self) -> ModelSignature | None:
        """What the model takes and gives, if that is known."""
        key = self._key()
        parts = self._cache.get(key)
        if parts is None:
            return None
        try:
            manifest = json.loads(bytes(parts[_MANIFEST]))
            found = signature_from_json(manifest["signature"])
            digests: dict[str, str] = manifest["beside"]
        except _BROKEN:
            self._cache.forget(key)
            return None
        try:
            beside = Beside(self._source.directory, digests)
        except ModelError:
            return None  # Whoever reads the model will say what is wrong with its files.
        if beside.digests != digests:
            return None
        self._beside = beside
        return found

    def look_beside(self, locations: Iterable[str]) -> None:
        """Takes the digests of the files that a model names, before anything is made of them."""
        before = self._beside
        try:
            self._beside = Beside(self._source.directory, locations)
        except ModelError:
            self._beside = None  # Reading the model will say what is wrong with its files.
            return
        if before is not None and before.digests != self._beside.digests:
            raise ModelError(
                "external data of the model has changed since the session was made",
                given=", ".join(sorted(self._beside.digests)),
                hint="load the model again",
            )

    def keep_signature(self, signature: ModelSignature) -> None:
        """Remembers a signature, and which files beside the model it holds for."""
        if self._beside is None or not self._beside.unchanged():
            return
        manifest = {"signature": signature_to_json(signature), "beside": self._beside.digests}
        self._cache.put(self._key(), {_MANIFEST: json.dumps(manifest).encode()})

    def find(self, shapes: Shapes) -> Artefact | None:
        """The program that was compiled for inputs of these shapes, if any."""
        if self._beside is None:
            return None
        key = self._key(shapes=_text(shapes), beside=json.dumps(self._beside.digests))
        members = self._cache.get(key)
        if members is None:
            return None
        try:
            return Artefact.of(members)
        except _BROKEN:
            self._cache.forget(key)
            return None

    def keep(self, shapes: Shapes, artefact: Artefact) -> bool:
        """Remembers what was compiled for inputs of these shapes; whether that could be done."""
        if not artefact.layout.whole:
            kinds = ", ".join(sorted(set(artefact.layout.host_kinds))) or "no single function"
            _log.info("the compiled model is not kept on disk: steps on the host (%s)", kinds)
            return False
        if self._beside is None or not self._beside.unchanged():
            return False
        key = self._key(shapes=_text(shapes), beside=json.dumps(self._beside.digests))
        return self._cache.put(key, artefact.members())

    def _key(self, **parts: str) -> str:
        return make_key(self._features, **self._parts, **parts)


def open_store(
    source: UnreadModel, config: Config, dims: Mapping[str, int], donate: Mapping[str, str]
) -> CacheStore | None:
    """Where the compiled programs of a model lie; None where nothing is kept."""
    if config.target != "cpu" or source.digest is None:
        return None
    cache = open_cache(config)
    if cache is None or not all(isinstance(x, str) for x in (*dims, *donate, *donate.values())):
        return None
    return CacheStore(cache, source, store_options(config, dims, donate))


def store_options(
    config: Config, dims: Mapping[str, int], donate: Mapping[str, str]
) -> dict[str, Any]:
    """What decides, besides the model and shapes, what is compiled."""
    return {
        "dims": dict(dims),
        "donate": dict(donate),
        "features": choose_features(config.cpu_isa).name,
        "threads": choose_threads(config.threads),
        "winograd": config.winograd,
        "checked": config.checked,
        "onnx": version("onnx"),
        "numpy": np.__version__,
    }


def gpu_options(
    config: Config, dims: Mapping[str, int], donate: Mapping[str, str]
) -> dict[str, Any]:
    """The same for a GPU."""
    return {
        "dims": dict(dims),
        "donate": dict(donate),
        "precision": config.precision,
        "tf32": config.tf32,
        "checked": config.checked,
    }


def _text(shapes: Shapes) -> str:
    return json.dumps({name: list(shape) for name, shape in sorted(shapes.items())})
