"""Decoding with language models: `Generator` for one batch, `Engine` for many sequences at once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monograph.generate.batching.engine import Engine, QueueFullError
    from monograph.generate.batching.events import Completion, TokenEvent
    from monograph.generate.batching.request import TokenStream
    from monograph.generate.generator import Generator

__all__ = ["Completion", "Engine", "Generator", "QueueFullError", "TokenEvent", "TokenStream"]
_PLACES = {
    "Completion": "batching.events",
    "Engine": "batching.engine",
    "Generator": "generator",
    "QueueFullError": "batching.engine",
    "TokenEvent": "batching.events",
    "TokenStream": "batching.request",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # A server without a language model starts without the compiler.
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
