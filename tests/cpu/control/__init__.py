"""Tests of the CPU target: control."""
