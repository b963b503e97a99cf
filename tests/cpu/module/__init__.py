"""Tests of the CPU target: module."""
