"""Settings of a server: of the process, its limits, and of each model."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from monograph.errors import ConfigError, did_you_mean
from monograph.serve.scaling import FrontScaling, ModelScaling, RaySettings

CONFIG_FILE = "monograph.toml"
"""The file of settings that a folder of models may hold."""
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """Limits of what one request, one connection and one model may take."""

    body_bytes: int = 64 << 20
    """The largest body of a request, after decompression."""
    header_bytes: int = 64 << 10
    """The largest header of a request."""
    header_seconds: float = 10.0
    """The time in which the header of a request must arrive."""
    body_seconds: float = 60.0
    """The time in which the body of a request must arrive."""
    request_seconds: float = 30.0
    """The deadline of a request that names none, from its arrival."""
    queue: int = 256
    """The most requests that wait for a model."""
    queue_bytes: int = 512 << 20
    """The most bytes of inputs that wait for a model."""
    connections: int = 1024
    """The most open connections."""
    generation_seconds: float = 600.0
    """The time that a request to a language model has, from its arrival."""
    drain_seconds: float = 30.0
    """The time that running requests have after SIGTERM."""
    tokens: int = 4096
    """The most new tokens of a request to a language model."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if getattr(self, f.name) <= 0:
                raise ConfigError(f"limit `{f.name}` must be above 0", given=getattr(self, f.name))


def state_error(donate: Mapping[str, str]) -> ConfigError:
    """Return the error of a model whose outputs stay in the memory of its inputs."""
    return ConfigError(
        "a model with state is not served: a request would depend on those before it, and could "
        "neither share a run nor be sent again to another process",
        given=f"donate = {dict(donate)}",
        hint="make the state inputs and outputs of each request, or compile without donate",
    )


@dataclass(frozen=True)
class ModelSettings:
    """Settings of one model; those of `[models.NAME]` replace those of `[defaults]`."""

    target: str | None = None
    threads: int | None = None
    specialise: str = "auto"
    """The code for open dimensions on a CPU: "auto" replaces the code of shapes that keep coming
    back in the background; "off" keeps the same code for all shapes.
    """
    batch: bool = True
    """Join requests into batches where the graph proves that rows are independent."""
    max_batch: int = 64
    """The most rows of a batch."""
    parallel_batches: int = 0
    """The most batches that run beside each other on a CPU, one for each thread at most; 0: 4."""
    versions: str | list[int] = "latest"
    """The versions to load: "latest", "all", or a list of numbers."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """Sizes of named dimensions."""
    shapes: list[dict[str, list[int]]] = field(default_factory=list)
    """Shapes of inputs to prepare before the model is ready."""
    warm_up: str = ""
    """A file (.npz) of inputs to run before the model is ready, beside the settings."""
    max_length: int | None = None
    """The most tokens of a sequence of a language model."""
    slots: int = 8
    """The most sequences that a language model generates at once."""
    batch_invariant: bool = False
    """Give a sequence of a language model the same bits whatever runs beside it; slower prompts."""
    donate: Mapping[str, str] = field(default_factory=dict)
    """Refused with the reason: models with state are not served."""

    def __post_init__(self) -> None:
        if self.donate:
            raise state_error(self.donate)
        for name in ("max_batch", "slots"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1", given=getattr(self, name))
        if self.parallel_batches < 0:
            raise ConfigError(
                "`parallel_batches` must not be negative", given=self.parallel_batches
            )
        known = isinstance(self.versions, list) or self.versions in ("latest", "all")
        if not known:
            raise ConfigError(
                "`versions` must name versions",
                expected='"latest", "all" or a list of numbers',
                given=repr(self.versions),
            )


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server process."""

    models: Path
    """A folder of models, or one model."""
    host: str = "127.0.0.1"
    http: int | None = 8000
    """The port of HTTP; 0 for any free port, None for none."""
    grpc: int | None = None
    """The port of gRPC; 0 for any free port, None for none."""
    instances: int = 1
    """The number of processes on the port; each takes its share of the threads."""
    api_keys: Path | None = None
    """A file with one API key a line; without it every request is allowed."""
    tls_cert: Path | None = None
    """The certificate of TLS (PEM); with `tls_key`."""
    tls_key: Path | None = None
    logs: str = "text"
    """The form of log records: "text" or "json"."""
    log_requests: bool = False
    """Log every request of HTTP."""
    traces: bool = False
    """Make spans of OpenTelemetry."""
    limits: Limits = field(default_factory=Limits)
    defaults: ModelSettings = field(default_factory=ModelSettings)
    by_model: Mapping[str, ModelSettings] = field(default_factory=dict)
    ray: RaySettings = field(default_factory=RaySettings)
    """Settings of the same application on Ray Serve."""

    def __post_init__(self) -> None:
        for name in ("api_keys", "tls_cert", "tls_key"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, Path(given))
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs a certificate and its key: tls_cert and tls_key")
        if self.instances < 1:
            raise ConfigError("`instances` must be at least 1", given=self.instances)
        if self.logs not in ("text", "json"):
            raise ConfigError("`logs` must be a form", expected="text | json", given=self.logs)

    def for_model(self, name: str) -> ModelSettings:
        """Return the settings of a model."""
        return self.by_model.get(name, self.defaults)


def read_settings(models: Path, config: Path | None = None, **given: Any) -> ServerSettings:
    """Return the settings of a server from a file and from options, which come first.

    config: the file; by default `monograph.toml` in the folder of models, if it is there.
    """
    if config is None and (models / CONFIG_FILE).is_file():
        config = models / CONFIG_FILE
    text = _read(config) if config is not None else {}
    place = str(config)
    _known(text, {"server", "limits", "defaults", "models", "ray"}, place)
    server = dict(_table(text, "server", place))
    defaults = {**_table(text, "defaults", place), **_set(given.pop("defaults", {}))}
    tables = _table(text, "models", place)
    by_model = {
        name: _made(
            ModelSettings,
            {**defaults, **_table(tables, name, place)},
            f"[models.{name}] of {place}",
        )
        for name in tables
    }
    limits = {**_table(text, "limits", place), **_set(given.pop("limits", {}))}
    server |= _set(given)
    own = {f.name for f in fields(ServerSettings)} - {
        "models",
        "limits",
        "defaults",
        "by_model",
        "ray",
    }
    _known(server, own, f"[server] of {place}")
    return ServerSettings(
        models=models,
        limits=_made(Limits, limits, f"[limits] of {place}"),
        defaults=_made(ModelSettings, defaults, f"[defaults] of {place}"),
        by_model=by_model,
        ray=_ray(_table(text, "ray", place), place),
        **server,
    )


def _ray(text: Mapping[str, Any], place: str) -> RaySettings:
    """Return the settings of the table [ray]."""
    own = dict(text)
    tables = _table(own, "models", place)
    own.pop("models", None)
    names = {f.name for f in fields(FrontScaling)}
    shared = {name: value for name, value in own.items() if name not in names}
    return RaySettings(
        _made(FrontScaling, {n: v for n, v in own.items() if n in names}, f"[ray] of {place}"),
        _made(ModelScaling, shared, f"[ray] of {place}"),
        {
            name: _made(
                ModelScaling, {**shared, **_table(tables, name, place)},
                f"[ray.models.{name}] of {place}",
            )
            for name in tables
        },
    )  # fmt: skip


def _set(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError("the settings are no TOML", given=f"{path}: {e}") from None


def _table(text: Mapping[str, Any], name: str, place: str) -> Mapping[str, Any]:
    found = text.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"[{name}] must be a table", given=f"{found!r} in {place}")
    return found


def _known(given: Mapping[str, Any], known: set[str], place: str) -> None:
    if unknown := sorted(set(given) - known):
        raise ConfigError(
            f"no such setting in {place}",
            expected=", ".join(sorted(known)),
            given=", ".join(unknown),
            hint=did_you_mean(unknown, known),
        )


def _made(kind: type[T], values: Mapping[str, Any], place: str) -> T:
    """Return settings of a kind, each of the type of its default."""
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    _known(values, set(known), place)
    for name, value in values.items():
        default = known[name].default
        number = isinstance(default, float) and isinstance(value, int)
        if isinstance(default, (bool, int, float)) and type(value) is not type(default):
            if number and not isinstance(value, bool):
                continue
            raise ConfigError(
                f"`{name}` must be of type {type(default).__name__}",
                given=f"{value!r} in {place}",
            )
    return kind(**values)
