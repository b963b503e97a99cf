"""Tests of the GPU target: recurrent."""
