"""Mutants of the source, and the tests that must notice them: `make mutants`."""
