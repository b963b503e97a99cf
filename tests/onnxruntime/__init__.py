"""The drop-in for ONNX Runtime, beside ONNX Runtime itself."""
