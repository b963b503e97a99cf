"""Decoding with language models: `Generator` for one batch, `Engine` for many sequences at once."""

from monograph.generate.batching.engine import Engine, QueueFullError
from monograph.generate.batching.events import Completion, TokenEvent
from monograph.generate.batching.request import TokenStream
from monograph.generate.generator import Generator

__all__ = ["Completion", "Engine", "Generator", "QueueFullError", "TokenEvent", "TokenStream"]
