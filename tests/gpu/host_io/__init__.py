"""Tests of the GPU target: host io."""
