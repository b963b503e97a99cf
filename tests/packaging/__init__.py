"""Tests of the wheel, the sdist and the container files."""
