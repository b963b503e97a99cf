"""Tests of the CPU target: misc."""
