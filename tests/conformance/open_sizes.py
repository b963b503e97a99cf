"""ONNX's backend interface on models whose input dimensions are all open.

One compilation must serve every size that its guards allow. `reasons` tells what served each run.
"""

from __future__ import annotations

from typing import Any

import onnx

from monograph.bindings import NOTHING_OPEN
from monograph.compat.onnx_backend import Backend, MonographRep

ANY_SHAPE = "any shape"

reasons: list[str] = []
"""The code that served each run: code for any shape, or the reason for exact code."""


def opened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without fixed sizes: each dimension of each input has a name of its own."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    stored = {t.name for t in graph.initializer}
    for value in graph.input:
        if value.type.HasField("tensor_type") and value.name not in stored:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                dim.dim_param = f"{value.name}_{axis}"
    for value in (*graph.output, *graph.value_info):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return made


class OpenRep(MonographRep):
    """A prepared model that records what served its runs."""

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        made = super().run(inputs, **kwargs)
        stats = self.session.stats
        reasons.append(stats.get("exact_reason", NOTHING_OPEN) or ANY_SHAPE)
        return made


class OpenBackend(Backend):
    """The backend, for models whose input dimensions have been opened."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> MonographRep:
        options = {"target": "cpu", "specialise": "off", **kwargs}
        return OpenRep(super().prepare(opened(model), device, **options).session)
