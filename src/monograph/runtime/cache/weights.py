"""Large constants on disk, once for all programs of a model. Shapes and processes share them.

A *pack* is a cache entry with the weights that one program was the first to need; parts are named
by the digests of their bytes. An index of the model tells which pack has which weight. A program
names its packs, so an index that is lost costs disk space and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from monograph.codegen.common.shared_weights import share_weight, weight_in_process
from monograph.codegen.llvm.module.bounds_checks import SLACK
from monograph.codegen.llvm.module.features import Features
from monograph.ir import Array
from monograph.runtime.cache.object_cache import DiskCache, make_key

_INDEX, _SLACK = "index", "slack"
PACK_BYTES = 256 << 20
"""The bytes from which on a pack is full: readers check several packs side by side."""
READERS = 8
_mapped: weakref.WeakValueDictionary[str, Array] = weakref.WeakValueDictionary()
"""The weights that this process has mapped from files, by digest."""


class MissingWeightsError(Exception):
    """A pack that a program needs is not on disk any more."""


class WeightStore:
    """The weights of one model in a cache on disk."""

    def __init__(self, cache: DiskCache, features: Features, model: str) -> None:
        """model: the digest of the model file."""
        self._cache = cache
        self._features = features
        self._index_key = make_key(features, weights=model)

    def keep(self, weights: Mapping[str, Array]) -> dict[str, str] | None:
        """Store the weights that are not on disk; return the pack of each, None if it fails."""
        known = self._index() if weights else {}
        packs = {d: known[d] for d in weights if d in known and self._cache.touch(known[d])}
        new = [d for d in weights if d not in packs]
        if not new:
            return packs
        for group in _groups(weights, new):
            digest = hashlib.sha256(" ".join(group).encode()).hexdigest()
            pack = make_key(self._features, pack=digest)
            # Vectors may read beyond the last weight.
            parts = self._cache.put(pack, {**group, _SLACK: bytes(SLACK)})
            if parts is None:
                return None
            _share(parts, group)
            packs |= dict.fromkeys(group, pack)
        self._cache.put(self._index_key, {_INDEX: json.dumps(known | packs).encode()})
        return packs

    def find(
        self, packs: Mapping[str, str], digests: Sequence[str], mapped: bool = False
    ) -> dict[str, Array]:
        """Return weights by digest: those of this process, else those of their packs.

        mapped: return those of files only.
        """
        held: dict[str, Array] = {}
        missing: dict[str, list[str]] = {}
        for digest in digests:
            found = _mapped.get(digest)
            if found is None and not mapped:
                found = weight_in_process(digest)
            if found is None:
                missing.setdefault(packs[digest], []).append(digest)
            else:
                held[digest] = found
        for pack, parts in zip(missing, self._read(list(missing)), strict=True):
            if parts is None:
                raise MissingWeightsError(pack)
            held |= _share(parts, missing[pack])
        return {d: held[d] for d in digests}

    def _read(self, packs: Sequence[str]) -> list[dict[str, memoryview] | None]:
        """Return the parts of packs; digests of several are checked side by side."""
        if len(packs) < 2:
            return [self._cache.get(pack) for pack in packs]
        with ThreadPoolExecutor(min(len(packs), READERS)) as readers:
            return list(readers.map(self._cache.get, packs))

    def _index(self) -> dict[str, str]:
        parts = self._cache.get(self._index_key)
        try:
            found = {} if parts is None else json.loads(bytes(parts[_INDEX]))
            return {str(digest): str(pack) for digest, pack in found.items()}
        except (ValueError, KeyError, AttributeError):
            self._cache.forget(self._index_key)
            return {}


def _groups(weights: Mapping[str, Array], new: Sequence[str]) -> Iterator[dict[str, Array]]:
    """Yield the new weights in groups of about `PACK_BYTES`, one group in memory at a time."""
    group: dict[str, Array] = {}
    nbytes = 0
    for digest in new:
        group[digest] = weights[digest]
        nbytes += group[digest].nbytes
        if nbytes >= PACK_BYTES:
            yield group
            group, nbytes = {}, 0
    if group:
        yield group


def _share(parts: Mapping[str, memoryview], digests: Iterable[str]) -> dict[str, Array]:
    """Return weights that were mapped from a file, and let programs of this process use them."""
    made = {d: np.frombuffer(parts[d], np.uint8) for d in digests}
    for digest, data in made.items():
        _mapped[digest] = data
        share_weight(digest, data)
    return made
