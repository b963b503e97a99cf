"""Tests of the CPU target: pool."""
