"""Decoding with language models: `Generator`, and the steps that decoders are rewritten into."""

from monograph.generate.generator import Generator

__all__ = ["Generator"]
