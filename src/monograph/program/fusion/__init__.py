"""Fusion of values into kernels, and the index maps of fused views."""
