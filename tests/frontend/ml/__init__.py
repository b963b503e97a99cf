"""Tests of the frontend: ml."""
