"""Tests of the GPU target: build."""
