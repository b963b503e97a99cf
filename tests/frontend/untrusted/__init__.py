"""Tests of the frontend: untrusted."""
