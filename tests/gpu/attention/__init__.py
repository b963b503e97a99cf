"""Tests of the GPU target: attention."""
