"""Tests of the CPU target: emit."""
