"""The operations of the Open Inference Protocol, the same for HTTP and gRPC."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import monograph
from monograph.ir import Array
from monograph.runtime.feeds import Port
from monograph.serve.datatypes import NAMES
from monograph.serve.failures import Failure, RequestError, invalid, unimplemented
from monograph.serve.repository import READY, Repository, ServedModel
from monograph.serve.served import ServedTensors
from monograph.serve.tensors import tensor_model

SERVER = "monograph"
EXTENSIONS = (
    "model_repository",
    "model_repository(unload_dependents)",
    "model_configuration",
    "statistics",
    "binary_tensor_data",
    "parameters",
    "schedule_policy",
)
_CONFIG_TYPES = {name: f"TYPE_{'STRING' if name == 'BYTES' else name}" for name in NAMES.values()}
_REFUSED = ("sequence_id", "sequence_start", "sequence_end")
"""Parameters of models with state, which are not served."""


@dataclass(slots=True)
class InferCall:
    """A request for outputs: the inputs by name, and the names of the wanted outputs."""

    feeds: dict[str, Array]
    id: str = ""
    outputs: Sequence[str] = ()
    """The names of the wanted outputs; all of them if there is none."""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class InferAnswer:
    """The outputs of a request, by name and in the wanted order."""

    name: str
    version: str
    id: str
    outputs: list[tuple[str, Array]]


class Protocol2:
    """The operations of the protocol on a repository."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self._seconds = repository.settings.limits.request_seconds

    # Server

    def live(self) -> bool:
        """Return True: a process that answers is alive."""
        return True

    def ready(self) -> bool:
        """Return True if all models that were to be loaded are ready."""
        return self.repository.ready

    def server_metadata(self) -> dict[str, Any]:
        """Return the name, the version and the extensions of the server."""
        version = monograph.__version__
        return {"name": SERVER, "version": version, "extensions": list(EXTENSIONS)}

    # Models

    def model_ready(self, name: str, version: str) -> bool:
        """Return True if a version of a model is ready; raise an error for an unknown one."""
        entry = self.repository.entry(name, version)
        return entry.state == READY and not self.repository.draining

    def model_metadata(self, name: str, version: str) -> dict[str, Any]:
        """Return the inputs and outputs of a model."""
        model = self.repository.get(name, version)
        versions = [e.found.version for e in self.repository.entries() if e.found.name == name]
        inputs, outputs = _ports(model)
        return {
            "name": name,
            "versions": versions,
            "platform": model.platform,
            "inputs": [_described(p) for p in inputs],
            "outputs": [_described(p) for p in outputs],
        }

    def model_config(self, name: str, version: str) -> dict[str, Any]:
        """Return the configuration of a model in the form of Triton."""
        model = self.repository.get(name, version)
        batch = model.max_batch if isinstance(model, ServedTensors) else 0
        axes = model.axes if isinstance(model, ServedTensors) else None
        first = axes is not None and {*axes.inputs.values(), *axes.outputs.values()} == {0}
        all_have = axes is not None and len(axes.inputs) == len(_ports(model)[0])
        skipped = 1 if first and all_have and batch else 0
        inputs, outputs = _ports(model)
        found: dict[str, Any] = {
            "name": name,
            "platform": model.platform,
            "backend": SERVER,
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": batch if skipped else 0,
            "input": [_config_of(p, skipped) for p in inputs],
            "output": [_config_of(p, skipped) for p in outputs],
        }
        if skipped:
            found["dynamic_batching"] = {}
        return found

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the statistics of a model, or of all."""
        if name:
            models = [self.repository.get(name, version)]
        else:
            models = self.repository.models()
        return {
            "model_stats": [
                {"name": m.name, "version": m.version, **m.statistics.as_dict(), **_batching(m)}
                for m in models
            ]
        }

    async def infer(
        self, name: str, version: str, call: InferCall, until: float | None = None
    ) -> InferAnswer:
        """Run a model for a request; the client waits no longer than `until`."""
        deadline = min(self.deadline(call.parameters), math.inf if until is None else until)
        try:
            return await self._infer(name, version, call, deadline)
        except RequestError as e:
            if e.kind is not Failure.UNAVAILABLE or self.repository.draining:
                raise
            before = self.repository.get(name, version)  # another one if it was replaced meanwhile
            if before is e.__dict__.get("model"):
                raise
        return await self._infer(name, version, call, deadline)

    async def _infer(
        self, name: str, version: str, call: InferCall, deadline: float
    ) -> InferAnswer:
        model = tensor_model(self.repository.get(name, version), name)
        names = [p.name for p in model.outputs]
        wanted = call.outputs or names
        if unknown := [n for n in wanted if n not in names]:
            listed = ", ".join(names)
            raise invalid(f"model {name!r} has no output {unknown[0]!r}; it has {listed}")
        try:
            outputs = await model.infer(call.feeds, deadline)
        except RequestError as e:
            e.__dict__["model"] = model
            raise
        found = dict(zip(names, outputs, strict=True))
        return InferAnswer(name, model.version, call.id, [(n, found[n]) for n in wanted])

    def deadline(self, parameters: Mapping[str, Any]) -> float:
        """Return the deadline of a request."""
        return time.monotonic() + self.seconds(parameters)

    def seconds(self, parameters: Mapping[str, Any]) -> float:
        """Return the time that a request has; `timeout` is in microseconds."""
        if not parameters:
            return self._seconds
        for name in _REFUSED:
            if parameters.get(name):
                raise unimplemented(f"parameter {name!r} (a model with state)")
        timeout = parameters.get("timeout", 0)
        if not isinstance(timeout, int) or timeout < 0:
            raise invalid(f"parameter 'timeout' must be microseconds >= 0, got {timeout!r}")
        return min(timeout / 1e6, self._seconds) if timeout else self._seconds

    # Repository

    def index(self, ready: bool = False) -> list[dict[str, str]]:
        """Return the models of the repository with their states."""
        found = [entry.as_dict() for entry in self.repository.entries()]
        return [e for e in found if e["state"] == READY] if ready else found

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model, or load it again, without holding up requests."""
        if parameters:
            raise unimplemented("a model or a configuration in a load request")
        await asyncio.to_thread(self.repository.load, name)

    async def unload(self, name: str) -> None:
        """Unload a model."""
        await asyncio.to_thread(self.repository.unload, name)


def _batching(model: ServedModel) -> dict[str, Any]:
    """Return how requests of a model share runs, and what shows that they do not disturb it."""
    if not isinstance(model, ServedTensors):
        return {"generated_tokens": model.statistics.generated, **model.counts}
    axes = model.axes
    found: dict[str, Any] = {"enabled": axes is not None, "independence": model.independence}
    if axes is None:
        found["reason"] = model.unbatched
    else:
        found |= {"inputs": dict(axes.inputs), "outputs": dict(axes.outputs)}
    return {"batching": found}


def _ports(model: object) -> tuple[Sequence[Port], Sequence[Port]]:
    return (model.inputs, model.outputs) if isinstance(model, ServedTensors) else ((), ())


def _sizes(port: Port) -> list[int]:
    return [d if isinstance(d, int) else -1 for d in port.shape or ()]


def _datatype(port: Port) -> str:
    return NAMES[port.dtype] if port.dtype is not None else "BYTES"


def _described(port: Port) -> dict[str, Any]:
    return {"name": port.name, "datatype": _datatype(port), "shape": _sizes(port)}


def _config_of(port: Port, skipped: int) -> dict[str, Any]:
    return {
        "name": port.name,
        "data_type": _CONFIG_TYPES[_datatype(port)],
        "dims": _sizes(port)[skipped:],
    }
