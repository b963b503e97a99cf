"""Converters from ONNX ops to the canonical set, one file a family."""
