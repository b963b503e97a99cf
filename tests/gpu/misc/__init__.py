"""Tests of the GPU target: misc."""
