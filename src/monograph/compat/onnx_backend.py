"""Monograph as a backend of `onnx.backend`.

import monograph.compat.onnx_backend as backend
outputs = backend.run_model(model, [x, y])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx.backend.base import Backend as BackendBase
from onnx.backend.base import BackendRep, namedtupledict

from monograph.errors import FeedError, MonographError
from monograph.session import Session, load


class MonographRep(BackendRep):
    """A prepared model."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model on arrays in model order, or by name; return a named tuple of outputs."""
        ports = self.session.inputs
        if not isinstance(inputs, Mapping):
            if not isinstance(inputs, (list, tuple)):
                inputs = [inputs]
            if len(inputs) > len(ports):
                raise FeedError("too many inputs", expected=len(ports), given=len(inputs))
            inputs = dict(zip((p.name for p in ports), inputs, strict=False))
        results = self.session.run(inputs)
        names = [p.name for p in self.session.outputs]
        made: tuple[Any, ...] = namedtupledict("Outputs", names)(*results)
        return made


class Backend(BackendBase):
    """ONNX's backend interface; devices are "CPU"."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return True if the model can be prepared for the device."""
        if not cls.supports_device(device):
            return False
        try:
            cls.prepare(model, device, **kwargs)
        except MonographError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> MonographRep:
        """Loads a model; keyword arguments are options of `monograph.load`."""
        cls._check_device(device)
        return MonographRep(load(model, **kwargs))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Prepares a model and runs it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Runs a single node on arrays."""
        cls._check_device(device)
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        named = dict(zip((n for n in node.input if n), inputs, strict=True))
        infos = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
            )
            for name, x in named.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", infos, outputs)
        imports = [onnx.helper.make_opsetid(node.domain, opset)]
        model = onnx.helper.make_model(graph, opset_imports=imports)
        return cls.prepare(model, device, **kwargs).run(named)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"

    @classmethod
    def _check_device(cls, device: str) -> None:
        if not cls.supports_device(device):
            raise MonographError("no such device", expected="CPU", given=device)


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
