"""Adapters to the interfaces of other software: ONNX's backend interface."""
