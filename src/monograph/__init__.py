"""Monograph compiles an ONNX model into one launch.

import monograph

session = monograph.load("model.onnx")
outputs = session.run({"images": x})
"""

from typing import TYPE_CHECKING, Any

from monograph import errors

if TYPE_CHECKING:
    from monograph.generate import Generator
    from monograph.session import Session, load

__all__ = ["Generator", "Session", "errors", "load"]
__version__ = "0.1.0"

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # numpy, onnx and the compiler take a second to import: `monograph --help` goes without.
        if name == "Generator":
            from monograph.generate import Generator

            return Generator
        if name not in ("Session", "load"):
            ours = ": use monograph.load, or monograph.onnxruntime (docs/migration.md)"
            hint = ours if name in ("InferenceSession", "SessionOptions") else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        from monograph import session

        return getattr(session, name)

    def __dir__() -> list[str]:
        # What was not imported yet is there all the same.
        return sorted({*globals(), *__all__})
