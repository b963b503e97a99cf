"""The application of Ray Serve: a front that answers HTTP, and a deployment for each model."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from monograph.errors import ConfigError
from monograph.serve.folder import find_models
from monograph.serve.http.app import HttpApp
from monograph.serve.keys import ApiKeys
from monograph.serve.logs import set_up_logs
from monograph.serve.protocol import Protocol2
from monograph.serve.remote.host import ModelHost
from monograph.serve.remote.messages import (
    Description,
    GenerateAttempt,
    InferAttempt,
    InferReply,
    RemoteFailure,
    TokenReply,
)
from monograph.serve.remote.repository import RemoteRepository
from monograph.serve.scaling import HEAD, ModelScaling
from monograph.serve.settings import ModelSettings, ServerSettings, read_settings
from monograph.serve.tracing import make_traces

try:
    from ray import serve
    from ray.serve import Application
except ImportError as e:
    raise ImportError("monograph.serve.ray needs Ray: pip install 'monograph[ray]'") from e

from monograph.serve.ray.link import RayLink

_log = logging.getLogger("monograph.serve")
FRONT = "front"
HEAD_RESOURCE = "node:__internal_head__"
"""The resource that Ray gives to the node of its controller."""
ARGUMENTS = {"models", "config"}


def app(arguments: Mapping[str, Any]) -> Application:
    """Return the application for a folder of models.

    arguments: "models", the folder or model, at the same path on every node; "config", its
        settings, by default `monograph.toml` in the folder.
    """
    if unknown := sorted(set(arguments) - ARGUMENTS):
        raise ConfigError(
            "the application has no such argument", expected="models, config", given=unknown[0]
        )
    if "models" not in arguments:
        raise ConfigError("the application needs a folder of models", expected="models=FOLDER")
    models = Path(arguments["models"]).resolve()
    config = Path(arguments["config"]).resolve() if arguments.get("config") else None
    settings = _checked(read_settings(models, config))
    names = list(find_models(settings))
    handles = [_model(settings, name).bind(settings, name) for name in names]
    return _front(settings, names).bind(*handles)


def _checked(settings: ServerSettings) -> ServerSettings:
    """Return the settings for this application; refuse those that belong to Ray's own file."""
    if settings.tls_cert is not None:
        raise ConfigError(
            "on Ray, the proxies of Ray encrypt connections",
            given="tls_cert, tls_key",
            hint="leave them out, and set ssl_certfile and ssl_keyfile under http_options",
        )
    unknown = sorted(set(settings.ray.by_model) - set(find_models(settings)))
    if unknown:
        raise ConfigError("[ray.models] names no model of the folder", given=unknown[0])
    return replace(settings, instances=1)


class ModelReplica:
    """A replica of a model; it has all its versions."""

    def __init__(self, settings: ServerSettings, name: str) -> None:
        set_up_logs(settings.logs)
        threads = max(int(settings.ray.for_model(name).cpus), 1)
        model = _with_threads(settings.for_model(name), threads)
        own = replace(settings, by_model={**settings.by_model, name: model})
        self._host = ModelHost(own, name)

    async def describe(self, version: str) -> Description | RemoteFailure:
        """Return the facts about a version."""
        return self._host.describe(version)

    async def infer(self, attempt: InferAttempt) -> InferReply:
        """Return the outputs for the inputs of a request."""
        return await self._host.infer(attempt)

    async def generate(self, attempt: GenerateAttempt) -> AsyncGenerator[TokenReply, None]:
        """Yield the tokens after those that are known."""
        async with aclosing(self._host.generate(attempt)) as replies:
            async for reply in replies:
                yield reply


def _with_threads(model: ModelSettings, threads: int) -> ModelSettings:
    return model if model.threads else replace(model, threads=threads)


def _model(settings: ServerSettings, name: str) -> Any:
    """Return the deployment of a model."""
    scaling = settings.ray.for_model(name)
    return serve.deployment(ModelReplica).options(
        name=deployment_name(name),
        max_ongoing_requests=scaling.max_ongoing,
        max_queued_requests=settings.limits.queue,
        graceful_shutdown_timeout_s=settings.limits.drain_seconds,
        ray_actor_options={
            "num_cpus": scaling.cpus,
            "num_gpus": scaling.gpus,
            "resources": dict(scaling.resources),
        },
        **({"max_replicas_per_node": scaling.max_per_node} if scaling.max_per_node else {}),
        **_replicas(scaling),
    )


def _replicas(scaling: ModelScaling) -> dict[str, Any]:
    if scaling.min_replicas == scaling.max_replicas:
        return {"num_replicas": scaling.min_replicas}
    return {
        "autoscaling_config": {
            "min_replicas": scaling.min_replicas,
            "max_replicas": scaling.max_replicas,
            "target_ongoing_requests": scaling.target_ongoing,
            "upscale_delay_s": scaling.upscale_seconds,
            "downscale_delay_s": scaling.downscale_seconds,
        }
    }


def _front(settings: ServerSettings, names: list[str]) -> Any:
    """Return the deployment that answers HTTP."""

    def build() -> HttpApp:
        return _front_app(settings, names)

    scaling = settings.ray.front
    return serve.deployment(serve.ingress(build)()).options(
        name=FRONT,
        num_replicas=scaling.front_replicas,
        max_ongoing_requests=settings.limits.connections,
        graceful_shutdown_timeout_s=settings.limits.drain_seconds,
        ray_actor_options={
            "num_cpus": 0,
            "resources": {HEAD_RESOURCE: 0.001} if scaling.front == HEAD else {},
        },
    )


def _front_app(settings: ServerSettings, names: list[str]) -> HttpApp:
    """Return the same HTTP application as that of a server process, on models elsewhere."""
    set_up_logs(settings.logs)
    links = {name: RayLink(serve.get_deployment_handle(deployment_name(name))) for name in names}
    repository = RemoteRepository(settings, links)
    threading.Thread(target=repository.load_all, name="find models", daemon=True).start()
    traces = make_traces(settings.traces)
    return HttpApp(Protocol2(repository), ApiKeys(settings.api_keys), traces)


def deployment_name(model: str) -> str:
    """Return the name of the deployment of a model; Ray takes plain names only."""
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", model):
        return f"model-{model}"
    return f"model-{hashlib.sha256(model.encode()).hexdigest()[:16]}"
