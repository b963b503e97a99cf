"""Tests of the GPU target: rows."""
