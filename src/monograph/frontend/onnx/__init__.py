"""The ONNX frontend: a model file becomes a graph of canonical ops."""

from monograph.frontend.onnx.importer import import_model
from monograph.frontend.onnx.load import ModelFile, read_model
from monograph.frontend.onnx.support import MissingOp, missing_ops

__all__ = ["MissingOp", "ModelFile", "import_model", "missing_ops", "read_model"]
