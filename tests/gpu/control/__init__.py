"""Tests of the GPU target: control."""
