"""Tests of the GPU target: indexing."""
