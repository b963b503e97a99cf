"""Compiled models, found by the digest of the model file without reading the model.

A session stores its signature under the digest of the model and its options, and each executable
under the shapes that it was compiled for. A hit needs no import and no rewriting. The digest covers
every byte of the model file. External data files, which only the model can name, have digests of
their own.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from monograph.codegen.llvm.module.features import choose_features
from monograph.config import Config
from monograph.errors import ModelError, MonographError
from monograph.frontend.safe_open import open_inside
from monograph.runtime.cache.artefact import (
    FORMAT,
    Artefact,
    Weights,
    signature_from_json,
    signature_to_json,
)
from monograph.runtime.cache.object_cache import DiskCache, make_key, open_cache
from monograph.runtime.cache.weights import MissingWeightsError, WeightStore
from monograph.runtime.cpu.threads import choose_threads
from monograph.runtime.executable import CompiledArtefact
from monograph.runtime.feeds import ModelSignature

if TYPE_CHECKING:
    import onnx

    from monograph.frontend.onnx import ModelFile


Given: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"
Stamp: TypeAlias = tuple[int, ...]
_ZIP = b"PK\x03\x04"


class UnreadModel:
    """A model that has not been read yet."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.directory: Path | None = None
        """The directory of a model file; None for a model that is not a file."""
        self.digest: str | None = None
        """The SHA-256 of the file; None if there is no readable file."""
        self.values: tuple[str, ...] = ()
        """The values of the model that are outputs besides its own."""
        if isinstance(given, bytes):
            self.digest = hashlib.sha256(given).hexdigest()
        elif isinstance(given, (str, os.PathLike)):
            # Reading the model reports what is wrong with a path.
            try:
                self.digest = _digest(Path(given))
                self.directory = Path(given).parent.resolve()
                # The model may be read later, and the process may change its directory.
                self.given = Path(given).absolute()
            except (OSError, ValueError):
                self.digest = None

    def read(self) -> ModelFile:
        """Read the model. It must be the one that the digest was computed from."""
        # Lazy: a process that finds everything on disk never imports onnx.
        from monograph.frontend.onnx import read_model

        file = read_model(self.given, self.digest if self.directory is not None else None)
        if self.values:
            file.add_outputs(self.values)
        return file

    def with_values(self, names: tuple[str, ...]) -> UnreadModel:
        """Return the same model with values as outputs besides its own."""
        made = copy.copy(self)
        made.values = names
        return made


def is_package(given: Given) -> bool:
    """Return whether a path leads to a package: a zip of a compiled model."""
    if not isinstance(given, (str, os.PathLike)):
        return False
    try:
        if not Path(given).is_file():
            return False
        with open(given, "rb") as file:
            return file.read(len(_ZIP)) == _ZIP
    except (OSError, ValueError):
        return False


def _digest(path: Path) -> str | None:
    # Reading a pipe would block, and a device has no end.
    if not stat.S_ISREG(path.stat().st_mode):
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ExternalFiles:
    """Digests of a model's external data files, and a check that they have not changed since."""

    def __init__(self, directory: Path | None, locations: Iterable[str]) -> None:
        self._directory = directory
        self.digests: dict[str, str] = {}
        self._stamps: dict[str, Stamp] = {}
        for location in locations:
            self.digests[location], self._stamps[location] = self._look(location)

    def unchanged(self) -> bool:
        """Return whether nobody has written to the files since."""
        try:
            return all(self._stamp(location) == stamp for location, stamp in self._stamps.items())
        except ModelError:  # a missing file has changed
            return False

    def _look(self, location: str) -> tuple[str, Stamp]:
        with os.fdopen(self._open(location), "rb") as file:
            before = _stamp(file.fileno())
            return hashlib.file_digest(file, "sha256").hexdigest(), before

    def _stamp(self, location: str) -> Stamp:
        handle = self._open(location)
        try:
            return _stamp(handle)
        finally:
            os.close(handle)

    def _open(self, location: str) -> int:
        if self._directory is None:
            raise ModelError("external data has no directory", given=location)
        return open_inside(self._directory, location, location)


def _stamp(handle: int) -> Stamp:
    status = os.fstat(handle)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


_log = logging.getLogger("monograph")
_MANIFEST, _PACKS = "manifest", "packs"
_ANY = -1
"""A number of no variant, for the claim to compile one."""
_EXACT = "exact code"
"""The name of the text that tells why a model has no code for any shape."""
_BROKEN = (MonographError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError)
"""Errors that reading members of another format may raise."""

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
T = TypeVar("T")


@dataclass(frozen=True)
class ArtefactReaders:
    """Functions that make artefacts of the members of a file, given a function for weights."""

    exact: Callable[[Mapping[str, memoryview], Weights], CompiledArtefact]
    any_shape: Callable[[Mapping[str, memoryview], Weights], CompiledArtefact]


class CacheStore:
    """The compiled programs of one model, with one set of options, in a cache on disk."""

    def __init__(
        self,
        cache: DiskCache,
        source: UnreadModel,
        options: Mapping[str, Any],
        readers: ArtefactReaders,
    ) -> None:
        assert source.digest is not None
        self._readers = readers
        self._cache = cache
        self._source = source
        self._features = choose_features(options.get("features", ""))
        self._parts = {
            "format": str(FORMAT),
            "model": source.digest,
            "options": json.dumps(options, sort_keys=True),
            **({"values": json.dumps(source.values)} if source.values else {}),
        }
        self._weights = WeightStore(cache, self._features, source.digest)
        self._external: ExternalFiles | None = None
        """The external data files; None before they are known."""

    def signature(self) -> ModelSignature | None:
        """Return the inputs and outputs of the model, if they are stored."""
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
            external = ExternalFiles(self._source.directory, digests)
        except ModelError:
            return None  # reading the model reports what is wrong with its files
        if external.digests != digests:
            return None
        self._external = external
        return found

    def add_external_files(self, locations: Iterable[str]) -> None:
        """Compute digests of the external data files before they are used."""
        before = self._external
        try:
            self._external = ExternalFiles(self._source.directory, locations)
        except ModelError:
            self._external = None  # reading the model reports what is wrong with its files
            return
        if before is not None and before.digests != self._external.digests:
            raise ModelError(
                "external data of the model has changed since the session was made",
                given=", ".join(sorted(self._external.digests)),
                hint="load the model again",
            )

    def keep_signature(self, signature: ModelSignature) -> None:
        """Store the signature with the digests of the external data files."""
        if self._external is None or not self._external.unchanged():
            return
        manifest = {"signature": signature_to_json(signature), "beside": self._external.digests}
        self._cache.put(self._key(), {_MANIFEST: json.dumps(manifest).encode()})

    @contextmanager
    def claimed(self, shapes: Shapes | None, waiting: Callable[[], None]) -> Iterator[bool]:
        """Compile for these shapes while no other process does; True if another one just has.

        shapes: None for code for any shape.
        """
        if self._external is None:
            yield False
            return
        key = self._variant_key(_ANY) if shapes is None else self._program_key(shapes)
        with self._cache.claimed(key, waiting) as waited:
            yield waited

    def find(self, shapes: Shapes) -> Any:
        """Return the program that was compiled for these input shapes, if any."""
        if self._external is None:
            return None
        return self._read(self._program_key(shapes), self._readers.exact)

    def has(self, shapes: Shapes) -> bool:
        """Return True if a program for these input shapes seems to be stored."""
        return self._external is not None and self._cache.has(self._program_key(shapes))

    def find_variant(self, number: int) -> Any:
        """Return a variant of the code for any shape, if there are so many."""
        if self._external is None:
            return None
        return self._read(self._variant_key(number), self._readers.any_shape)

    def keep(self, shapes: Shapes, artefact: CompiledArtefact) -> Any:
        """Store what was compiled for these input shapes; return it as mapped from its file.

        Return None if it was not stored.
        """
        if not artefact.whole:
            host_kinds = artefact.layout.host_kinds if isinstance(artefact, Artefact) else ()
            kinds = ", ".join(sorted(set(host_kinds))) or "no single function"
            _log.info("the compiled model is not stored on disk, because of host steps (%s)", kinds)
            return None
        if self._external is None or not self._external.unchanged():
            return None
        return self._write(self._program_key(shapes), artefact, self._readers.exact)

    def keep_variant(self, number: int, artefact: CompiledArtefact) -> Any:
        """Store a variant of the code for any shape, as `keep` does."""
        if self._external is None or not self._external.unchanged():
            return None
        return self._write(self._variant_key(number), artefact, self._readers.any_shape)

    def exact_reason(self) -> str:
        """Return why the model has no code for any shape; "" if that is not known."""
        return self.note(_EXACT)

    def keep_exact_reason(self, reason: str) -> None:
        """Store why the model has no code for any shape, so that nobody compiles it in vain."""
        self.keep_note(_EXACT, reason)

    def note(self, name: str) -> str:
        """Return a text about the model that was stored; "" if there is none."""
        parts = None if self._external is None else self._cache.get(self._note_key(name))
        return "" if parts is None else bytes(parts[_MANIFEST]).decode(errors="replace")

    def keep_note(self, name: str, text: str) -> None:
        """Store a text about the model."""
        if self._external is not None and self._external.unchanged():
            self._cache.put(self._note_key(name), {_MANIFEST: text.encode()})

    def _read(self, key: str, of: Callable[[Mapping[str, memoryview], Weights], T]) -> T | None:
        members = self._cache.get(key)
        if members is None:
            return None
        try:
            packs = json.loads(bytes(members[_PACKS]))
            return of(members, partial(self._weights.find, packs))
        except MissingWeightsError:
            return None
        except _BROKEN:
            self._cache.forget(key)
            return None

    def _write(
        self,
        key: str,
        artefact: CompiledArtefact,
        of: Callable[[Mapping[str, memoryview], Weights], T],
    ) -> T | None:
        packs = self._weights.keep(artefact.weights)
        if packs is None:
            return None
        stored = artefact.members() | {_PACKS: json.dumps(packs).encode()}
        members = self._cache.put(key, stored)
        if members is None:
            return None
        return of(members, partial(self._weights.find, packs, mapped=True))

    def _note_key(self, name: str) -> str:
        assert self._external is not None
        return self._key(note=name, beside=json.dumps(self._external.digests))

    def _variant_key(self, number: int) -> str:
        assert self._external is not None
        return self._key(variant=str(number), beside=json.dumps(self._external.digests))

    def _program_key(self, shapes: Shapes) -> str:
        assert self._external is not None
        return self._key(shapes=_text(shapes), beside=json.dumps(self._external.digests))

    def _key(self, **parts: str) -> str:
        return make_key(self._features, **self._parts, **parts)


def open_store(
    source: UnreadModel,
    config: Config,
    names: Iterable[Any],
    options: Mapping[str, Any] | None,
    readers: ArtefactReaders,
) -> CacheStore | None:
    """Return the store of a model's compiled programs; None if nothing is stored.

    names: all names in the options. options: what decides the code, None if there is none to store.
    """
    if options is None or source.digest is None:
        return None
    cache = open_cache(config)
    if cache is None or not all(isinstance(x, str) for x in names):
        return None
    return CacheStore(cache, source, options, readers)


def store_options(
    config: Config, dims: Mapping[str, int], donate: Mapping[str, str]
) -> dict[str, Any]:
    """Return the options that decide what is compiled, besides the model and shapes."""
    return {
        "dims": dict(dims),
        "donate": dict(donate),
        "features": choose_features(config.cpu_isa).name,
        "threads": choose_threads(config.threads),
        "winograd": config.winograd,
        "checked": config.checked,
        "onnx": _onnx_version(),
        "numpy": np.__version__,
    }


@cache
def _onnx_version() -> str:
    """Return a digest of the file with onnx's version. To import its metadata takes longer."""
    spec = find_spec("onnx")
    if spec is None or spec.origin is None:
        return ""
    try:
        return hashlib.sha256(Path(spec.origin).with_name("version.py").read_bytes()).hexdigest()
    except OSError:
        return spec.origin


def gpu_options(
    config: Config, dims: Mapping[str, int], donate: Mapping[str, str]
) -> dict[str, Any]:
    """Return the options that decide what is compiled for a GPU."""
    return {
        "dims": dict(dims),
        "donate": dict(donate),
        "precision": config.precision,
        "tf32": config.tf32,
        "checked": config.checked,
    }


def _text(shapes: Shapes) -> str:
    return json.dumps({name: list(shape) for name, shape in sorted(shapes.items())})
