"""Tests of the GPU target: emit."""
