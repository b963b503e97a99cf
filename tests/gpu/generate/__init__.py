"""Tests of the GPU target: generate."""
