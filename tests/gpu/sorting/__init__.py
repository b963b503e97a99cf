"""Tests of the GPU target: sorting."""
