"""Tests of the CPU target: rows."""
