"""Faces that other software knows: ONNX's backend interface, ONNX Runtime's session."""
