"""A model that maps tensors to tensors: its session, its queue, and the shapes it has code for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from monograph.errors import ConfigError, MonographError
from monograph.ir import Array
from monograph.runtime.cpu.pool import shared_pool
from monograph.runtime.feeds import Port, check_feeds
from monograph.serve.batch_workers import MOST as MOST_WORKERS
from monograph.serve.batches import Arrays, BatchAxes, row_difference
from monograph.serve.datatypes import NAMES
from monograph.serve.failures import Failure, RequestError, invalid
from monograph.serve.folder import Found
from monograph.serve.preparation import Preparation
from monograph.serve.runner import Runner
from monograph.serve.served import ServedTensors
from monograph.serve.settings import Limits, ModelSettings, state_error
from monograph.serve.statistics import ModelStatistics, fallbacks_of, memory_of
from monograph.session import Session, load

MOST_DIFFERENCE = 1e-3
"""The largest difference of a row from the row alone, relative to the largest element."""
MOST_SHAPES = 256
"""The most sets of shapes that a session keeps bound."""


class TensorModel(ServedTensors):
    """One version of a model, ready to answer requests."""

    def __init__(self, found: Found, settings: ModelSettings, limits: Limits) -> None:
        self.name, self.version, self.platform = found.name, found.version, "monograph_onnx"
        self.settings = settings
        self.statistics = ModelStatistics()
        self._counting = threading.Lock()
        """Held while one of several workers counts a fallback."""
        self.session = _open(found.path, settings)
        if self.session.donate:
            self.session.close()
            raise state_error(self.session.donate)
        self.inputs, self.outputs = self.session.inputs, self.session.outputs
        self._optional = self.session.optional_inputs
        _check_types((*self.inputs, *self.outputs))
        self._expected = [(p.name, p.accepted, p.shape) for p in self.inputs]
        self.axes, self.unbatched = self._batch_axes()
        self._preparation = Preparation(
            self.session, settings, found.path, found.name, self.statistics
        )
        self._preparation.prepare()
        self._stand_in = self._preparation.fast_reference()
        self._independence = self._measured_independence()
        self.runner = Runner(
            self._run,
            self._names(),
            self.statistics,
            limits,
            self.axes,
            settings.max_batch,
            found.name,
            *_workers(self.session, settings),
        )

    @property
    def max_batch(self) -> int:
        """The most rows of a batch; 0 if requests do not share runs."""
        return self.settings.max_batch if self.axes is not None else 0

    @property
    def independence(self) -> str:
        """Return "bits" if rows of a batch are those of runs alone bit for bit, else "tolerance".

        Exact code that replaces the code of one batch size may round otherwise.
        """
        background = self.session.stats.get("background")
        replaced = isinstance(background, dict) and background["done"] > 0
        return "tolerance" if replaced and self._independence else self._independence

    @property
    def short(self) -> bool:
        """True if runs are so short that nobody looks whether their client is still there."""
        return self.runner.short

    @property
    def pending(self) -> int:
        """The number of requests that wait or run."""
        return self.runner.pending

    @property
    def memory(self) -> dict[str, int]:
        """The bytes of the model by their use."""
        found = memory_of(self.session.stats)
        return {**found, "queue": self.runner.waiting_bytes}

    @property
    def fallbacks(self) -> dict[str, int]:
        """The runs that did not use the code prepared for them, by reason."""
        return fallbacks_of(self.session.stats, self.statistics.fallbacks)

    async def infer(self, feeds: Mapping[str, Any], deadline: float) -> list[Array]:
        """Return the outputs for the inputs of a request, in model order."""
        started = time.monotonic()
        try:
            checked = self.checked(feeds)
        except MonographError:
            self.statistics.failed("invalid", time.monotonic() - started)
            raise
        return await self.runner.submit(checked, deadline)

    def close(self) -> None:
        """Refuse what waits, and release code and memory."""
        self.runner.close()
        self.session.close()

    def checked(self, feeds: Mapping[str, Any]) -> Arrays:
        """Return the feeds in the order of the model; raise the session's error for wrong ones."""
        if len(feeds) == len(self._expected):
            checked: Arrays = {}
            for name, type_, shape in self._expected:
                x = feeds.get(name)
                if x is None or x.dtype != type_.dtype.numpy or not _fits(x.shape, shape):  # type: ignore[union-attr]
                    break
                checked[name] = x
            else:
                return checked
        return check_feeds(self.inputs, feeds, self._optional)

    def _batch_axes(self) -> tuple[BatchAxes | None, str]:
        """Return the batch axes, or None and the reason why requests do not share runs."""
        if not self.settings.batch:
            return None, "the settings say so"
        proof = self.session.batch_axes()
        return (BatchAxes(proof.inputs, proof.outputs), "") if proof.holds else (None, str(proof))

    def _measured_independence(self) -> str:
        """Return "bits" if rows of a batch are those of runs alone bit for bit, or "tolerance".

        Requests share no runs where a row differs by more than rounding could.
        """
        example = self._preparation.example
        if self.axes is None or example is None:
            return ""
        difference = row_difference(self.session.run, example, self.axes, self._names())
        if difference is None:
            return ""
        if difference > MOST_DIFFERENCE:
            self.axes, self.unbatched = None, f"rows of a batch differ by {difference:.1e}"
            return ""
        return "bits" if difference == 0 else "tolerance"

    def _names(self) -> list[str]:
        return [p.name for p in self.outputs]

    def _run(self, feeds: Arrays) -> list[Array]:
        """Run compiled code; where sizes have none yet, the reference if it is fast enough."""
        if self._preparation.covers(feeds):
            return self.session.run(feeds)
        if self._stand_in is not None:
            self._fell_back("reference")
            return self._stand_in.run(feeds)
        self._fell_back("refused")
        raise RequestError(
            Failure.UNAVAILABLE,
            "the code for these sizes is being prepared; send the request again in a moment",
            hint="declare the sizes by `shapes` in the settings of the model",
        )

    def _fell_back(self, reason: str) -> None:
        with self._counting:
            self.statistics.fallbacks[reason] += 1


def _open(path: Path, settings: ModelSettings) -> Session:
    """Load a model; open dimensions get code for any shape where the target has such code."""
    options: dict[str, Any] = {"threads": settings.threads, "max_cached_shapes": MOST_SHAPES}
    package = path.suffix == ".mono"
    if package:
        return load(path, settings.target)
    target = settings.target or "cpu"
    session = load(path, target, dims=dict(settings.dims) or None, **options)
    is_open = any(isinstance(d, str) for p in session.inputs for d in p.shape or ())
    if not is_open or session.config.target != "cpu":
        return session
    any_shape = load(
        path, target, dims=dict(settings.dims) or None, specialise=settings.specialise, **options
    )
    session.close()
    return any_shape


def _workers(session: Session, settings: ModelSettings) -> tuple[int, Callable[[int], None]]:
    """Return the most runs at a time, and what is told their usual number."""
    threads = session.threads if session.config.target == "cpu" else 1
    if threads < 2:
        return 1, lambda more: None
    most = min(threads, settings.parallel_batches or MOST_WORKERS)
    return most, lambda more: shared_pool().expect(more)


def _check_types(ports: tuple[Port, ...]) -> None:
    for port in ports:
        if port.type is not None and port.dtype not in NAMES:
            raise ConfigError(
                "the protocol has no such type",
                expected=", ".join(map(str, NAMES)),
                given=str(port),
            )


def _fits(given: tuple[int, ...], shape: tuple[int | str, ...] | None) -> bool:
    if shape is None:
        return True
    if len(given) != len(shape):
        return False
    pairs = zip(given, shape, strict=True)
    return all(have == want or isinstance(want, str) for have, want in pairs)


def tensor_model(model: object, name: str) -> ServedTensors:
    """Return a model that takes tensors; an error for a language model."""
    if not isinstance(model, ServedTensors):
        raise invalid(f"model {name!r} generates text: send requests to /v1/completions")
    return model
