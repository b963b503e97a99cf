"""The internal modules of ONNX Runtime that programs import."""
