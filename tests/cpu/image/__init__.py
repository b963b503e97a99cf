"""Tests of the CPU target: image."""
