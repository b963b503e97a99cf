"""Tests of the GPU target: driver."""
