"""Tests of the frontend: layers."""
