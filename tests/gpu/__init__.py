"""Tests of the GPU target: numbers by Triton's interpreter, code for every architecture."""
