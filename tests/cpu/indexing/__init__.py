"""Tests of the CPU target: indexing."""
