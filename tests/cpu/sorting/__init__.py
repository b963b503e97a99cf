"""Tests of the CPU target: sorting."""
