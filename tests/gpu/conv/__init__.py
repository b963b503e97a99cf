"""Tests of the GPU target: conv."""
