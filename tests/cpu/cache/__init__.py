"""Tests of the CPU target: cache."""
