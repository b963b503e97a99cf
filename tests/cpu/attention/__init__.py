"""Tests of the CPU target: attention."""
