"""Ops of Monograph's own domain: what rewritten models say that ONNX has no op for.

Decoders are rewritten into steps as ONNX (`monograph.generate`), before they are imported.
"""

from __future__ import annotations

from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.ir import Value
from monograph.ops.attention import CacheUpdate

OWN = "monograph"


@converter("CacheUpdate", domain=OWN)
def cache_update(n: Node) -> Value:
    """Each row's update is written into its cache from its own start on, along `axis`."""
    return CacheUpdate(n.attr_int("axis"))(n.input(0), n.input(1), n.input(2))
