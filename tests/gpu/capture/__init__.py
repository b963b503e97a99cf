"""Tests of the GPU target: capture."""
