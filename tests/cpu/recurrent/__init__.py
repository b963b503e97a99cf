"""Tests of the CPU target: recurrent."""
