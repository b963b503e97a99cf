"""Code for the shapes of requests: compiled before a model is ready, or apart from requests."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from monograph.errors import ConfigError, MonographError
from monograph.ir import TensorType
from monograph.runtime.feeds import Port
from monograph.runtime.inputs import make_inputs
from monograph.serve.batches import Arrays
from monograph.serve.settings import ModelSettings
from monograph.serve.statistics import ModelStatistics
from monograph.session import Session, load

_log = logging.getLogger("monograph.serve")
TRIED_SIZES = (64, 32, 16, 8, 1, 128, 224, 512)
"""Sizes of open dimensions that are tried, one after the other, to prepare code for any shape."""
REFERENCE_SECONDS = 0.05
"""The longest run of the reference that answers requests whose sizes have no code."""
REFERENCE_FLOPS = 2e7
"""The most operations of a model for which the reference is tried."""
ROWS = (1, 3)
"""Sizes of the first open dimension, usually the batch: 1 has code of its own."""
MOST_KNOWN = 4096
Key = tuple[tuple[int, ...], ...]


class Preparation:
    """The shapes that a model has code for, and threads that compile for others."""

    def __init__(
        self,
        session: Session,
        settings: ModelSettings,
        path: Path,
        name: str,
        statistics: ModelStatistics,
    ) -> None:
        self._statistics = statistics
        self._session = session
        self._settings = settings
        self._path = path
        self._name = name
        self.example: Arrays | None = None
        """Inputs of a run that succeeded."""
        self._known: set[Key] = set()
        self._preparing: set[Key] = set()
        self._deciding = threading.Lock()
        """Held while one of several workers looks for the code of its feeds."""
        self._symbols = [d for p in session.inputs for d in p.shape or () if isinstance(d, str)]

    def prepare(self) -> None:
        """Compile for the declared shapes, the warm-up file, and for any shape."""
        for feeds in self._declared():
            self._warm(feeds)
        for size in self._sizes():
            if self._warm_assumed(size):
                return
        if self.example is None:
            _log.warning(
                "%s has no code yet: declare `shapes` in its settings, or a `warm_up` file",
                self._name,
            )

    def covers(self, feeds: Arrays) -> bool:
        """Return True if a run on these feeds compiles nothing; else start to compile aside."""
        key = _key(feeds)
        if key in self._known:
            return True
        with self._deciding:
            if self._preparing:  # the session is locked while it compiles
                return False
            if self._session.has_code(feeds):
                self._remember(key)
                return True
            self._preparing.add(key)
        copies = {name: np.zeros(x.shape, x.dtype) for name, x in feeds.items()}
        name = f"prepare {self._name}"
        threading.Thread(target=self._compile, args=(key, copies), name=name, daemon=True).start()
        return False

    def fast_reference(self) -> Session | None:
        """Return the reference, for requests whose sizes have no code, if it is fast enough."""
        fixed = not self._symbols and all(p.shape is not None for p in self._session.inputs)
        if self.example is None or fixed or self._path.suffix == ".mono":
            return None
        if any(not guards for guards in self._session.stats.get("guards", ())):
            return None  # there is code for all sizes; the reference would import the compiler
        flops = self._session.executable(self.example).flops
        if not flops <= REFERENCE_FLOPS:
            return None
        made = load(self._path, "reference", dims=dict(self._settings.dims) or None)
        for _ in range(2):
            started = time.perf_counter()
            made.run(self.example)
            took = time.perf_counter() - started
        return made if took < REFERENCE_SECONDS else None

    def _compile(self, key: Key, feeds: Arrays) -> None:
        """Compile for the shapes of a request, apart from requests."""
        try:
            self._session.executable(feeds)
            self._statistics.compiled_aside += 1
        except MonographError as e:
            # The next request of these shapes runs, and gets this error.
            _log.warning("no code for %s of %s: %s", key, self._name, e)
        finally:
            self._remember(key)
            self._preparing.discard(key)

    def _remember(self, key: Key) -> None:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known.add(key)

    def _warm(self, feeds: Arrays) -> None:
        self._session.run(feeds)
        self.example = {p.name: feeds[p.name] for p in self._session.inputs}
        self._remember(_key(self.example))

    def _warm_assumed(self, sizes: Mapping[str, int]) -> bool:
        """Run on inputs of assumed sizes; return False if the model takes none such."""
        lead = self._symbols[0] if self._symbols else ""
        for count in ROWS:
            named = {**sizes, lead: count} if lead and lead not in sizes else sizes
            ports = [_sized(p, named) for p in self._session.inputs]
            feeds = make_inputs(ports, {}, 0, size=named.get("", 1)).feeds
            try:
                self._warm(feeds)
            except MonographError as e:
                listed = ", ".join(f"{name}: {[*x.shape]}" for name, x in feeds.items())
                _log.info("%s was not prepared for %s: %s", self._name, listed, e)
                return False
        return True

    def _declared(self) -> Iterator[Arrays]:
        """Yield inputs of the shapes that the settings declare, and those of the warm-up file."""
        inputs = self._session.inputs
        for shapes in self._settings.shapes:
            if unknown := sorted(set(shapes) - {p.name for p in inputs}):
                raise ConfigError("`shapes` names no input", given=f"{unknown[0]} of {self._name}")
            ports = [_shaped(p, shapes[p.name]) if p.name in shapes else p for p in inputs]
            yield make_inputs(ports, {}, 0).feeds
        if self._settings.warm_up:
            path = self._path.parent / self._settings.warm_up
            if not path.is_file():
                raise ConfigError("there is no such warm-up file", given=str(path))
            with np.load(path, allow_pickle=False) as file:
                own = {p.name for p in inputs}
                feeds = {k.removeprefix("in:"): file[k] for k in file.files}
                yield {name: x for name, x in feeds.items() if name in own}

    def _sizes(self) -> list[dict[str, int]]:
        """Return sets of sizes that may suit code for any shape, the likely ones first."""
        if packaged := self._session.packaged_sizes:
            return packaged
        open_ = self._symbols or any(p.shape is None for p in self._session.inputs)
        return [{"": size} for size in TRIED_SIZES] if open_ else [{"": 1}]


def _key(feeds: Arrays) -> Key:
    return tuple([x.shape for x in feeds.values()])


def _sized(port: Port, sizes: Mapping[str, int]) -> Port:
    """Return an input with sizes for its open dimensions; "" is the size of those without."""
    if port.shape is None:
        return port
    default = sizes.get("")
    new = [d if isinstance(d, int) else sizes.get(d, default or d) for d in port.shape]
    return _shaped(port, new)


def _shaped(port: Port, shape: Sequence[int | str]) -> Port:
    type_ = port.type
    return Port(port.name, type_.with_shape(shape)) if isinstance(type_, TensorType) else port
