"""Tests of the GPU target: matmul."""
