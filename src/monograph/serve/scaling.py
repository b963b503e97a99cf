"""Settings of a deployment on Ray Serve: the table [ray] of `monograph.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monograph.errors import ConfigError

HEAD, ANY = "head", "any"


@dataclass(frozen=True)
class ModelScaling:
    """Replicas of one model; those of `[ray.models.NAME]` replace those of `[ray]`."""

    min_replicas: int = 1
    max_replicas: int = 1
    """Above `min_replicas`, Ray adds replicas where requests wait, and removes idle ones."""
    target_ongoing: float = 16.0
    """The requests of a replica that autoscaling aims at."""
    max_ongoing: int = 64
    """The most requests that a replica has at once; others wait for any replica."""
    max_per_node: int = 0
    """The most replicas on one node; 0 for any number. 1 survives the loss of nodes best."""
    cpus: float = 1.0
    """The CPUs that a replica reserves; the model runs on as many threads."""
    gpus: float = 0.0
    """The GPUs that a replica reserves."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Further resources of Ray that a replica reserves."""
    upscale_seconds: float = 10.0
    """The time that load must last before replicas are added."""
    downscale_seconds: float = 300.0
    """The time that load must be low before replicas are removed."""

    def __post_init__(self) -> None:
        if not 0 < self.min_replicas <= self.max_replicas:
            raise ConfigError(
                "replicas must satisfy 1 <= min_replicas <= max_replicas",
                given=f"min_replicas = {self.min_replicas}, max_replicas = {self.max_replicas}",
            )
        for name in ("target_ongoing", "max_ongoing"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"`{name}` must be above 0", given=getattr(self, name))
        for name in ("max_per_node", "cpus", "gpus", "upscale_seconds", "downscale_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"`{name}` must not be negative", given=getattr(self, name))


@dataclass(frozen=True)
class FrontScaling:
    """The processes that answer HTTP requests and send them to replicas of models."""

    front: str = HEAD
    """Their place: "head", beside Ray's controller, or "any" node."""
    front_replicas: int = 1
    retries: int = 5
    """The most times a request is sent again after it lost its replica, within its deadline."""

    def __post_init__(self) -> None:
        if self.front not in (HEAD, ANY):
            raise ConfigError("`front` must be a place", expected="head | any", given=self.front)
        if self.front_replicas < 1:
            raise ConfigError("`front_replicas` must be at least 1", given=self.front_replicas)
        if self.retries < 0:
            raise ConfigError("`retries` must not be negative", given=self.retries)


@dataclass(frozen=True)
class RaySettings:
    """The table [ray]."""

    front: FrontScaling = field(default_factory=FrontScaling)
    defaults: ModelScaling = field(default_factory=ModelScaling)
    by_model: Mapping[str, ModelScaling] = field(default_factory=dict)

    def for_model(self, name: str) -> ModelScaling:
        """Return the settings of a model."""
        return self.by_model.get(name, self.defaults)
