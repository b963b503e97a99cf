"""Passes over graphs. `pipeline.py` states their order."""
