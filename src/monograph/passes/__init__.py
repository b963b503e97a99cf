"""Passes over graphs, one a file. `pipeline.py` states their order."""
