"""Monograph compiles an ONNX model into one launch.

import monograph

session = monograph.load("model.onnx")
outputs = session.run({"images": x})
"""

from typing import TYPE_CHECKING, Any

from monograph import errors

if TYPE_CHECKING:
    from monograph.compat.torch.model import TorchModel, from_torch
    from monograph.generate import Engine, Generator
    from monograph.session import Session, load

__all__ = ["Engine", "Generator", "Session", "TorchModel", "errors", "from_torch", "load"]
__version__ = "0.1.0"

_OF_ONNXRUNTIME = (
    "InferenceSession", "SessionOptions", "RunOptions", "OrtValue", "IOBinding",
    "GraphOptimizationLevel", "get_available_providers", "get_device",
)  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # numpy, onnx and the compiler take a second to import: `monograph --help` goes without.
        if name in ("Engine", "Generator"):
            from monograph import generate

            return getattr(generate, name)
        if name in ("TorchModel", "from_torch"):
            return _of_torch(name)
        if name not in ("Session", "load"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint(name)}")
        from monograph import session

        return getattr(session, name)

    def _hint(name: str) -> str:
        """Return what to use in the place of a name that is elsewhere, or of ONNX Runtime's."""
        if isinstance(getattr(errors, name, None), type):
            return f": use monograph.errors.{name}"
        if name in _OF_ONNXRUNTIME:
            return ": use monograph.load, or monograph.onnxruntime (docs/migration.md)"
        return ""

    def _of_torch(name: str) -> Any:
        from importlib.util import find_spec

        if find_spec("torch") is None:
            raise errors.ConfigError(
                f"`monograph.{name}` needs torch",
                given="a Python environment without torch",
                hint="pip install 'monograph[torch]'",
            )
        from monograph.compat.torch import model

        return getattr(model, name)

    def __dir__() -> list[str]:
        # What was not imported yet is there all the same.
        return sorted({*globals(), *__all__})
