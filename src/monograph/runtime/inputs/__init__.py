"""Inputs for a run: drawn at random, in ranges that their use in the graph asks for."""
