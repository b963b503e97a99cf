"""The models of a front: found in the same folder as those of the replicas, which it asks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from monograph.errors import ModelError, MonographError
from monograph.serve.failures import unimplemented
from monograph.serve.folder import Found
from monograph.serve.remote.messages import LanguageDescription, Link, RemoteFailure
from monograph.serve.remote.models import RemoteLanguageModel, RemoteTensorModel
from monograph.serve.repository import Repository, ServedModel
from monograph.serve.settings import ServerSettings

_log = logging.getLogger("monograph.serve")


class RemoteRepository(Repository):
    """The models of a front, each behind a link to its replicas."""

    def __init__(self, settings: ServerSettings, links: Mapping[str, Link]) -> None:
        super().__init__(settings)
        self._links = links
        self._retries = settings.ray.front.retries

    def load_all(self) -> None:
        """Wait for the replicas of all models at once; a model is ready when its first one is."""
        threads = [
            threading.Thread(target=self._load_one, args=(name,), name=f"find {name}", daemon=True)
            for name in self._links
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.loaded = True

    def _load_one(self, name: str) -> None:
        try:
            self._load(name)
        except MonographError as e:
            _log.error("model %s is not available: %s", name, e)

    def load(self, name: str) -> None:
        """Refuse: replicas come and go with the models that they started with."""
        raise unimplemented("loading on Ray (deploy the application again)")

    def unload(self, name: str) -> None:
        """Refuse, as `load` does."""
        raise unimplemented("unloading on Ray (deploy the application again)")

    def open_model(self, found: Found) -> ServedModel:
        """Ask a replica about a version of a model."""
        link, limits = self._links[found.name], self.settings.limits
        about = link.describe(found.version)
        if isinstance(about, RemoteFailure):
            raise ModelError(about.message)
        if isinstance(about, LanguageDescription):
            return RemoteLanguageModel(found, about, link, limits, self._retries)
        return RemoteTensorModel(found, about, link, limits, self._retries)
