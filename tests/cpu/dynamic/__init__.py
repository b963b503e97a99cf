"""Tests of the CPU target: dynamic."""
