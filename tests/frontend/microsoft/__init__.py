"""Tests of the frontend: microsoft."""
