"""Packages written for onnxruntime, with onnxruntime and with Monograph in its place."""
