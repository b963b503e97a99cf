"""Decoding: models, generators, command line."""
