"""Monograph compiles an ONNX model into one launch.

import monograph

session = monograph.load("model.onnx")
outputs = session.run({"images": x})
"""

from monograph.session import Session, load

__all__ = ["Session", "load"]
__version__ = "0.1.0"
