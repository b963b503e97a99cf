"""Comparison of results: tolerances, bisection, numeric equivalence."""
