"""Tests of the CPU target: conv."""
