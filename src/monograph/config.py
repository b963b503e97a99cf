"""Every option of Monograph, once. Environment variables `MONOGRAPH_<NAME>` set defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from monograph.errors import ConfigError

TARGETS = ("reference",)
_PREFIX = "MONOGRAPH_"


@dataclass(frozen=True)
class Config:
    """How a model is compiled and run."""

    target: str = "reference"
    """What runs the model."""
    shapes_kept: int = 16
    """How many shape bindings a session keeps ready; the least recently used one goes first."""

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ConfigError("no such target", expected=" | ".join(TARGETS), given=self.target)
        if self.shapes_kept < 1:
            raise ConfigError("shapes_kept is too small", expected=">= 1", given=self.shapes_kept)


def make_config(**options: Any) -> Config:
    """The configuration from options, then the environment, then the defaults."""
    known = {f.name: f for f in fields(Config)}
    if unknown := sorted(set(options) - set(known)):
        raise ConfigError("no such option", expected=", ".join(known), given=", ".join(unknown))
    values: dict[str, Any] = {}
    for name, f in known.items():
        text = os.environ.get(_PREFIX + name.upper())
        if options.get(name) is not None:
            values[name] = options[name]
        elif text is not None:
            values[name] = _parse(name, text, type(f.default))
    return Config(**values)


def _parse(name: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(
            f"{_PREFIX}{name.upper()} is not of its kind", expected=kind.__name__, given=text
        ) from None
