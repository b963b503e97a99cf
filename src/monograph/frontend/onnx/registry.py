"""Converters, looked up by (domain, op, opset).

A converter serves every opset from its `since` up to the next converter of the same op.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from monograph.ir import Value

if TYPE_CHECKING:
    from monograph.frontend.onnx.node import Node

Converter: TypeAlias = "Callable[[Node], Value | Sequence[Value | None]]"

_converters: dict[tuple[str, str], dict[int, Converter]] = {}


def converter(*names: str, since: int = 1, domain: str = "") -> Callable[[Converter], Converter]:
    """Registers a converter for ONNX ops of these names, from this opset on."""

    def register(function: Converter) -> Converter:
        for name in names:
            versions = _converters.setdefault((domain, name), {})
            if since in versions:
                raise TypeError(f"two converters for {domain or 'ai.onnx'}.{name} since {since}")
            versions[since] = function
        return function

    return register


def normalise_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def find_converter(domain: str, name: str, opset: int) -> Converter | None:
    """The converter that serves an op at an opset, or None."""
    _load_families()
    versions = _converters.get((normalise_domain(domain), name), {})
    serving = [since for since in versions if since <= opset]
    return versions[max(serving)] if serving else None


def registered() -> dict[tuple[str, str], list[int]]:
    """Every (domain, op) with the opsets its converters start at."""
    _load_families()
    return {key: sorted(versions) for key, versions in sorted(_converters.items())}


_loaded = False


def _load_families() -> None:
    """Import every family of converters once, which registers them."""
    global _loaded
    if _loaded:
        return
    package = importlib.import_module("monograph.frontend.onnx.convert")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    _loaded = True
