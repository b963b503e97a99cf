"""Tests of the CPU target: matmul."""
