"""Ops of Monograph's own domain, which rewritten models use where ONNX has no op.

`monograph.generate` rewrites decoders into steps as ONNX models, before they are imported.
"""

from __future__ import annotations

from monograph.frontend.onnx.node import Node, converter
from monograph.ir import Value
from monograph.ops.attention import CacheUpdate

OWN = "monograph"


@converter("CacheUpdate", domain=OWN)
def cache_update(n: Node) -> Value:
    """Convert the update of a cache: each row's update is written along `axis` at its own start."""
    return CacheUpdate(n.attr_int("axis"))(n.input(0), n.input(1), n.input(2))
