"""The models of a server: found on disk, loaded, replaced and unloaded while requests run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from monograph.errors import MonographError
from monograph.serve.failures import Failure, RequestError
from monograph.serve.folder import Found, Versions, chosen_versions, find_models
from monograph.serve.settings import ServerSettings
from monograph.serve.statistics import ModelStatistics
from monograph.serve.tensors import TensorModel

_log = logging.getLogger("monograph.serve")
LOADING, READY, UNLOADING, UNAVAILABLE = "LOADING", "READY", "UNLOADING", "UNAVAILABLE"


class ServedModel(Protocol):
    """One version of a model that answers requests."""

    name: str
    version: str
    platform: str
    statistics: ModelStatistics

    @property
    def pending(self) -> int:
        """The number of requests that wait or run."""

    @property
    def memory(self) -> Mapping[str, int]:
        """The bytes of the model by their use."""

    @property
    def counts(self) -> Mapping[str, Any]:
        """Counts of sequences, slots and steps; nothing for a model of tensors."""

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """The runs that did not use the code prepared for them, by reason."""

    def close(self) -> None:
        """Refuse what waits, and release code and memory."""


@dataclass
class Entry:
    """One version of a model in the repository."""

    found: Found
    state: str = UNAVAILABLE
    reason: str = ""
    model: ServedModel | None = None

    def as_dict(self) -> dict[str, str]:
        """Return the form of the protocol."""
        found = self.found
        return {
            "name": found.name, "version": found.version,
            "state": self.state, "reason": self.reason,
        }  # fmt: skip


class Repository:
    """The models of a server. Loading and unloading may be called in any thread."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.draining = False
        self.loaded = False
        """True after the first load of all models."""
        self._lock = threading.RLock()
        """Held while models are loaded and unloaded; lookups take no lock."""
        self._on_disk: dict[str, Versions] = find_models(settings)
        self._entries: dict[str, dict[str, Entry]] = {}

    def load_all(self) -> None:
        """Load all models; one that fails is unavailable with its reason, the others go on."""
        with self._lock:
            for name in self._on_disk:
                try:
                    self._load(name)
                except MonographError as e:
                    _log.error("model %s was not loaded: %s", name, e)
            self.loaded = True

    def load(self, name: str) -> None:
        """Load a model again from disk; requests go to the old one until the new one is ready."""
        with self._lock:
            self._on_disk = find_models(self.settings)
            if name not in self._on_disk:
                raise RequestError(Failure.UNKNOWN, f"there is no model {name!r} to load")
            try:
                self._load(name)
            except RequestError:
                raise
            except MonographError as e:
                raise RequestError(Failure.INVALID, f"model {name!r} was not loaded: {e}") from e

    def unload(self, name: str) -> None:
        """Unload all versions of a model after the requests that it has."""
        with self._lock:
            if name not in self._entries:
                raise RequestError(Failure.UNKNOWN, f"there is no model {name!r} to unload")
            for entry in self._entries[name].values():
                model, entry.model = entry.model, None
                entry.state = UNLOADING if model is not None else UNAVAILABLE
                if model is not None:
                    _close(model)
                entry.state, entry.reason = UNAVAILABLE, "unloaded"

    def get(self, name: str, version: str = "") -> ServedModel:
        """Return a version of a model, the newest by default."""
        if self.draining:
            raise RequestError(Failure.UNAVAILABLE, "the server is shutting down")
        entry = self.entry(name, version)
        model = entry.model
        if model is None:
            reason = f": {entry.reason}" if entry.reason else ""
            state = entry.state.lower()
            raise RequestError(Failure.UNAVAILABLE, f"model {name!r} is {state}{reason}")
        return model

    def entry(self, name: str, version: str = "") -> Entry:
        """Return the entry of a version, the newest that is ready by default."""
        versions = self._entries.get(name)
        if versions is None and name in self._on_disk:
            newest = max(self._on_disk[name], key=int)
            return Entry(self._on_disk[name][newest], UNAVAILABLE if self.loaded else LOADING)
        if versions is None:
            raise RequestError(Failure.UNKNOWN, f"there is no model {name!r}")
        if not version and len(versions) == 1:
            return next(iter(versions.values()))
        if not version:
            ready = [v for v, e in versions.items() if e.model is not None]
            version = max(ready or versions, key=int)
        if version not in versions:
            raise RequestError(Failure.UNKNOWN, f"model {name!r} has no version {version!r}")
        return versions[version]

    def entries(self) -> list[Entry]:
        """Return all versions of all models: those that were loaded, and others on disk."""
        names = {**self._on_disk, **self._entries}
        return [
            entry
            for name in sorted(names)
            for entry in (self._entries.get(name) or {"": self.entry(name)}).values()
        ]

    def models(self) -> list[ServedModel]:
        """Return the models that are ready."""
        found = [e.model for versions in list(self._entries.values()) for e in versions.values()]
        return [model for model in found if model is not None]

    @property
    def ready(self) -> bool:
        """True if all models that were to be loaded are ready."""
        states = [e.state for v in list(self._entries.values()) for e in v.values()]
        bad = [s for s in states if s not in (READY, UNAVAILABLE)]
        failed = any(
            e.reason and e.reason != "unloaded"
            for v in list(self._entries.values())
            for e in v.values()
            if e.model is None
        )
        return self.loaded and not self.draining and not bad and not failed

    @property
    def pending(self) -> int:
        """The number of requests that wait or run."""
        return sum(model.pending for model in self.models())

    def close(self) -> None:
        """Unload everything."""
        with self._lock:
            for name in list(self._entries):
                self.unload(name)

    def _load(self, name: str) -> None:
        settings = self.settings.for_model(name)
        old = self._entries.get(name, {})
        wanted = list(chosen_versions(self._on_disk[name], settings.versions))
        made: dict[str, Entry] = {}
        failed: MonographError | None = None
        for found in wanted:
            before = old.get(found.version)
            if before is None or before.model is None:
                old = {**old, found.version: Entry(found, LOADING)}
                self._entries[name] = old
            try:
                made[found.version] = Entry(found, READY, "", self.open_model(found))
            except MonographError as e:
                failed = e
                kept = before.model if before is not None else None
                state = READY if kept is not None else UNAVAILABLE
                made[found.version] = Entry(found, state, str(e), kept)
            except Exception as e:
                _log.exception("model %s was not loaded", name)
                failed = MonographError(f"the model was not loaded: {type(e).__name__}")
                made[found.version] = Entry(found, UNAVAILABLE, failed.message)
        self._entries[name] = made
        kept_models = [e.model for e in made.values()]
        for entry in old.values():
            if entry.model is not None and not any(entry.model is m for m in kept_models):
                _close(entry.model)
        if failed is not None:
            raise failed

    def open_model(self, found: Found) -> ServedModel:
        """Load a version of a model."""
        settings = self.settings.for_model(found.name)
        if found.decoder:
            from monograph.serve.language.generation import LanguageModel

            return LanguageModel(found, settings, self.settings.limits)
        return TensorModel(found, settings, self.settings.limits)


def _close(model: ServedModel) -> None:
    """Close a model in the background, after the requests that hold it have ended."""
    threading.Thread(target=model.close, name=f"close {model.name}").start()
