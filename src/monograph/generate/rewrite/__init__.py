"""Rewrites of a decoder's ONNX graph into a decoding step or a generation loop."""
