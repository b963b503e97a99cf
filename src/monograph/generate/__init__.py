"""Decoding with language models: `Generator`, and the steps that decoders are rewritten into.

`docs/generate.md` says how.
"""

from monograph.generate.generator import Generator

__all__ = ["Generator"]
